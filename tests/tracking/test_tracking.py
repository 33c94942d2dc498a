"""MLflow's runs equal the ledger, however often it is synced, resumed, interrupted or cleaned up."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ablate.base.errors import RegistryError
from ablate.core.trial import Report, TrialConfig, TrialState
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.training.family import family
from ablate.engine.training.train_config import Schedule, TrainConfig
from ablate.ledger import Ledger, NewTrial
from ablate.tracking import build_trackers
from ablate.tracking.contents import run_name
from support.ledgers import Clock
from support.tracked import NAN, WRITES, World, mlflow, runs, world

__all__ = ["runs", "world"]


@pytest.mark.services
def test_runs_equal_the_ledger(world: World) -> None:
    """A second reading of the ledger, in the test's own words, gives what MLflow's client returns."""
    world.plant()
    tracker = world.tracker()
    tracker.sync()
    runs, trials = world.trial_runs(), world.ledger.trials(world.name)
    assert set(runs) == {(t.key.dataset, t.key.number) for t in trials}
    assert len(runs) == 5
    studies = [run for run in world.mlflow_runs() if run.data.tags["ablate.kind"] == "study"]
    parents = {run.data.tags["ablate.dataset"]: run for run in studies}
    assert len(studies) == 2
    assert len(world.mlflow_runs()) == 7
    for trial in trials:
        run = runs[trial.key.dataset, trial.key.number]
        tags, params = run.data.tags, run.data.params
        assert run.info.run_id == trial.mlflow_run_id
        assert tags["mlflow.parentRunId"] == parents[trial.key.dataset].info.run_id
        assert (tags["ablate.state"], tags["ablate.stage"]) == (trial.state, trial.config.stage)
        assert run.info.start_time == int(trial.started_at * 1000)  # type: ignore[operator]
        assert run.info.end_time == (None if trial.finished_at is None else int(trial.finished_at * 1000))
        model = {k.removeprefix("model."): json_or_text(v) for k, v in params.items() if k.startswith("model.")}
        assert ModelConfig.model_validate(model) == family(trial.config).model
        assert float(params["training.learning_rate"]) == family(trial.config).training.learning_rate
        assert (params["taste"], json.loads(params["seeds"])) == ("sour", list(trial.config.seeds))
        sizes = {"params": 12345.0, "params_body": 9876.0, "flops": 2.0**40, "q": (1437 - 144) * 10 / 12345}
        expected = {(name, 0): (value, int(trial.created_at * 1000)) for name, value in sizes.items()}
        for report in world.ledger.reports(world.name, trial.key.dataset, trial.key.number):
            if report.replicate == 0:
                expected["wall_seconds", report.epoch] = (1.5 * report.epoch, int(report.created_at * 1000))
            for name, value in report.metrics.items():
                when = int(report.created_at * 1000)
                if len(trial.config.seeds) > 1:
                    expected[f"{name}/replicate_{report.replicate}", report.epoch] = (value, when)
                sum_so_far = expected.get((name, report.epoch), (0.0, when))[0]
                expected[name, report.epoch] = (sum_so_far + value / len(trial.config.seeds), when)
        found = {key: value for key, value in world.history(run).items() if key[0] != "ablate.rank"}
        assert same(found, expected)
    ranks = {where: run.data.metrics.get("ablate.rank") for where, run in runs.items()}
    assert ranks == {("one", 3): 1, ("one", 0): 2, ("one", 1): 3, ("one", 2): 4, ("two", 0): None}
    statuses = {where: run.info.status for where, run in runs.items()}
    assert statuses == {
        ("one", 0): "FINISHED", ("one", 1): "KILLED", ("one", 2): "FAILED", ("one", 3): "FINISHED",
        ("two", 0): "RUNNING",
    }  # fmt: skip
    assert runs["one", 0].data.tags["ablate.variant"] == "full model"
    assert runs["one", 3].data.tags["ablate.source"] == "0"
    assert runs["one", 2].data.tags["ablate.error"] == "diverged at epoch 1"


@pytest.mark.services
def test_repeating_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync twice, from a fresh tracker, and from one whose ledger names no run."""
    world.plant()
    first = world.tracker()
    first.sync()
    first.sync()
    before = world.snapshot()
    world.tracker().sync()
    assert world.snapshot() == before
    forgotten = world.tracker()
    monkeypatch.setattr(world.ledger, "trials", without_ids(world.ledger.trials))
    forgotten.sync()
    assert world.snapshot() == before


def test_seeds_of_one_network_are_pooled_in_the_run_of_its_first_trial(world: World) -> None:
    values = {0: (0.5, 0.25), 1: (0.4, 0.2), 2: (0.3, 0.6, 0.9)}
    world.add(0)
    first = world.add(1, stage="confirm", source=0)
    for key, number in ((world.key(0), 0), (first, 1)):
        world.report(key, 1, *values[number], state=TrialState.COMPLETE)
    tracker = world.tracker()
    tracker.sync()
    assert not any(name.startswith("pooled/") for name, _ in world.history(world.trial_runs()["one", 1]))
    more = world.add(2, stage="confirm", source=0, replicates=3)
    world.report(more, 1, *values[2])
    tracker.sync()
    world.report(more, 2, 0.3, 0.6, 0.9, state=TrialState.COMPLETE)
    tracker.sync()
    history = world.history(world.trial_runs()["one", 1])
    pooled = {name: value for (name, _), (value, _) in history.items() if name.startswith("pooled/")}
    assert pooled["pooled/seeds"] == 5
    assert pooled["pooled/val_loss"] == pytest.approx((0.4 + 0.2 + 0.3 + 0.6 + 0.9) / 5)
    assert not any(name.startswith("pooled/") for name, _ in world.history(world.trial_runs()["one", 0]))
    before = world.snapshot()
    world.tracker().sync()
    assert world.snapshot() == before
    assert world.trial_runs()["one", 2].info.run_name == "one 0000 confirmed by 0002"


def test_names_sort_by_trial_and_descriptions_say_the_state(world: World) -> None:
    world.plant()
    world.tracker().sync()
    shown = {run.info.run_name: run.data.tags["mlflow.note.content"] for _, run in sorted(world.trial_runs().items())}
    assert shown == {
        "one 0000 · full model · width 60 · taste sour": "complete",
        "one 0001 · width 62 · taste sour": "stopped early, 1 of 9 epochs",
        "one 0002 · width 64 · taste sour": "failed: diverged at epoch 1",
        "one 0000 confirmed by 0003": "complete, confirms trial 0 on 1 seed",
        "two 0000 · width 60 · taste sour": "running, 1 of 9 epochs",
    }
    networks = {run.info.run_name[:8]: run.data.tags["ablate.network"] for run in world.trial_runs().values()}
    assert networks == {"one 0000": "0000", "one 0001": "0001", "one 0002": "0002", "two 0000": "0000"}
    assert run_name(world.ledger.trials(world.name)[0].config, several=False).startswith("0000 · full model")
    experiment = world.client().get_experiment_by_name(world.name)
    assert "maximize val_accuracy, minimize params" in experiment.tags["mlflow.note.content"]


def test_an_interrupted_study_leaves_none_running_and_goes_on_in_the_same_runs(world: World) -> None:
    key = world.add(0)
    world.report(key, 1, 0.5, 0.25)
    tracker = world.tracker()
    tracker.sync()
    run_id = world.trial_runs()["one", 0].info.run_id
    tracker.close()
    assert {run.info.status for run in world.mlflow_runs()} == {"SCHEDULED"}
    world.writer.release()
    world.writer = world.take()
    world.writer.start(key)
    second = world.tracker()
    second.sync()
    assert {run.info.status for run in world.mlflow_runs()} == {"RUNNING"}
    world.report(key, 2, 0.4, 0.2)
    second.sync()
    world.report(key, 3, 0.3, 0.1, state=TrialState.COMPLETE)
    second.close()
    run = world.trial_runs()["one", 0]
    assert run.info.run_id == run_id
    assert {step for name, step in world.history(run) if name == "val_loss"} == {1, 2, 3}
    assert {run.info.status for run in world.mlflow_runs()} == {"FINISHED"}
    finished = world.ledger.trials(world.name)[0].finished_at
    assert {run.info.end_time for run in world.mlflow_runs()} == {int((finished or 0) * 1000)}


def test_a_requeued_trial_waits_in_its_run_and_one_never_started_has_none(world: World) -> None:
    key = world.add(0)
    world.tracker().sync()
    world.writer.requeue(key, "its process died")
    config = world.ledger.trials(world.name)[0].config
    waiting = NewTrial(config=TrialConfig(**{**vars(config), "key": world.key(1)}))
    world.writer.add_trials([waiting])
    world.tracker().sync()
    assert {where: run.info.status for where, run in world.trial_runs().items()} == {("one", 0): "SCHEDULED"}


def test_a_run_that_the_user_deleted_stays_deleted(world: World) -> None:
    world.plant()
    tracker = world.tracker()
    tracker.sync()
    world.client().delete_run(world.trial_runs()["two", 0].info.run_id)
    world.report(world.key(0, "two"), 2, 0.2)
    for again in (tracker, tracker, world.tracker()):
        again.sync()
    assert len(world.trial_runs()) == 4
    world.report(world.key(0, "two"), 3, 0.1, state=TrialState.COMPLETE)
    tracker.close()
    assert {run.info.status for run in world.mlflow_runs()} == {"FINISHED", "KILLED", "FAILED"}


def test_two_studies_of_one_name_from_two_ledgers_keep_apart(runs: Path, tmp_path: Path) -> None:
    name = f"s{uuid4().hex[:10]}"
    for n in range(2):
        with Ledger.open(f"sqlite:///{tmp_path}/{n}.sqlite", clock=Clock(1e9 + n)) as ledger:
            world = World(runs, ledger, name)
            world.report(world.add(0), 1, 0.5, 0.25, state=TrialState.COMPLETE)
            world.tracker().close()
    ids = {run.data.tags["ablate.study_id"] for run in world.mlflow_runs()}
    assert len(world.mlflow_runs()) == 4
    assert len(ids) == 2


@pytest.mark.services
def test_a_finished_study_is_resumed_without_looking_at_each_trial(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        world.report(world.add(number), 1, 0.5, 0.25, state=TrialState.COMPLETE)
    tracker = world.tracker()
    tracker.sync()
    tracker.close()
    calls: list[str] = []
    for name in (*WRITES, "get_run", "search_runs"):
        monkeypatch.setattr(mlflow.MlflowClient, name, counted(calls, name, getattr(mlflow.MlflowClient, name)))
    second = world.tracker()
    second.sync()
    second.close()
    assert len(calls) < 8, calls


def test_names_and_values_that_mlflow_would_refuse_are_made_to_fit(world: World) -> None:
    key = world.add(0, replicates=1, parameters={"my.täste (ml): x": "y" * 7000})
    world.commit(key, Report(epoch=1, metrics=({"loss(µ)": 2.0},), wall_seconds=1.0), TrialState.COMPLETE)
    world.tracker().sync()
    run = world.trial_runs()["one", 0]
    [parameter] = [name for name in run.data.params if name.startswith("my.t_ste _ml__ x-")]
    assert run.data.params[parameter] == "y" * 5999 + "…"
    [metric] = [name for name in run.data.metrics if name.startswith("loss___-")]
    assert run.data.metrics[metric] == 2.0
    assert run.info.status == "FINISHED"


def test_more_points_and_settings_than_one_request_takes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    key = world.add(0, replicates=1, parameters={f"setting{n}": n for n in range(250)})
    for epoch in range(1, 501):
        world.report(key, epoch, 1 / epoch, state=TrialState.COMPLETE if epoch == 500 else None)
    sent: list[bool] = []
    real = mlflow.MlflowClient.log_batch

    def noted(self: Any, run_id: str, **what: Any) -> None:
        sent.append(any(tag.key == "ablate.state" for tag in what.get("tags", ())))
        real(self, run_id, **what)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", noted)
    world.tracker().sync()
    assert sent[:2] == [False, True], "the state is written after all points and settings"
    run = world.trial_runs()["one", 0]
    assert {f"setting{n}" for n in range(250)} <= set(run.data.params)
    assert {s: v for (m, s), (v, _) in world.history(run).items() if m == "val_loss"} == {
        epoch: 1 / epoch for epoch in range(1, 501)
    }


def test_what_a_user_changed_stays_and_a_running_trial_sends_new_points_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.plant()
    world.tracker().sync()
    client, run_id = world.client(), world.trial_runs()["one", 0].info.run_id
    client.set_tag(run_id, "mlflow.note.content", "my own words")
    client.update_run(run_id, name="mine")
    tracker = world.tracker()
    tracker.sync()
    sent: list[list[int]] = []
    real = mlflow.MlflowClient.log_batch
    monkeypatch.setattr(
        mlflow.MlflowClient,
        "log_batch",
        lambda self, run_id, **what: (sent.append([m.step for m in what["metrics"]]), real(self, run_id, **what)),
    )
    for epoch in (2, 3):
        world.report(world.key(0, "two"), epoch, 0.3)
        tracker.sync()
    assert [set(steps) for steps in sent if steps] == [{2}, {3}]
    tracker.close()
    run = client.get_run(run_id)
    assert (run.data.tags["mlflow.note.content"], run.info.run_name) == ("my own words", "mine")


def test_only_settings_that_apply_are_parameters(world: World) -> None:
    plain = TrainConfig(optimizer="sgd", schedule=Schedule(name="constant"))
    world.add(0, model=ModelConfig(), train=plain, parameters={"model.depth": 6})
    world.add(1, model=ModelConfig(mlp=0), parameters={"model.mlp": 0})
    world.add(2, model=ModelConfig(mlp_ratio=2.0), train=TrainConfig(schedule=Schedule(name="multistep")))
    world.tracker().sync()
    first, second, third = (world.trial_runs()["one", number].data.params for number in range(3))
    named = {name for name in first if name.startswith("training.")}
    assert {"training.momentum", "training.schedule.name"} <= named
    assert not named & {"training.beta1", "training.schedule.gamma", "training.schedule.floor", "training.clip_norm"}
    assert (second["model.mlp"], "model.mlp_ratio" in second, "training.momentum" in second) == ("none", False, False)
    assert ("model.mlp" in third, third["model.mlp_ratio"]) == (False, "2.0")
    assert ("training.schedule.gamma" in third, "training.schedule.floor" in third) == (True, False)


def test_report_and_tables_are_artifacts_of_every_parent(world: World, tmp_path: Path) -> None:
    world.plant()
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "index.html").write_text("<p>front</p>")
    (tmp_path / "trials.parquet").write_bytes(b"PAR1")
    for text in ("old", "<p>front</p>"):
        (tmp_path / "report" / "index.html").write_text(text)
        tracker = world.tracker()
        tracker.log_artifacts([tmp_path / "report", tmp_path / "trials.parquet"])
        assert tracker.close() == []
    parents = [run.info.run_id for run in world.mlflow_runs() if run.data.tags["ablate.kind"] == "study"]
    assert len(parents) == 2
    for run_id in parents:
        assert {file.path for file in world.client().list_artifacts(run_id)} == {"report", "trials.parquet"}
        place = Path(world.client().download_artifacts(run_id, "report/index.html"))
        assert place.read_text() == "<p>front</p>"
        assert (
            world.client().get_run(run_id).info.artifact_uri.startswith(f"{world.runs.resolve().as_uri()}/mlartifacts/")
        )


def test_a_new_sqlite_store_is_in_wal_mode_and_leaves_no_scraps(world: World, tmp_path: Path) -> None:
    world.tracker().sync()
    with closing(sqlite3.connect(world.runs / "mlflow.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert [path.name for path in world.runs.iterdir() if path.name.startswith(".")] == []


@pytest.mark.services
def test_importing_the_room_does_not_import_mlflow() -> None:
    code = "import sys, ablate.tracking; sys.exit('mlflow' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_trackers_are_found_by_name(world: World) -> None:
    home = world.runs / world.name
    same_for_all: dict[str, Any] = {
        "uri": None, "study": world.study, "ledger": world.ledger, "writer": None, "home": home,
    }  # fmt: skip
    nothing = build_trackers(["none"], **same_for_all)
    nothing.sync()
    nothing.close()
    [known] = build_trackers(["mlflow"], **same_for_all).trackers
    assert known.label == f"MLflow sqlite:///{world.runs.resolve()}/mlflow.db"
    with pytest.raises(RegistryError, match=r"tracker 'mlfow' is not known\. Did you mean 'mlflow'"):
        build_trackers(["mlfow"], **same_for_all)


def without_ids(trials: Callable[..., Any]) -> Callable[..., Any]:
    """Return `trials` of a ledger in which no run was recorded."""
    return lambda *args: [replace(trial, mlflow_run_id=None) for trial in trials(*args)]


def counted(calls: list[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return `real`, which notes each call."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return real(*args, **kwargs)

    return noted


def same(left: dict[Any, tuple[float, int]], right: dict[Any, tuple[float, int]]) -> bool:
    """Whether both hold equal values and times, NaN equal to NaN, infinity as MLflow stores it."""
    big = sys.float_info.max
    bounded = {k: (min(max(v, -big), big) if not math.isnan(v) else NAN, t) for k, (v, t) in right.items()}
    return {k: (repr(v), t) for k, (v, t) in left.items()} == {k: (repr(v), t) for k, (v, t) in bounded.items()}


def json_or_text(text: str) -> Any:
    """Return the value that a parameter's text stands for."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def test_ranks_follow_the_order_of_trials_and_are_shown_again_when_others_have_ended(world: World) -> None:
    losses = [0.5, 0.3, 0.4, 0.2]
    states = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.COMPLETE, TrialState.COMPLETE]
    tracker = world.tracker()
    seen = []
    for number, (value, state) in enumerate(zip(losses, states, strict=True)):
        world.report(world.add(number, replicates=1), 1, value, state=state)
        tracker.sync()
        found = world.trial_runs()
        seen.append([int(found["one", n].data.metrics["ablate.rank"]) for n in range(number + 1)])
    assert seen == [[1], [1, 2], [2, 3, 1], [3, 4, 2, 1]]
    tracker.close()
