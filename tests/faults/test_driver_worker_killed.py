"""`kill -9` of a trial's process on Ray, as the kernel does it when memory runs out: only that trial starts again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import counting
from lossless import attempts_begun, study
from study_runs import StudyRun

TRIALS, EPOCHS, ONCE, EVER = 4, 12, 0, 3
SECONDS = 15.0
OPTIONS = ("--device", "cpu", "--tracker", "none")


def test_a_killed_process_costs_one_step_and_one_that_always_dies_is_given_up(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    run = StudyRun(
        folder=tmp_path, text=study("mortal", trials=TRIALS, epochs=EPOCHS), options=OPTIONS, cpus=2, pace=0.4
    )
    (run.data / (counting.MORTAL % EVER)).touch()
    command = run.search()
    command.until(lambda: run.steps_by_trial()["digits", ONCE] >= 4)
    victim = next(line["pid"] for line in reversed(run.steps()) if line["trial"] == ONCE)
    os.kill(victim, signal.SIGKILL)
    killed_at = time.time()
    assert command.wait() == 0, command.output

    begun, trials = attempts_begun(run), {trial.key.number: trial for trial in run.trials()}
    states = {number: str(trial.state) for number, trial in trials.items()}
    assert states == {number: "FAIL" if number == EVER else "COMPLETE" for number in range(TRIALS)}
    assert {number: trial.attempt for number, trial in trials.items()} == {ONCE: 2, 1: 1, 2: 1, EVER: 3}
    assert "its process died" in str(trials[EVER].error)
    assert begun[ONCE][2] - killed_at < SECONDS
    steps = run.steps_by_trial()
    assert steps["digits", EVER] == 3
    assert steps["digits", ONCE] <= EPOCHS + 1
    for number in (1, 2):  # no other trial was touched
        assert steps["digits", number] == EPOCHS
        assert len({line["pid"] for line in run.steps() if line["trial"] == number}) == 1
    measured(f"kill -9 of a trial's process on Ray: it goes on after {begun[ONCE][2] - killed_at:.1f} s, "
             f"{steps['digits', ONCE] - EPOCHS} step repeated")  # fmt: skip
