"""Trials that run out of memory are tried again, recorded as FAIL where it does not help, and the study goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from support.faults import counting
from support.faults.hungry import ALWAYS, ONCE, TORCH, watched_by_ray
from support.faults.lossless import study
from support.faults.study_runs import LOCAL, StudyRun

TRIALS, EPOCHS = 5, 4
RAY = ("--device", "cpu", "--tracker", "none")


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_worker_that_ray_kills_for_its_memory_is_retried_then_recorded(tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=study("gorging", trials=4, epochs=EPOCHS), options=RAY, cpus=1)
    command = run.search(inject=watched_by_ray)
    assert command.wait(400) == 0, command.output
    trials = {trial.key.number: trial for trial in run.trials()}
    states = {number: str(trial.state) for number, trial in trials.items()}
    assert states == {0: "COMPLETE", ALWAYS: "FAIL", ONCE: "COMPLETE", TORCH: "COMPLETE"}
    assert trials[ALWAYS].attempt == 3
    assert trials[ONCE].attempt == 2
    assert "memory" in str(trials[ALWAYS].error)


@pytest.mark.parametrize(
    ("options", "cpus"), [(LOCAL, None), pytest.param(RAY, 2, marks=pytest.mark.faults)], ids=["local", "ray"]
)
def test_a_trial_without_memory_is_retried_then_recorded(
    options: tuple[str, ...], cpus: int | None, tmp_path: Path
) -> None:
    run = StudyRun(folder=tmp_path, text=study("hungry", trials=TRIALS, epochs=EPOCHS), options=options, cpus=cpus)
    command = run.search(inject=partial(counting.count, "support.faults.hungry:train"))
    assert command.wait() == 0, command.output
    trials = {trial.key.number: trial for trial in run.trials()}
    assert list(trials) == list(range(TRIALS))
    states = {number: str(trial.state) for number, trial in trials.items()}
    assert states == {number: "FAIL" if number == ALWAYS else "COMPLETE" for number in range(TRIALS)}
    assert {number: trial.attempt for number, trial in trials.items()} == {0: 1, ALWAYS: 3, ONCE: 2, TORCH: 2, 4: 1}
    assert "MemoryError" in str(trials[ALWAYS].error)
    assert trials[ALWAYS].epochs_done == 1
    steps = run.steps_by_trial()
    assert {number: steps["digits", number] for number in trials} == {
        number: 1 if number == ALWAYS else EPOCHS for number in trials
    }, "what was trained before the memory ran out is not trained again"
