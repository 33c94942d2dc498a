"""The driver is terminated, then killed by kill -9, with a Ray of its own; the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import fakes, witness
from support.paths import TESTS
from support.processes import have_ended

TRIALS, EPOCHS, SLOTS = 8, 4, os.cpu_count() or 1
DRIVER = f"""
import sys
from pathlib import Path
from support import witness
from ablate.execution import RayExecutor
home = Path(sys.argv[1])
executor = RayExecutor(home=home, device="cpu", trainer="support.fakes:train")
with witness.searching(home, {TRIALS}, epochs={EPOCHS}) as search:
    try:
        executor.run(search, on_event=lambda: None)
    except KeyboardInterrupt as stop:
        sys.exit(128 + stop.args[0])
"""


def drive(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(home)],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def commits(home: Path) -> list[tuple[int, int]]:
    return [(line["trial"], line["epoch"]) for line in fakes.trace(home) if line["what"] == "commit"]


def drive_until(home: Path, committed: int, number: signal.Signals) -> tuple[int, str]:
    """Run a driver until so many reports are committed, send it a signal, and return its exit code and output."""
    with drive(home) as driver:
        while len(commits(home)) < committed and driver.poll() is None:
            time.sleep(0.02)
        driver.send_signal(number)
        output, _ = driver.communicate(timeout=60)
    return driver.returncode, output


@pytest.mark.services
@pytest.mark.slow
def test_a_terminated_and_a_killed_driver_leave_no_process_and_the_next_one_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    fakes.script(tmp_path, {-1: "sleep 0.1"})
    assert drive_until(tmp_path, EPOCHS, signal.SIGTERM) == (128 + signal.SIGTERM, "")
    assert drive_until(tmp_path, 3 * EPOCHS, signal.SIGKILL)[0] == -signal.SIGKILL
    before = witness.recorded(tmp_path)
    finished = {trial.key.number for trial in before if trial.state.finished}
    assert len(finished) < TRIALS
    lived = len(fakes.trace(tmp_path))

    with drive(tmp_path) as last:
        output, _ = last.communicate(timeout=120)
    assert (last.returncode, output) == (0, "")

    after = witness.recorded(tmp_path)
    assert [trial.key.number for trial in after] == list(range(TRIALS))
    assert {str(trial.state) for trial in after} == {"COMPLETE"}
    begun = [(line["trial"], line["epoch"]) for line in fakes.trace(tmp_path) if line["what"] == "begin"]
    assert set(begun) == {(number, epoch) for number in range(TRIALS) for epoch in range(1, EPOCHS + 1)}
    assert len(begun) - len(set(begun)) <= 2 * SLOTS
    assert not {line["trial"] for line in fakes.trace(tmp_path)[lived:]} & finished
    workers = {line["pid"] for line in fakes.trace(tmp_path) if line["what"] == "begin"}
    assert have_ended(workers)
