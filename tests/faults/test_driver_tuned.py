"""A tuned comparison whose driver is killed, and one of which several trials run at a time: the same rows follow."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ablate.core.trial import TUNE_SEED_BASE
from support.faults import killing
from support.faults.study_runs import LOCAL, StudyRun
from support.page_reader import Reader

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
TUNING, ROWS = 2 * 4, 4  # trials, one report each
RATE = "config.rate"


def ledger_of(run: StudyRun) -> list[tuple[Any, str]]:
    """Return configuration and state of each trial."""
    return [(trial.config.to_json(), str(trial.state)) for trial in run.trials()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    """The study, run without interruption and one trial at a time."""
    run = StudyRun(folder=tmp_path_factory.mktemp("whole"), text=STUDY)
    command = run.compare()
    assert command.wait() == 0, command.output
    return run


def test_each_seed_is_trained_at_the_best_rate_of_its_tuning_seed(whole: StudyRun) -> None:
    trials, reports = (pl.read_parquet(whole.home / f"{name}.parquet") for name in ("trials", "reports"))
    seeds = reports.drop("stage").join(trials, on=["dataset", "trial"], suffix="_mean")
    tuning = seeds.filter(stage="tune").sort("val_accuracy", descending=True).unique(["variant", "seed"], keep="first")
    best = {
        (row, seed - TUNE_SEED_BASE): rate for row, seed, rate in tuning.select("variant", "seed", RATE).iter_rows()
    }
    rows = seeds.filter(stage="search")
    assert {(row, seed): rate for row, seed, rate in rows.select("variant", "seed", RATE).iter_rows()} == best
    assert trials.filter(stage="search").height == ROWS > 2, "the seeds of a row have several winners"


@pytest.mark.parametrize(("when", "report"), [("after", 3), ("before", TUNING), ("after", TUNING)])
def test_killed_in_its_tuning_and_at_its_end(whole: StudyRun, tmp_path: Path, when: killing.When, report: int) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY)
    assert run.compare(inject=partial(killing.at_report, when, report)).wait() == -9
    status = run.start("status", run.name, "--runs-dir", str(run.runs))
    assert status.wait() == 0, status.output
    committed = report - (when == "before")
    said = " ".join(status.output.split())
    assert "Interrupted (here: tuning)." in said
    assert f"Budget left: here 2 of 2 trials, here {TUNING - committed} of 8 tuning trials." in said
    command = run.compare()
    assert command.wait() == 0, command.output
    assert ledger_of(run) == ledger_of(whole)


@pytest.mark.parametrize(("first", "second"), [(TUNING + 1, 3), (TUNING + 2, TUNING + 1)])
def test_killed_among_its_rows_and_in_its_extension(tmp_path: Path, whole: StudyRun, first: int, second: int) -> None:
    """The driver dies after a part of a row, then, with two more seeds, in the further tuning or after a row's part."""
    longer = STUDY.replace("replicates: 3", "replicates: 5")
    runs = []
    for name, kills in (("killed", True), ("straight", False)):
        run = StudyRun(folder=tmp_path / name, text=STUDY)
        if kills:
            assert run.compare(inject=partial(killing.at_report, "after", first)).wait() == -9
        assert run.compare().wait() == 0
        assert ledger_of(run) == ledger_of(whole)
        run.file.write_text(longer)
        if kills:
            assert run.compare("--extend", inject=partial(killing.at_report, "after", second)).wait() == -9
        command = run.compare("--extend")
        assert command.wait() == 0, command.output
        runs.append(ledger_of(run))
    assert runs[0] == runs[1]
    assert runs[0][: len(ledger_of(whole))] == ledger_of(whole), "nothing is trained again"
    further = runs[0][len(ledger_of(whole)) :]
    assert {tuple(config["seeds"]) for config, _ in further if config["stage"] == "tune"} == {(2_000_003, 2_000_004)}


@pytest.mark.slow
def test_two_trials_at_a_time_give_the_same_rows(whole: StudyRun, tmp_path: Path) -> None:
    options = ("--executor", "ray", "--cpus-per-trial", "1", *LOCAL[2:])
    run = StudyRun(folder=tmp_path, text=STUDY, options=options, cpus=2)
    command = run.compare()
    assert command.wait() == 0, command.output
    assert ledger_of(run) == ledger_of(whole)


def test_a_row_that_nothing_could_tune_is_named_and_stays_as_it_is(tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY.replace("parts: {part", "parts: {other: {config: {arm: broken}}, part"))
    command = run.compare()
    assert command.wait() == 1, command.output
    assert "without-other" in command.output.splitlines()[-1]
    states = {(t.config.stage, t.config.variant, str(t.state)) for t in run.trials()}
    assert {each for each in states if each[1] == "without-other"} == {("tune", "without-other", "FAIL")}
    assert {each[1] for each in states if each[0] == "search"} == {"complete", "without-part"}
    page = Reader((run.home / "report" / "index.html").read_text(encoding="utf-8")).text
    said = "not trained on 3 of 3 seeds, for which no tuning run is complete"
    assert said in page
    assert said in " ".join(command.output.split())
    failed = next(t.key.number for t in run.trials() if str(t.state) == "FAIL")
    again = run.start("retry", run.name, str(failed), "--runs-dir", str(run.runs))
    assert again.wait() != 0
    assert "the rows are trained with the values that were best without it" in " ".join(again.output.split())
    status = run.start("status", run.name, "--runs-dir", str(run.runs))
    assert status.wait() == 0
    assert "Finished: no trial is left to run." in status.output
