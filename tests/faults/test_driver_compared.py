"""A comparison under `held_out`: after its last trial the test split is opened once, whatever happens meanwhile."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import torch

from ablate.core.trial import checkpoint_folder
from ablate.engine.tasks import load_task
from ablate.engine.training import predictor
from ablate.ledger import TrialRecord
from support.faults import killing
from support.faults.study_runs import StudyRun
from support.page_reader import Reader

STUDY = """\
study: compared
datasets: {digits: {patch: 4, train_limit: 128}, again: {task: digits, patch: 2, train_limit: 128}}
model: {width: 8, depth: 1, heads: 2}
training: {epochs: 2, batch_size: 32, learning_rate: 1.0e-2}
variants: [{name: full, model: {mlp: 16}}, {name: bare, model: {mlp: none}}]
replicates: 2
compare: {baseline: full, metrics: [test_accuracy, val_accuracy]}
"""
TRAINED = 2 * 2 * 2  # reports of all trials: data sets, variants, epochs
ONE = STUDY.replace(", again: {task: digits, patch: 2, train_limit: 128}", "")


def finish(run: StudyRun, *more: str, status: int = 0) -> str:
    """Run `ablate compare` to its end, which must have this exit code; return the page as a reader sees it."""
    command = run.compare(*more)
    assert command.wait() == status, command.output
    return Reader((run.home / "report" / "index.html").read_text(encoding="utf-8")).text


def evaluating(run: StudyRun) -> list[TrialRecord]:
    """Return the trials that evaluate others."""
    return [trial for trial in run.trials() if trial.config.evaluates is not None]


def opened(run: StudyRun) -> list[str | None]:
    """Return the data sets whose test split was opened, in order."""
    return [event.dataset for event in run.events() if event.kind == "test_opened"]


def by_hand(run: StudyRun, trial: TrialRecord) -> list[float]:
    """Return each replicate's accuracy on the test split, by plain PyTorch on its checkpoint."""
    config = trial.config.origin
    data = load_task(config.task).load(None)
    found = []
    for replicate in range(len(config.seeds)):
        module = predictor(config, checkpoint_folder(run.home, config.key), replicate)
        with torch.no_grad():
            scores = module(data.tokens(data.test_inputs))
        found.append((scores.argmax(-1) == data.test_targets).double().mean().item())
    return found


def cells(run: StudyRun) -> dict[tuple[str, str, str], float]:
    """Return our number of each metric, column and variant."""
    table = pl.read_csv(run.home / "report" / "comparison.csv")
    return {(m, c, v): ours for m, c, v, ours in table.select("metric", "column", "variant", "mean").iter_rows()}


@pytest.mark.parametrize("survived", [0, 1, 3])
def test_every_network_is_read_on_test_once_though_the_driver_is_killed(tmp_path: Path, survived: int) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY)
    killed = run.compare(inject=partial(killing.at_report, "after", TRAINED + survived))
    assert killed.wait() == -9, killed.output
    assert len(opened(run)) == (survived > 0) + (survived > 2)
    page = finish(run)
    trials = run.trials()
    load_network = [trial for trial in trials if trial.config.evaluates is None]
    assert sorted((t.key.dataset, t.config.evaluates) for t in evaluating(run)) == sorted(
        (t.key.dataset, t.key.number) for t in load_network
    )
    assert {str(t.state) for t in trials} == {"COMPLETE"}
    assert sorted(opened(run)) == ["again", "digits"]
    with run.ledger() as ledger:
        reports = ledger.reports(run.name)
    own = {(r.key, r.replicate): r for r in reports if "test_accuracy" in r.metrics}
    assert len(own) == len([r for r in reports if "test_accuracy" in r.metrics]) == 2 * len(load_network)
    for trial in evaluating(run):
        expected = by_hand(run, trial)
        assert [own[trial.key, i].metrics["test_accuracy"] for i in (0, 1)] == pytest.approx(expected, abs=1e-12)
        cell = cells(run)["test_accuracy", trial.key.dataset, str(trial.config.variant)]
        assert cell == pytest.approx(sum(expected) / 2, abs=1e-12)
    assert page.count("2 of 2 trained trials read, opened once at") == 2
    assert "Test accuracy" in page
    assert "Validation accuracy" in page
    assert finish(run) == page
    assert run.trials() == trials, "a finished comparison, run again, adds nothing"


def test_what_was_not_read_on_test_is_not_said_to_be_incomplete(tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=ONE)
    assert run.compare(inject=partial(killing.at_report, "after", TRAINED // 2)).wait() == -9
    written = run.start("report", run.name, "--runs-dir", str(run.runs))
    assert written.wait() == 0, written.output
    page = Reader((run.home / "report" / "index.html").read_text(encoding="utf-8")).text
    assert "2 planned, none chosen and none stopped early: 2 complete" in page
    assert "no configuration is complete in both" not in page
    assert "not compared yet: no configuration is read on the test split in both" in page
    finish(run)
    told = run.start("trial", run.name, "2", "--runs-dir", str(run.runs))
    assert told.wait() == 0, told.output
    assert "compared/digits/2 (confirm, reads trial 0 on the test split, full): COMPLETE" in " ".join(
        told.output.split()
    )


def test_a_network_whose_checkpoint_is_missing_is_named(tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=ONE)
    assert run.compare(inject=partial(killing.at_report, "after", TRAINED // 2)).wait() == -9
    shutil.rmtree(checkpoint_folder(run.home, run.trials()[1].key))
    page = finish(run, status=1)  # a row without its number is no complete comparison
    assert {t.config.evaluates: str(t.state) for t in evaluating(run)} == {0: "COMPLETE", 1: "FAIL"}
    assert "1 of 2 trained trials read" in page
    assert "1 could not be read" in page
    assert "trial compared/digits/1 cannot be read on the test split: no whole checkpoint of its last epoch" in page
    assert cells(run)["test_accuracy", "digits", "bare"] is None
    assert cells(run)["val_accuracy", "digits", "bare"] is not None


def test_data_sets_and_seeds_that_follow_open_the_split_again(tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY.replace("metrics: [test_accuracy, val_accuracy]", "columns: {}"))
    page = finish(run, "--dataset", "again")
    assert opened(run) == ["again"]
    assert "Test accuracy" in page
    finish(run)
    assert opened(run) == ["again", "digits"]
    first = {t.key: t for t in run.trials()}
    run.file.write_text(run.text.replace("replicates: 2", "replicates: 3"))
    page = finish(run, "--extend")
    assert sorted(opened(run)) == ["again", "again", "digits", "digits"]
    assert page.count("4 of 4 trained trials read, opened 2 times: at") == 2
    assert {key: t for key, t in ((t.key, t) for t in run.trials()) if key in first} == first
    for trial in evaluating(run):
        assert trial.config.source in (0, 1)
        parts = [by_hand(run, t) for t in evaluating(run) if (t.config.source, t.key.dataset) == (
            trial.config.source, trial.key.dataset)]  # fmt: skip
        seeds = [value for part in parts for value in part]
        assert len(seeds) == 3
        cell = cells(run)["test_accuracy", trial.key.dataset, str(trial.config.variant)]
        assert cell == pytest.approx(sum(seeds) / 3, abs=1e-12)


def test_metrics_of_the_test_split_are_refused_where_validation_is_it(tmp_path: Path) -> None:
    run = StudyRun(folder=tmp_path, text=ONE + "protocol: paper\n")
    command = run.compare()
    assert command.wait() == 2
    assert "under `protocol: paper` validation is the test split: write val_accuracy" in command.output
