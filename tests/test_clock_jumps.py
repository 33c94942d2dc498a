"""The machine's clock jumps while the real command runs: no time is spent by it, and no study changes hands."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ablate.core.trial import TrialState
from ablate.ledger import EventRecord, Ledger, TrialRecord

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
STUDY = """\
study: jumped
seed: 3
datasets: {digits: {patch: 4, train_limit: 128}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8, 16]}}
training: {epochs: 12, batch_size: 8, learning_rate: {float: [1.0e-3, 1.0e-2], log: true}}
scheduler: {name: none}
budget: {trials: 3, wall_clock: 30m}
confirm: null
"""

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed (Debian: faketime)")


class Jumping:
    """One search whose wall clock, and no other, is moved by the number of seconds in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "runs" / "jumped"
        self.offset, self.file = folder / "offset", folder / "jumped.yaml"
        self.jump("+0")
        self.file.write_text(STUDY)
        self.started: list[subprocess.Popen[str]] = []

    def jump(self, seconds: str) -> None:
        """Let the clock of what runs and of what is started later jump."""
        self.offset.write_text(seconds)

    def search(self) -> subprocess.Popen[str]:
        options = ["--executor", "local", "--device", "cpu", "--tracker", "none", "--runs-dir", str(self.home.parent)]
        faked = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self.offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "ablate", "search", str(self.file), *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | faked
        )
        self.started.append(process)
        return process

    def read(self) -> tuple[list[TrialRecord], list[EventRecord], float]:
        """Return trials, notes and the seconds that drivers worked, as far as they are committed."""
        if not (self.home / "ledger.json").is_file():
            return [], [], 0.0
        with Ledger.open(f"sqlite:///{self.home}/ledger.sqlite", create=False) as ledger:
            found = ledger.snapshot("jumped")
        assert found.study is not None
        return found.trials, found.events, found.study.active_seconds

    def until_training(self, driver: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 300
        while not any(trial.epochs_done for trial in self.read()[0]):
            assert driver.poll() is None, driver.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def freeze(self, driver: subprocess.Popen[str]) -> None:
        """Stop a driver outside of a transaction, in which others could not write."""
        while True:
            driver.send_signal(signal.SIGSTOP)
            with closing(sqlite3.connect(self.home / "ledger.sqlite", timeout=0.5)) as ledger:
                try:
                    ledger.execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError:
                    driver.send_signal(signal.SIGCONT)
                    time.sleep(0.05)


@pytest.fixture
def jumping(tmp_path: Path) -> Iterator[Jumping]:
    found = Jumping(tmp_path)
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


@pytest.mark.services
@pytest.mark.parametrize(
    "jump",
    [
        pytest.param("+7200", id="two hours forward"),
        pytest.param("-7200", id="two hours back", marks=pytest.mark.slow),
    ],
)
def test_a_clock_that_jumps_spends_no_budget_and_gives_no_study_away(jump: str, jumping: Jumping) -> None:
    driver = jumping.search()
    jumping.until_training(driver)
    jumping.freeze(driver)  # it is still at work when the second one asks
    jumping.jump(jump)
    second = jumping.search()
    said, _ = second.communicate(timeout=300)
    driver.send_signal(signal.SIGCONT)
    assert second.returncode == 75, said
    assert "is held by" in said
    output, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, output
    trials, notes, active = jumping.read()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 3
    assert "time_up" not in {note.kind for note in notes}
    moved = max(n.created_at for n in notes) - min(n.created_at for n in notes)
    moved = max(abs(moved), *(abs(float(t.finished_at or 0) - notes[0].created_at) for t in trials))
    assert moved > 7000, "the clock that is recorded did jump"
    assert 0 < active < 600


@pytest.mark.services
@pytest.mark.parametrize("offset", ["+7200", "-7200"])
def test_a_command_with_another_clock_sees_and_stops_the_driver(offset: str, jumping: Jumping) -> None:
    driver = jumping.search()
    jumping.until_training(driver)
    jumping.freeze(driver)  # it is still at work when it is asked
    environment = os.environ | {"LD_PRELOAD": str(LIBRARY), "FAKETIME": offset}

    def ask(word: str) -> str:
        command = [sys.executable, "-m", "ablate", word, "jumped", "--runs-dir", str(jumping.home.parent)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Running (digits: searching). Driven by " in ask("status")
    assert "pauses its trials and ends. To continue: ablate resume jumped" in ask("stop")
    driver.send_signal(signal.SIGCONT)
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 75, output
    assert "Interrupted (digits: searching)" in ask("status")
