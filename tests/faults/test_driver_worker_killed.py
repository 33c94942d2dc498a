"""`kill -9` of a trial's process on Ray, as the kernel does it when memory runs out: only that trial starts again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from support.faults import counting
from support.faults.lossless import attempts_begun, study
from support.faults.study_runs import StudyRun

EPOCHS, ONCE, ALONE, OFTEN, EVER = 12, 0, 1, 2, 3
OPTIONS = ("--device", "cpu", "--tracker", "none")


def test_a_killed_process_costs_one_step_and_one_that_always_dies_is_given_up(
    tmp_path: Path, long: bool, measured: Callable[[str], None]
) -> None:
    text = study("mortal", trials=4 if long else 2, epochs=EPOCHS)
    run = StudyRun(folder=tmp_path, text=text, options=OPTIONS, cpus=2, pace=0.4)
    (run.data / (counting.MORTAL % OFTEN)).write_text("3")  # two epochs further each time
    (run.data / (counting.MORTAL % EVER)).write_text("1")  # at the same epoch each time
    command = run.search()
    command.until(lambda: run.steps_by_trial()["digits", ONCE] >= 4)
    victim = next(line["pid"] for line in reversed(run.steps()) if line["trial"] == ONCE)
    os.kill(victim, signal.SIGKILL)
    killed_at = time.time()
    assert command.wait() == 0, command.output

    trials = {trial.key.number: trial for trial in run.trials()}
    states = {number: str(trial.state) for number, trial in trials.items()}
    assert states == {number: "FAIL" if number == EVER else "COMPLETE" for number in trials}
    expected = {ONCE: 2, ALONE: 1, OFTEN: EPOCHS // 2, EVER: 3}
    assert {number: trial.attempt for number, trial in trials.items()} == {n: expected[n] for n in trials}
    seconds = attempts_begun(run)[ONCE][2] - killed_at
    again = [event.payload["trial"] for event in run.events() if event.kind == "retried"]
    assert again.count(ONCE) == 1
    assert ALONE not in again
    steps = run.steps_by_trial()
    assert steps["digits", ONCE] <= EPOCHS + 1
    assert steps["digits", ALONE] == EPOCHS
    assert len({line["pid"] for line in run.steps() if line["trial"] == ALONE}) == 1, "no other trial was touched"
    if long:
        assert steps["digits", OFTEN] == EPOCHS + EPOCHS // 2 - 1
        assert steps["digits", EVER] == 3
        assert "its process died" in str(trials[EVER].error)
    measured(f"kill -9 of a trial's process on Ray: it goes on after {seconds:.1f} s, "
             f"{steps['digits', ONCE] - EPOCHS} step repeated")  # fmt: skip
