"""A study under an MLflow tracker: its ledger, and MLflow's own client to read back what was tracked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ablate.core.trial import Decision, Report, TrialKey, TrialState
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.training.train_config import TrainConfig
from ablate.ledger import Ledger, NewTrial, StudyWriter
from ablate.study import Study
from ablate.tracking import build_trackers
from ablate.tracking.contents import RANK
from ablate.tracking.tracker import Several
from support.entries import entry
from support.ledgers import SHAPE, SIZE, Clock
from support.trials import family_trial

mlflow = pytest.importorskip("mlflow")
NAN = math.nan
WRITES = (
    "create_experiment", "create_run", "log_batch", "set_terminated", "update_run", "delete_run", "log_artifact",
    "log_artifacts", "log_text",
)  # fmt: skip


@pytest.fixture
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of runs, and so one MLflow store, for the tests of all modules: it takes seconds to make."""
    folder = tmp_path_factory.getbasetemp() / "tracked-runs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def own_world(tmp_path: Path) -> Iterator[World]:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite", clock=Clock()) as ledger:
        yield World(tmp_path, ledger)


@pytest.fixture
def world(runs: Path, tmp_path: Path) -> Iterator[World]:
    """A study with a fresh ledger on the shared store."""
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite", clock=Clock()) as ledger:
        yield World(runs, ledger)


class World:
    """One study, its ledger, the trackers that come and go, and MLflow read back through its own client."""

    def __init__(self, runs: Path, ledger: Ledger, name: str | None = None, *, takeover: bool = False) -> None:
        self.name = name or f"s{uuid4().hex[:10]}"
        self.runs, self.ledger = runs, ledger
        tasks = {label: {"task": "digits", "patch": 2} for label in ("one", "two")}
        self.study = Study.model_validate({"study": self.name, "datasets": tasks, "seed": 3})
        self.writer = self.take(takeover=takeover)

    def take(self, **changes: Any) -> StudyWriter:
        """Take the study's hold."""
        values: dict[str, Any] = {"file_text": "x", "fingerprint": "f", "seed": 3, "holder": "ada"}
        return self.ledger.acquire(self.name, **(values | changes))

    def tracker(self, writer: StudyWriter | None = None, uri: str | None = None, name: str = "mlflow") -> Several:
        """Return a tracker as a new process would make it."""
        return build_trackers(
            [name], uri=uri, study=self.study, ledger=self.ledger, writer=writer or self.writer,
            home=self.runs / self.name,
        )  # fmt: skip

    def key(self, number: int, dataset: str = "one") -> TrialKey:
        """Return a trial's key."""
        return TrialKey(study=self.name, dataset=dataset, number=number)

    def add(self, number: int, dataset: str = "one", *, replicates: int = 2, **changes: Any) -> TrialKey:
        """Add a trial and start it."""
        values: dict[str, Any] = {
            "key": self.key(number, dataset),
            "stage": "search",
            "model": ModelConfig(width=60 + 2 * number, heads=2, bias=("query", "output")),
            "task": entry(task="digits", patch=(2, 2)),
            "train": TrainConfig(epochs=9, learning_rate=1e-3 / (number + 1)),
            "seeds": tuple(range(replicates)),
            "study_seed": 3,
            "parameters": {"model.width": 60 + 2 * number, "taste": "sour"},
        }
        self.writer.add_trials([NewTrial(config=family_trial(**(values | changes)), size=SIZE, facts=SHAPE)])
        self.writer.start(self.key(number, dataset))
        return self.key(number, dataset)

    def report(self, key: TrialKey, epoch: int, *losses: float, state: TrialState | None = None) -> None:
        """Commit a report of these validation losses, one per replicate."""
        metrics = tuple({"val_loss": loss, "val_accuracy": 1 - loss} for loss in losses)
        self.commit(key, Report(epoch=epoch, metrics=metrics, wall_seconds=1.5 * epoch), state)

    def commit(self, key: TrialKey, report: Report, state: TrialState | None) -> None:
        """Commit a report, a second after the last."""
        self.ledger._clock.now += 1.0009  # type: ignore[attr-defined]
        self.writer.report(key, report, Decision.CONTINUE, state)

    def plant(self) -> None:
        """Fill the ledger with a trial of every kind, on two data sets."""
        first = self.add(0, variant="full model")
        self.report(first, 1, 0.5, 0.25)
        self.report(first, 3, 0.1, NAN, state=TrialState.COMPLETE)
        self.report(self.add(1), 1, 0.9, 0.8, state=TrialState.PRUNED)
        self.writer.finish(self.add(2), TrialState.FAIL, "diverged at epoch 1")
        confirm = self.add(3, stage="confirm", source=0, replicates=1)
        self.report(confirm, 1, math.inf, state=TrialState.COMPLETE)
        self.report(self.add(0, "two", replicates=1), 1, 0.3)

    def client(self) -> Any:
        """Return a client of MLflow's own."""
        return mlflow.MlflowClient(tracking_uri=f"sqlite:///{self.runs.resolve()}/mlflow.db")

    def mlflow_runs(self) -> list[Any]:
        """Return every run of the study that is not deleted."""
        experiment = self.client().get_experiment_by_name(self.name)
        return [] if experiment is None else list(self.client().search_runs([experiment.experiment_id]))

    def trial_runs(self) -> dict[tuple[str, int], Any]:
        """Return the runs of trials by data set and number; fail where one has two."""
        found: dict[tuple[str, int], Any] = {}
        for run in self.mlflow_runs():
            if "ablate.trial" in run.data.tags:
                where = (run.data.tags["ablate.dataset"], int(run.data.tags["ablate.trial"]))
                assert where not in found, f"two runs of trial {where}"
                found[where] = run
        return found

    def history(self, run: Any) -> dict[tuple[str, int], tuple[float, int]]:
        """Return (value, timestamp) by metric and step; fail where one is there twice."""
        found: dict[tuple[str, int], tuple[float, int]] = {}
        for name in run.data.metrics:
            for point in self.client().get_metric_history(run.info.run_id, name):
                assert (name, point.step) not in found, f"{name} has step {point.step} twice"
                found[name, point.step] = (point.value, point.timestamp)
        return found

    def snapshot(self) -> dict[Any, Any]:
        """Return all that MLflow holds of the study, apart from the runs' random ids."""
        names = {run.info.run_id: run.info.run_name for run in self.mlflow_runs()}
        shown: dict[Any, Any] = {}
        for run in self.mlflow_runs():
            tags = {k: names.get(v, v) for k, v in run.data.tags.items()}
            history = {k: (str(value), when) for k, (value, when) in self.history(run).items()}
            ranks = sorted(k for k in history if k[0] == RANK)  # how often they were shown depends on when
            history = {k: v for k, v in history.items() if k not in ranks[:-1]}
            info = (run.info.status, run.info.start_time, run.info.end_time)
            files = [file.path for file in self.client().list_artifacts(run.info.run_id)]
            files += [file.path for name in files for file in self.client().list_artifacts(run.info.run_id, name)]
            assert run.info.run_name not in shown
            shown[run.info.run_name] = (info, tags, run.data.params, history, sorted(set(files)))
        return shown
