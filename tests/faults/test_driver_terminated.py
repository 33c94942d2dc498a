"""SIGTERM, as preemption sends it: running trials are paused with a checkpoint, and not one step is taken twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.faults import counting, killing
from support.faults.ledger_dump import first_difference
from support.faults.raylets import AGENTS
from support.faults.reference import STEPS, STUDY, Reference, dumped
from support.faults.study_runs import LOCAL, StudyRun
from support.processes import have_ended

RAY = ("--device", "cpu", "--tracker", "none")


def in_the_middle_of_epoch(run: StudyRun, epoch: int) -> bool:
    return len(run.steps()) >= (epoch - 1) * STEPS + STEPS // 3


def test_a_terminated_driver_pauses_in_the_middle_of_an_epoch_and_repeats_nothing(
    tmp_path: Path, reference: Reference, measured: Callable[[str], None]
) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY, pace=0.05)
    first = run.search()
    first.until(lambda: in_the_middle_of_epoch(run, 2))
    first.signal(signal.SIGTERM)
    began = time.monotonic()
    assert first.wait() == 75, first.output
    seconds = time.monotonic() - began
    assert "nothing is lost" in first.output
    assert len(run.steps()) % STEPS, "it was in the middle of an epoch"
    (run.data / counting.PACE).write_text("0")
    assert "continues" in run.finish()
    reference.compare(run, repeated=0)
    measured(f"SIGTERM to exit, one trial in the driver's process: {seconds:.2f} s, 0 steps repeated")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.faults)])
def test_a_second_signal_leaves_at_once(number: signal.Signals, tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY, pace=200.0)  # a step that takes longer than anyone waits
    command = run.search()
    command.until(lambda: bool(run.steps()))
    command.signal(number)
    time.sleep(0.5)
    assert command.code is None, "the step that is being taken ends first"
    command.signal(number)
    assert command.wait() == (75 if number is signal.SIGTERM else 130)


@pytest.mark.parametrize(
    "function",
    ["write_results", *(pytest.param(n, marks=pytest.mark.faults) for n in ("check_data", "build_trackers"))],
)
def test_terminated_where_nothing_is_trained_it_leaves_and_gives_the_study_back(
    function: str, tmp_path: Path, reference: Reference
) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY)
    command = run.search(inject=partial(killing.at_call, function, signal.SIGTERM))
    assert command.wait() == 75, command.output
    assert "nothing is lost" in command.output
    if run.began():
        with run.ledger() as ledger:
            record = ledger.study(run.name)
            assert record is not None
            assert record.held_until is None, "the next driver need not wait"
    run.finish()
    reference.compare(run, repeated=0)


@pytest.mark.faults
def test_without_enough_grace_it_leaves_all_the_same_and_loses_at_most_the_epoch(
    tmp_path: Path, reference: Reference
) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY, pace=100.0)  # seconds of a step
    command = run.search("--grace", "1")
    command.until(lambda: bool(run.steps()))
    command.signal(signal.SIGTERM)
    assert command.wait() == 75, "before the step had ended"
    (run.data / counting.PACE).write_text("0")
    run.finish()
    reference.compare(run, repeated=STEPS)


@pytest.mark.faults
def test_on_ray_every_running_trial_is_paused(tmp_path: Path, measured: Callable[[str], None]) -> None:
    text = STUDY.replace("scheduler: {name: asha, reduction: 3, min_epochs: 1}", "scheduler: {name: none}")
    text = text.replace("trials: 7", "trials: 4").replace("tpe, startup_trials: 2", "random")
    whole = StudyRun(folder=tmp_path / "whole", text=text)
    whole.finish()
    run = StudyRun(folder=tmp_path / "paused", text=text, options=RAY, cpus=2, pace=0.1)
    first = run.search()
    first.until(lambda: len(run.steps_by_trial()) == 2 and min(run.steps_by_trial().values()) > STEPS + 5)
    first.signal(signal.SIGTERM)
    began = time.monotonic()
    assert first.wait() == 75, first.output
    seconds = time.monotonic() - began
    left = first.children().items()  # of which Ray's agents may seek its head for a minute more
    assert have_ended(pid for pid, title in left if not title.startswith(AGENTS)), "Ray goes with its driver"
    (run.data / counting.PACE).write_text("0")
    again = StudyRun(folder=run.folder, text=text, options=LOCAL)  # and on the other executor at that
    again.finish()
    assert run.steps_by_trial() == whole.steps_by_trial()
    finished, expected = dumped(run), dumped(whole)
    reports = [sorted(dump["ablate_report"], key=lambda row: (row["trial_id"], row["epoch"], row["replicate"]))
               for dump in (finished, expected)]  # fmt: skip
    for row in reports[0] + reports[1]:
        del row["id"]
    assert not first_difference({"reports": reports[0]}, {"reports": reports[1]})
    measured(f"SIGTERM to exit, 2 trials on Ray: {seconds:.1f} s, 0 steps repeated")
