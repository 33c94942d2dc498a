"""A user's own training function, killed anywhere: in the end every reported number equals the last bit."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support import own_training
from support.faults import killing
from support.faults.study_runs import LOCAL, Command, StudyRun

STUDY = """\
study: own
trainable: support.own_training:train
config: {width: {choices: [4, 6, 8]}, lr: {float: [1.0e-3, 1.0e-1], log: true}, workers: %d}
epochs: 5
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: random}
scheduler: {name: none}
replicates: 2
budget: {trials: %d}
confirm: {replicates: 2, top: 1}
"""
RAY = ("--gpus", "0", "--cpus-per-trial", "1", "--device", "cpu", "--tracker", "none")
Numbers = Mapping[tuple[str, int, int, int], Mapping[str, float]]


def study_run(folder: Path, *, trials: int, workers: int = 0, options: tuple[str, ...] = LOCAL) -> StudyRun:
    return StudyRun(folder=folder, text=STUDY % (workers, trials), options=options)


def numbers(run: StudyRun) -> Numbers:
    """Return every reported metric by stage, trial, epoch and replicate; times are not among them."""
    with run.ledger() as ledger:
        stage = {trial.key: trial.config.stage for trial in ledger.trials(run.name)}
        states = {str(trial.state) for trial in ledger.trials(run.name)}
        found = ledger.reports_since(run.name, 0)
    assert states == {"COMPLETE"}
    return {(stage[r.key], r.key.number, r.epoch, r.replicate): r.metrics for r in found}


def searching(run: StudyRun) -> Command:
    """Start the study so that each batch leaves a line."""
    return run.search(inject=partial(killing.set_environment, {own_training.FOLDER: str(run.data)}))


def batches(run: StudyRun) -> int:
    return len(run.steps())


def killed(command: Command, run: StudyRun, after: int) -> bool:
    """Kill a command after `after` more batches; return False if it had ended before."""
    aim = batches(run) + after
    while batches(run) < aim and command.code is None:
        time.sleep(0.002)
    if command.code is None:
        command.kill()
    code = command.code
    command.end()  # its DataLoader workers, which were begun by a fork server, do not notice that it is gone
    return code != 0


@pytest.fixture
def uninterrupted(tmp_path: Path) -> Callable[[int, int], Numbers]:
    def run(trials: int, workers: int) -> Numbers:
        whole = study_run(tmp_path / "whole", trials=trials, workers=workers)
        whole.finish()
        return numbers(whole)

    return run


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_killed_between_batches_reports_the_same_bits(
    workers: int,
    tmp_path: Path,
    long: bool,
    uninterrupted: Callable[[int, int], Numbers],
    measured: Callable[[str], None],
) -> None:
    kills, draws = 20 if long else 3, random.Random(7)
    trials = 8 if long else 2
    expected = uninterrupted(trials, workers)
    run = study_run(tmp_path / "killed", trials=trials, workers=workers)
    run.data.joinpath("pace").write_text("0.02")
    for _ in range(kills):
        assert killed(searching(run), run, draws.randrange(1, 16))
    run.finish()
    assert numbers(run) == expected
    measured(f"a training function of a user, {workers} DataLoader workers, killed {kills} times between batches: "
             f"{len(expected)} reports equal bit for bit")  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_function_killed_around_the_commit_of_a_report_reports_the_same_bits(
    when: killing.When,
    tmp_path: Path,
    long: bool,
    uninterrupted: Callable[[int, int], Numbers],
    measured: Callable[[str], None],
) -> None:
    trials = 8 if long else 2
    expected = uninterrupted(trials, 0)
    run = study_run(tmp_path / "killed", trials=trials)
    kills = 0
    while run.search(inject=partial(killing.at_report, when, 1 + kills % 3)).wait() == -signal.SIGKILL:
        kills += 1
    assert kills >= trials * 5 // 2
    run.finish()
    assert numbers(run) == expected
    measured(f"a training function of a user, killed {kills} times just {when} the commit of a report: "
             f"{len(expected)} reports equal bit for bit")  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_function_that_is_terminated_continues_to_the_same_bits(
    tmp_path: Path, long: bool, uninterrupted: Callable[[int, int], Numbers]
) -> None:
    trials = 8 if long else 2
    expected = uninterrupted(trials, 0)
    run = study_run(tmp_path / "paused", trials=trials)
    run.data.joinpath("pace").write_text("0.02")
    draws = random.Random(3)
    for _ in range(20 if long else 3):
        command, aim = searching(run), batches(run) + draws.randrange(1, 16)
        command.until(lambda aim=aim: batches(run) >= aim)
        command.signal(signal.SIGTERM)
        assert command.wait() == 75, command.output
    run.finish()
    assert numbers(run) == expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_function_on_ray_killed_with_its_driver_reports_the_same_bits(
    tmp_path: Path,
    long: bool,
    uninterrupted: Callable[[int, int], Numbers],
    monkeypatch: pytest.MonkeyPatch,
    measured: Callable[[str], None],
) -> None:
    kills, draws = 20 if long else 2, random.Random(5)
    trials = 12 if long else 3
    expected = uninterrupted(trials, 0)
    run = study_run(tmp_path / "killed", trials=trials, options=RAY)
    monkeypatch.setenv(own_training.FOLDER, str(run.data))
    run.data.joinpath("pace").write_text("0.05")
    for _ in range(kills):
        command = run.search(fresh=True)
        assert killed(command, run, draws.randrange(1, 30))
        command.end()
    run.data.joinpath("pace").write_text("0")
    run.finish(fresh=True)
    assert search_only(numbers(run)) == search_only(expected)
    measured(f"a training function of a user on Ray, 2 at a time, driver and Ray killed {kills} times: "
             f"{len(expected)} reports equal bit for bit")  # fmt: skip


def search_only(found: Numbers) -> dict[Any, Any]:
    """Return the reports of search and confirmation without the trials' numbers of the latter, which may differ."""
    return {key: metrics for key, metrics in found.items() if key[0] == "search"} | {
        ("confirm", key[2], key[3]): metrics for key, metrics in found.items() if key[0] == "confirm"
    }
