"""A study whose best reports count, through the command line: one value of a trial everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import polars as pl
import pytest
from safetensors.numpy import load_file

import ablate
from ablate.api import _objective
from ablate.base.errors import RequestError
from ablate.results.trials.tables import reports_table, trials_table
from ablate.studies.locations import Locations
from ablate.studies.stored import read_study
from ablate.study import parse_study
from support.commands import LOCAL, run

CODE = """\
import math
import numpy as np

def loss(config, run, epoch):  # lowest at epoch 4, higher again at the end: overfitting
    return config["level"] + (epoch - 4) ** 2 + run.seed % 1000 / 10

def train(config, run):
    state = run.keep(model=np.zeros(1), level=config["level"])
    for epoch in run.epochs():
        state.model[:] = epoch
        value = loss(config, run, epoch)
        yield {"val_logloss": math.nan if epoch == 7 else value, "val_epoch": epoch, "train_loss": 1 / epoch}

def test(model, config):
    return {"test_logloss": config["level"] + (float(model[0]) - 4) ** 2, "test_epoch": float(model[0])}
"""
STUDY = """\
study: overfits
trainable: mine:train
datasets: [data]
epochs: 7
config: {level: {choices: [1.0, 2.0, 3.0]}}
objectives: [{metric: val_logloss, direction: minimize, read: best}]
sampler: {name: grid}
scheduler: {name: none}
budget: {trials: 3}
confirm: {replicates: 2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_best_report_is_the_value_of_a_trial_everywhere(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 0, err
    found = read_study("overfits", Locations(runs_dir=folder / "runs"))
    trials, reports = trials_table(found.snapshot), reports_table(found.snapshot)
    searched = trials.filter(stage="search")
    assert searched["state"].to_list() == ["COMPLETE"] * 3, "the last report has no value, and does not count"
    assert sorted(searched["val_logloss"]) == [1.0, 2.0, 3.0]
    assert searched["val_epoch"].to_list() == [4.0] * 3
    assert searched["epochs"].to_list() == [7] * 3, "the epochs that were trained"
    confirmed = trials.filter(stage="confirm")
    assert confirmed["test_logloss"].to_list() == [1.0]
    assert confirmed["test_epoch"].to_list() == [4.0]
    assert confirmed["val_epoch"].to_list() == [4.0]
    counted = reports.filter("counts")
    assert counted["epoch"].to_list() == [4] * counted.height
    assert counted.height == 5, "of each seed of each trial"
    assert reports.filter(~pl.col("counts"))["test_epoch"].is_null().all()
    code, out, _ = run(capfd, "status", "overfits", "--json")
    assert code == 0
    (row,) = json.loads(out)["front"]["data"]
    assert (row["logloss"], row["logloss_search"]) == (1.0, 1.0)
    code, out, _ = run(capfd, "trial", "overfits", "0", "--json")
    assert [each["epoch"] for each in json.loads(out)["reports"] if each["counts"]] == [4]
    code, out, _ = run(capfd, "trial", "overfits", "0")
    assert "The report of epoch 4 counts, as it is the best one." in out


@pytest.mark.parametrize("typed", [(), ("--trial", "0"), ("--replicate", "1")], ids=["picked", "searched", "seed"])
def test_the_network_of_the_best_report_is_exported(
    typed: tuple[str, ...], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The kept model is the number of the epoch: 4, as in the numbers beside it, and not 7, the last one."""
    assert run(capfd, "search", "study.yaml", *LOCAL)[0] == 0
    code, _, err = run(capfd, "export", "model", "overfits", "out", *typed)
    assert code == 0, err
    assert [found.tolist() for found in load_file(folder / "out" / "model.safetensors").values()] == [[4.0]]
    about = json.loads((folder / "out" / "config.json").read_text())
    assert set(about["metrics"]["val_epoch"]["values"]) == {4.0}
    loaded = ablate.load_study("overfits", runs_dir=folder / "runs").load(about["trial"])
    assert loaded.model.tolist() == [4.0]


def test_mlflow_shows_the_best_report_as_the_value_of_a_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "search", "study.yaml", "--executor", "local")
    assert code == 0, err
    (file,) = (folder / "runs").rglob("mlflow.db")
    client = mlflow.MlflowClient(f"sqlite:///{file}")
    runs = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])]
    shown = {
        r.info.run_name: (r.data.metrics["val_logloss"], r.data.metrics["val_epoch"]) for r in runs if r.data.metrics
    }
    assert shown == {
        "0000 · level 3": (3.0, 4.0),
        "0001 · level 2": (2.0, 4.0),
        "0002 · level 1": (1.0, 4.0),
        "0002 confirmed by 0003": (1.05, 4.0),
    }
    (first,) = (r.info.run_id for r in runs if r.info.run_name == "0002 · level 1")
    curve = sorted((m.step, m.timestamp, m.value) for m in client.get_metric_history(first, "val_epoch"))
    assert [(step, value) for step, _, value in curve] == [*((e, float(e)) for e in range(1, 8)), (7, 4.0)]


def test_a_study_that_goes_on_counts_the_same_reports(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "search", "study.yaml", *LOCAL)[0] == 0
    before = trials_table(read_study("overfits", Locations(runs_dir=folder / "runs")).snapshot)
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 0, err
    after = trials_table(read_study("overfits", Locations(runs_dir=folder / "runs")).snapshot)
    assert before.equals(after)
    other = STUDY.replace("read: best", "read: last")
    (folder / "study.yaml").write_text(other)
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code != 0
    assert "incomparable" in err


def test_an_objective_says_it_in_python_too() -> None:
    found = _objective("min val_logloss best")
    assert found == {"metric": "val_logloss", "direction": "minimize", "read": "best"}
    both = {"metric": "val_loss", "direction": "minimize", "log": True, "read": "best"}
    assert _objective("min val_loss log best") == _objective("min val_loss best log") == both
    for wrong in ("min val_loss best best", "min val_loss first", "best val_loss"):
        with pytest.raises(RequestError, match="'max METRIC' or 'min METRIC', then 'log', 'best', both or none"):
            _objective(wrong)


def test_a_cost_has_no_best_report() -> None:
    text = STUDY.replace("val_logloss", "wall_seconds")
    with pytest.raises(Exception, match="wall_seconds is of the whole trial, so no report is the best"):
        parse_study(text)


def test_the_first_objective_with_read_best_decides() -> None:
    several = "[{metric: val_a, direction: maximize}, {metric: val_b, direction: minimize, read: best}]"
    study = parse_study(STUDY.replace("[{metric: val_logloss, direction: minimize, read: best}]", several))
    assert study.best_report is not None
    assert (study.best_report.metric, study.best_report.direction) == ("val_b", "minimize")
