"""A study that is resumed again and again, or finished already, gains no row; one whose file was edited is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from ablate.core.trial import TrialState
from support.faults import killing
from support.faults.ledger_dump import Dump, raw
from support.faults.reference import STUDY, Reference
from support.faults.study_runs import LOCAL, StudyRun

MLFLOW = (*LOCAL[:-1], "mlflow")


def rows(run: StudyRun) -> Dump:
    with run.ledger() as ledger:
        return raw(ledger)


def mlflow_rows(run: StudyRun) -> dict[str, list[tuple[object, ...]]]:
    """Return every row of every table of MLflow's file."""
    with closing(sqlite3.connect(f"file:{run.runs / 'mlflow.db'}?mode=ro", uri=True)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(database.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in names}


def test_resumed_twice_and_when_finished(tmp_path: Path, reference: Reference) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY)
    for commits in (3, 4):
        assert run.search(inject=partial(killing.at_report, "after", commits)).wait() == -9
    run.finish()
    reference.compare(run, repeated=0)
    before, steps = rows(run), len(run.steps())
    run.finish()
    command = run.start("resume", run.name, "--runs-dir", str(run.runs), "--data-dir", str(run.data), *LOCAL)
    assert command.wait() == 0, command.output
    assert rows(run) == before
    assert len(run.steps()) == steps


@pytest.mark.faults
def test_a_finished_study_is_resumed_without_a_new_row_in_mlflow(tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY, options=MLFLOW)
    run.finish()
    before = rows(run), mlflow_rows(run)
    run.finish()
    assert (rows(run), mlflow_rows(run)) == before


def edited(run: StudyRun, *changes: tuple[str, str]) -> None:
    text = STUDY
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    run.file.write_text(text)


def test_an_edited_file_is_refused_with_the_difference_and_extended_where_it_may_be(tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY)
    assert run.search(inject=partial(killing.at_report, "after", 3)).wait() == -9
    before = rows(run)

    edited(run, ("epochs: 3", "epochs: 4"))
    for more in ((), ("--extend",)):  # past trials would not be comparable: no option helps
        refused = run.search(*more)
        assert refused.wait() == 2
        assert "incomparable" in refused.output
        assert "epochs: 3 -> 4" in refused.output

    edited(run, ("trials: 7", "trials: 8"))
    refused = run.search()
    assert refused.wait() == 2
    assert "trials: 7 -> 8" in refused.output
    assert "--extend" in refused.output
    assert rows(run) == before, "what is refused leaves no trace"

    run.finish("--extend")
    assert len([t for t in run.trials() if t.config.stage == "search"]) == 8


@pytest.mark.faults
def test_a_finished_study_is_extended_by_replicates_and_by_time(tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY)
    run.finish()
    first = {trial.key: trial for trial in run.trials()}
    edited(run, ("replicates: 2", "replicates: 4"))
    assert run.search().wait() == 2
    run.finish("--extend")
    confirmed = [trial for trial in run.trials() if trial.config.stage == "confirm"]
    seeds = [seed for trial in confirmed for seed in trial.config.seeds]
    assert len(seeds) == len(set(seeds)) == 4
    assert {trial.config.source for trial in confirmed} == {confirmed[0].config.source}
    for key, trial in first.items():
        assert next(t for t in run.trials() if t.key == key) == trial, "what was finished is not touched"

    timed = StudyRun(folder=tmp_path / "timed", text=STUDY.replace("trials: 7", "trials: 7, wall_clock: 2s"), pace=0.05)
    timed.finish()
    searched = len([t for t in timed.trials() if t.config.stage == "search"])
    assert 0 < searched < 7
    timed.file.write_text(timed.text.replace("wall_clock: 2s", "wall_clock: 1h"))
    assert timed.search().wait() == 2
    timed.finish("--extend")
    assert len([t for t in timed.trials() if t.config.stage == "search"]) == 7
    assert {t.state for t in timed.trials()} <= {TrialState.COMPLETE, TrialState.PRUNED}
