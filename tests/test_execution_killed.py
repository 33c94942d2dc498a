"""The driver dies by kill -9 with a Ray of its own; the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import witness

TRIALS, EPOCHS = 8, 4
DRIVER = f"""
import sys
from pathlib import Path
import witness
from ablate.execution import RayExecutor
home = Path(sys.argv[1])
with witness.searching(home, {TRIALS}, epochs={EPOCHS}) as search:
    RayExecutor(home=home, device="cpu", trainer="fakes:train").run(search, on_event=lambda: None)
"""


def drive(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(home)],
        cwd=Path(__file__).parent,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def commits(home: Path) -> list[tuple[int, int]]:
    return [(line["trial"], line["epoch"]) for line in fakes.trace(home) if line["what"] == "commit"]


def test_a_killed_driver_leaves_no_process_and_the_next_one_loses_and_doubles_nothing(tmp_path: Path) -> None:
    fakes.script(tmp_path, {-1: "sleep 0.1"})
    with drive(tmp_path) as first:
        while len(commits(tmp_path)) < 2 * EPOCHS and first.poll() is None:
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
    before = {trial.key.number: trial for trial in witness.recorded(tmp_path)}
    assert any(not trial.state.finished for trial in before.values())

    with drive(tmp_path) as second:
        output, _ = second.communicate(timeout=120)
    assert (second.returncode, output) == (0, "")

    after = witness.recorded(tmp_path)
    assert [trial.key.number for trial in after] == list(range(TRIALS))
    assert {str(trial.state) for trial in after} == {"COMPLETE"}
    begun = [(line["trial"], line["epoch"]) for line in fakes.trace(tmp_path) if line["what"] == "begin"]
    finished = {number for number, trial in before.items() if trial.state.finished}
    repeated = {step for step in begun if begun.count(step) > 1}
    assert set(begun) == {(n, e) for n in range(TRIALS) for e in range(1, EPOCHS + 1)}
    assert len(repeated) <= len(before) - len(finished) <= 2
    assert not {number for number, _ in repeated} & finished
    first_workers = {line["pid"] for line in fakes.trace(tmp_path) if line["what"] == "begin" and line["trial"] == 0}
    assert not any(Path(f"/proc/{pid}").exists() for pid in first_workers)
