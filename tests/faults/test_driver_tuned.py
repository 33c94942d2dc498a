"""A tuned comparison whose driver is killed, and one of which several trials run at a time: the same rows follow."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from support.faults import killing
from support.faults.study_runs import LOCAL, Command, StudyRun
from support.page_reader import Reader
from support.planted_tuning import PEAK

STUDY = """\
study: tuned
trainable: support.planted_tuning:train
protocol: paper
datasets: {here: {}}
config: {arm: whole, rate: 0.5}
parts: {part: {config: {arm: part}}}
tune: {trials: 4, config.rate: {float: [0.001, 0.1], log: true}}
objectives: [{metric: val_accuracy, direction: maximize}]
replicates: 3
compare: {baseline: complete}
"""
TUNING = 2 * 4  # one report each


def compare(run: StudyRun, *more: str, inject: partial[None] | None = None) -> Command:
    """Start `ablate compare`."""
    where = ("--runs-dir", str(run.runs), "--data-dir", str(run.data))
    return run.start("compare", str(run.file), *where, *run.options, *more, inject=inject)


def ledger_of(run: StudyRun) -> list[tuple[Any, str]]:
    """Return configuration and state of each trial."""
    return [(trial.config.to_json(), str(trial.state)) for trial in run.trials()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    """The study, run without interruption and one trial at a time."""
    run = StudyRun(folder=tmp_path_factory.mktemp("whole"), text=STUDY)
    command = compare(run)
    assert command.wait() == 0, command.output
    return run


def test_each_row_is_trained_at_the_nearest_draw(whole: StudyRun) -> None:
    trials = pl.read_parquet(whole.home / "trials.parquet")
    for row, arm in (("complete", "whole"), ("without-part", "part")):
        tried = trials.filter(stage="tune", variant=row)["config.rate"].to_list()
        nearest = min(tried, key=lambda rate: abs(math.log10(rate) - PEAK[arm]))
        assert trials.filter(stage="search", variant=row)["config.rate"].to_list() == [nearest]


@pytest.mark.parametrize(("when", "report"), [("after", 3), ("before", TUNING), ("after", TUNING)])
def test_killed_in_its_tuning_and_at_its_end(whole: StudyRun, tmp_path: Path, when: killing.When, report: int) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY)
    assert compare(run, inject=partial(killing.at_report, when, report)).wait() == -9
    status = run.start("status", run.name, "--runs-dir", str(run.runs))
    assert status.wait() == 0, status.output
    committed = report - (when == "before")
    said = " ".join(status.output.split())
    assert "Interrupted (here: tuning)." in said
    assert f"Budget left: here 2 of 2 trials, here {TUNING - committed} of 8 tuning trials." in said
    command = compare(run)
    assert command.wait() == 0, command.output
    assert ledger_of(run) == ledger_of(whole)


@pytest.mark.slow
def test_two_trials_at_a_time_give_the_same_rows(whole: StudyRun, tmp_path: Path) -> None:
    options = ("--executor", "ray", "--cpus-per-trial", "1", *LOCAL[2:])
    run = StudyRun(folder=tmp_path, text=STUDY, options=options, cpus=2)
    command = compare(run)
    assert command.wait() == 0, command.output
    assert ledger_of(run) == ledger_of(whole)


def test_a_row_that_nothing_could_tune_is_named_and_stays_as_it_is(tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY.replace("parts: {part", "parts: {other: {config: {arm: broken}}, part"))
    command = compare(run)
    assert command.wait() == 1, command.output
    assert "without-other" in command.output.splitlines()[-1]
    states = {(t.config.stage, t.config.variant, str(t.state)) for t in run.trials()}
    assert {each for each in states if each[1] == "without-other"} == {("tune", "without-other", "FAIL")}
    assert {each[1] for each in states if each[0] == "search"} == {"complete", "without-part"}
    page = Reader((run.home / "report" / "index.html").read_text(encoding="utf-8")).text
    said = "no tuning trial is complete in 1 of 1 configurations: not trained"
    assert said in page
    assert said in " ".join(command.output.split())
    failed = next(t.key.number for t in run.trials() if str(t.state) == "FAIL")
    again = run.start("retry", run.name, str(failed), "--runs-dir", str(run.runs))
    assert again.wait() != 0
    assert "the rows are trained with the values that were best without it" in " ".join(again.output.split())
    status = run.start("status", run.name, "--runs-dir", str(run.runs))
    assert status.wait() == 0
    assert "Finished: no trial is left to run." in status.output
