"""`ablate export`: Optuna, pandas and polars read back what the ledger holds."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import polars as pl
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import StaticPool
from sqlalchemy.event import listen

from ablate.core.objectives import means
from ablate.core.trial import Decision
from ablate.results.front.front import front
from ablate.results.trials.tables import trials_table
from ablate.studies.optuna_file import _insert, real_distribution, real_value
from ablate.study.space import Choices, FloatRange
from support.commands import refused, succeed
from support.searches import report_at, run_all, run_trial
from support.status_driver import Driver

SPACE = """\
study: looked
datasets: {digits: {patch: 4}, more: {task: digits, patch: 4}}
model:
  width: {int: [8, 64], step: 8}
  depth: {int: [1, 32], log: true}
  similarity: {choices: [separate, shared, collapsed]}
  heads: {choices: [1, 2, 4], when: {model.similarity: [separate, shared]}}
  mlp: {choices: [none, 64]}
training:
  epochs: 9
  learning_rate: {float: [1.0e-4, 1.0e-1], log: true}
  label_smoothing: {float: [0.0, 0.3], step: 0.1}
sampler: {name: random}
scheduler: {name: asha, reduction: 3, min_epochs: 3}
constraints: [params <= 4000, val_loss <= 0.8]
replicates: 2
budget: {trials: 40}
confirm: {replicates: 2}
"""
ONE = SPACE.replace("scheduler:", "objectives: [{metric: val_accuracy, direction: maximize}]\nscheduler:").replace(
    "constraints: [params <= 4000, val_loss <= 0.8]", "constraints: []"
)
DISTRIBUTIONS = {
    "model.width": IntDistribution(8, 64, step=8),
    "model.depth": IntDistribution(1, 32, log=True),
    "model.similarity": CategoricalDistribution(("separate", "shared", "collapsed")),
    "model.heads": CategoricalDistribution((1, 2, 4)),
    "model.mlp": CategoricalDistribution(("none", 64)),
    "training.learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
    "training.label_smoothing": FloatDistribution(0.0, 0.3, step=0.1),
}


def filled(folder: Path, text: str = SPACE, *, failed: bool = True) -> Driver:
    """Return a driver whose study has a trial in every state: complete, stopped, failed, running and paused."""
    driver = Driver(folder, text)
    driver.run(60)
    if failed:
        driver.search.fail(next_config(driver).key, "it broke")
    for epochs in (2, 1):
        config = next_config(driver)
        for epoch in range(1, epochs + 1):
            assert driver.search.report(config.key, report_at(config, epoch)) is Decision.CONTINUE
    driver.search.pause(config.key)
    return driver


def next_config(driver: Driver) -> Any:
    config = driver.search.next_trial()
    assert config is not None
    return config


def exported(capfd: pytest.CaptureFixture[str], driver: Driver, *more: str) -> Path:
    """Export to an Optuna storage and return the path that the command says."""
    out = succeed(capfd, "export", "optuna", "looked", "--runs-dir", str(driver.runs), *more)
    assert "looked/digits, looked/more" in out
    return Path(out.strip().splitlines()[-1].removeprefix("Written: "))


def loaded(file: Path, dataset: str = "digits") -> optuna.Study:
    return optuna.load_study(study_name=f"looked/{dataset}", storage=f"sqlite:///{file}")


def test_optuna_reads_back_states_values_ranges_and_the_front(tmp_path: Path, capfd: Any) -> None:
    driver = filled(tmp_path)
    file = exported(capfd, driver)
    assert file == (driver.runs / "looked" / "optuna.db").absolute()
    seen: set[str] = set()
    for dataset in ("digits", "more"):
        study = loaded(file, dataset)
        assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
        assert study.metric_names == ["val_accuracy", "params"]
        records = {t.key.number: t for t in driver.ledger.trials("looked", dataset)}
        assert [trial.user_attrs["trial"] for trial in study.trials] == list(records)
        for trial in study.trials:
            record = records[trial.user_attrs["trial"]]
            seen.add(record.state)
            assert trial.state.name == record.state
            assert trial.params == pytest.approx(record.config.parameters)
            assert trial.distributions == {name: DISTRIBUTIONS[name] for name in trial.params}
            check_reports(trial, driver, dataset)
            check_times(trial, record)
        table = trials_table(driver.ledger.snapshot("looked")).filter(pl.col("dataset") == dataset)
        expected = set(front(table, driver.study.objectives, constraints=driver.study.constraints)["trial"])
        assert {trial.user_attrs["trial"] for trial in study.best_trials} == expected
        unconstrained = set(front(table, driver.study.objectives)["trial"])
        assert expected != unconstrained, "the constraints must decide something"
    assert seen == {"COMPLETE", "PRUNED", "FAIL", "RUNNING", "WAITING"}


def check_reports(trial: FrozenTrial, driver: Driver, dataset: str) -> None:
    """Compare a trial's values, curve and violations with the ledger's reports, in the test's own words."""
    number = trial.user_attrs["trial"]
    reports = driver.ledger.reports("looked", dataset, number)
    by_epoch = {r.epoch: [o.metrics for o in reports if o.epoch == r.epoch] for r in reports}
    curve = {epoch: sum(m["val_accuracy"] for m in rows) / len(rows) for epoch, rows in by_epoch.items()}
    assert trial.intermediate_values == curve
    if trial.state not in (TrialState.COMPLETE, TrialState.PRUNED):
        assert trial.values is None
        return
    [params] = [t.params for t in driver.ledger.trials("looked", dataset) if t.key.number == number]
    last = means(by_epoch[max(by_epoch)])
    assert params is not None
    assert trial.values == [last["val_accuracy"], params]
    assert trial.user_attrs["params"] == params
    expected = [(params - 4000) / 4000, (last["val_loss"] - 0.8) / 0.8]
    assert list(trial.constraints.values()) == pytest.approx(expected)


def check_times(trial: FrozenTrial, record: Any) -> None:
    start, end = trial.datetime_start, trial.datetime_complete
    assert start == (None if record.state == "WAITING" else datetime.fromtimestamp(record.started_at))
    assert end == (datetime.fromtimestamp(record.finished_at) if record.state.finished else None)


def test_importance_runs_on_a_study_of_one_objective(tmp_path: Path, capfd: Any) -> None:
    driver = filled(tmp_path, ONE)
    study = loaded(exported(capfd, driver, str(tmp_path / "one.db")).resolve())
    found = optuna.importance.get_param_importances(study)
    assert sum(found.values()) == pytest.approx(1)
    assert "training.learning_rate" in found
    table = trials_table(driver.ledger.snapshot("looked")).filter(pl.col("dataset") == "digits")
    [best] = front(table, driver.study.objectives)["trial"]
    assert study.best_trial.user_attrs["trial"] == best


def test_exporting_again_shows_the_present_and_replaces_only_its_own_file(tmp_path: Path, capfd: Any) -> None:
    driver = filled(tmp_path, failed=False)
    file = exported(capfd, driver)
    paused, new = next_config(driver), next_config(driver)
    assert loaded(file, paused.key.dataset).trials[paused.key.number].state is TrialState.WAITING
    for config in (paused, new):
        run_trial(driver.search, config)
    assert exported(capfd, driver) == file
    for config in (paused, new):
        assert loaded(file, config.key.dataset).trials[config.key.number].state.is_finished()
    assert [path.name for path in file.parent.iterdir() if path.name.startswith("optuna")] == ["optuna.db"]
    foreign = tmp_path / "notes.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE kept (x)")
    optuna.create_study(study_name="mine", storage=f"sqlite:///{file}")
    (tmp_path / "text").write_text("kept")
    for kept in (foreign, file, tmp_path / "text", tmp_path):
        content = kept.read_bytes() if kept.is_file() else b""
        err = refused(capfd, "export", "optuna", "looked", str(kept), "--runs-dir", str(driver.runs))
        assert "no export of study 'looked'" in " ".join(err.split())
        assert (kept.read_bytes() if kept.is_file() else b"") == content


def test_a_search_that_was_confirmed_exports_its_search(tmp_path: Path, capfd: Any) -> None:
    driver = Driver(tmp_path)
    run_all(driver.search)
    study = loaded(exported(capfd, driver))
    assert [trial.user_attrs["trial"] for trial in study.trials] == [0, 1, 2, 3]
    assert len(driver.ledger.trials("looked", "digits")) > 4


@pytest.mark.parametrize("number", range(31))
def test_a_stepped_float_is_a_value_of_its_distribution(number: int) -> None:
    spec = FloatRange(float=(0.1, 3.15), step=0.1)
    value = 0.1 + number * 0.1
    found = real_distribution(spec)
    assert found == FloatDistribution(0.1, 3.1, step=0.1)
    assert found._contains(real_value(spec, value))
    assert real_value(spec, value) == pytest.approx(value, rel=1e-12)


def test_choices_that_python_takes_for_equal_stay_apart() -> None:
    spec = Choices(choices=(1, True, "1"))
    assert real_distribution(spec) == CategoricalDistribution(("1", "true", '"1"'))
    assert [real_value(spec, value) for value in spec.choices] == ["1", "true", '"1"']


@pytest.mark.parametrize("place", ["sqlite:///", "sqlite:///one.db"])
def test_an_export_to_a_url_is_refused(place: str, tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    driver = filled(tmp_path)
    err = refused(capfd, "export", "optuna", "looked", place, "--runs-dir", str(driver.runs))
    assert "write the path of a file, such as looked.db, and no URL" in err
    assert not Path("sqlite:").exists()


def test_an_unknown_study_is_one_line_and_nothing_is_written(tmp_path: Path, capfd: Any) -> None:
    driver = filled(tmp_path)
    err = refused(capfd, "export", "optuna", "loked", str(tmp_path / "out"), "--runs-dir", str(driver.runs))
    assert "Did you mean 'looked'" in err
    assert not (tmp_path / "out").exists()
    assert [path.name for path in driver.runs.iterdir()] == ["looked"]


def test_trials_are_inserted_as_optuna_does_and_with_few_statements() -> None:
    forms = {
        "x": FloatDistribution(0, 1),
        "c": CategoricalDistribution(("a", 1, None)),
        "n": IntDistribution(1, 64, log=True),
    }
    trials = [
        create_trial(
            state=TrialState.COMPLETE if i % 3 else TrialState.PRUNED,
            values=[i / 7, math.inf] if i % 3 else None,
            params={"x": i / 60, "n": i + 1, **({"c": ("a", 1, None)[i % 3]} if i % 2 else {})},
            distributions={name: form for name, form in forms.items() if name != "c" or i % 2},
            user_attrs={"trial": 2 * i, "error": None},
            system_attrs={"constraints": [0.1, -2.0]},
            intermediate_values={1: 0.5, 2: math.nan, 3: -math.inf},
        )
        for i in range(30)
    ]
    stored, statements = [], list[str]()
    for bulk in (False, True):
        storage = RDBStorage("sqlite://", engine_kwargs={"poolclass": StaticPool})
        listen(storage.engine, "before_cursor_execute", lambda *said: statements.append(said[2]))
        for name in ("s/one", "s/two"):
            made = optuna.create_study(storage=storage, study_name=name, directions=["minimize", "maximize"])
            sent = len(statements)
            if bulk:
                _insert(storage, storage.get_study_id_from_name(name), trials, forms)
                assert len(statements) - sent < 12
            else:
                made.add_trials(trials)
            stored.append(list(map(repr, made.get_trials())))
    assert stored[:2] == stored[2:]
