"""MLflow's runs equal the ledger after kills, lost answers, a store that is down, refusals and takeovers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ablate.base.errors import LedgerError
from ablate.core.trial import TrialState
from ablate.ledger import Ledger
from ablate.tracking.store import Store
from support.ledgers import Clock
from support.tracked import NAN, WRITES, World, mlflow, runs, world

__all__ = ["runs", "world"]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.services
@pytest.mark.parametrize("kind", ["killed", "answer lost"])
def test_an_end_at_every_write_leaves_neither_gaps_nor_doubles(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The n-th write, n = 1, 2, ..., is the last of its process or fails after it was done; what another process, or
    the same one, leaves in the end equals what an undisturbed one (n = 0) leaves."""
    wanted: dict[Any, Any] = {}
    for n in range(100):
        with Ledger.open(f"sqlite:///{tmp_path}/{n}.sqlite", clock=Clock()) as ledger:
            world = World(runs, ledger)
            world.report(world.add(0, replicates=1), 1, 0.5)
            world.writer.finish(world.add(1), TrialState.FAIL, "x")
            tracker = world.tracker()
            with monkeypatch.context() as patch:
                fuse = Fuse(patch, world, n, Killed if kind == "killed" else ConnectionError)
                try:
                    tracker.sync()
                    world.clock.now += 100.0
                    world.report(world.key(0), 2, 0.4, state=TrialState.COMPLETE)
                    tracker.sync()
                    world.clock.now += 100.0
                    tracker.close()
                except Killed:
                    tracker = world.tracker()
            if world.ledger.trials(world.name)[0].epochs_done == 1:
                world.report(world.key(0), 2, 0.4, state=TrialState.COMPLETE)
            tracker.close()
            seen = neutral(world.snapshot(), world.name)
            wanted = wanted or seen
            assert seen == wanted, f"{kind} at write {n}: {fuse.last}"
            assert "RUNNING" not in {status for (status, *_), *_ in seen.values()}
            if n > 0 and not fuse.last:
                break
    assert n >= 12, "too few writes were interrupted for this test to mean anything"


@pytest.mark.services
def test_a_store_that_is_down_delays_nothing_says_so_once_and_is_caught_up(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.plant()
    tracker = world.tracker()
    tracker.sync()
    calls: list[str] = []

    def refuse_connection(*_: Any, **__: Any) -> None:
        calls.append("log_batch")
        raise ConnectionError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "log_batch", refuse_connection)
        for epoch in range(2, 8):
            world.report(world.key(0, "two"), epoch, 0.3 / epoch)
            tracker.sync()  # the clock stands still: one attempt, then silence until the delay is over
        assert len(calls) == 1
        for _ in range(4):
            world.clock.now += 1000.0
            tracker.sync()
        assert len(calls) == 5
        assert [r.levelname for r in caplog.records if "cannot be kept up to date" in r.message] == ["WARNING"]
    world.report(world.key(0, "two"), 8, 0.01, state=TrialState.COMPLETE)
    world.clock.now += 1000.0
    tracker.sync()
    run = world.trial_runs()["two", 0]
    assert {s: v for (m, s), (v, _) in world.history(run).items() if m == "val_loss"} == {
        1: 0.3, **{epoch: 0.3 / epoch for epoch in range(2, 8)}, 8: 0.01
    }  # fmt: skip
    assert run.info.status == "FINISHED"
    assert sum("caught up" in r.message for r in caplog.records) == 1


def test_a_server_that_never_answers_is_named_once_without_its_password(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.plant()
    for uri in ("http://ada:pa55word@127.0.0.1:9", "postgresql+psycopg://ada:pa55word@127.0.0.1:9/db"):
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            tracker = world.tracker(uri=uri)
            for _ in range(3):
                tracker.sync()
                world.clock.now += 100.0
            tracker.close()
        assert sum("cannot be kept up to date" in r.getMessage() for r in caplog.records) == 1
        assert sum("is behind the ledger" in r.getMessage() for r in caplog.records) == 1
        assert "pa55word" not in caplog.text


def test_a_refused_trial_keeps_no_other_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.plant()
    tracker = world.tracker()
    real = mlflow.MlflowClient.log_batch

    def refuse_one(self: Any, run_id: str, **what: Any) -> None:
        if any(tag.value == "diverged at epoch 1" for tag in what.get("tags", ())):
            raise mlflow.MlflowException("no", error_code=1000)  # INVALID_PARAMETER_VALUE
        real(self, run_id, **what)

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "log_batch", refuse_one)
        tracker.sync()
    runs = world.trial_runs()
    assert runs["one", 3].info.status == "FINISHED"
    assert runs["two", 0].data.metrics
    assert runs["one", 2].info.status == "RUNNING"
    world.clock.now += 100.0
    tracker.sync()
    assert world.trial_runs()["one", 2].info.status == "FAILED"


def test_a_driver_that_was_taken_over_writes_nothing(world: World) -> None:
    key = world.add(0)
    stale = world.tracker()
    stale.sync()
    old = world.writer
    world.writer = world.take(takeover=True)
    with pytest.raises(LedgerError, match="another driver took over"):
        old.note("x")
    world.report(key, 1, 0.5, 0.25)
    stale.sync()
    stale.close()
    run = world.trial_runs()["one", 0]
    assert run.info.status == "RUNNING"
    assert "val_loss" not in run.data.metrics
    world.tracker().sync()
    assert world.trial_runs()["one", 0].data.metrics["val_loss"] == 0.375


def test_the_run_of_a_driver_overtaken_in_mid_creation_is_taken_back(world: World) -> None:
    stale_hold = world.writer
    stale = world.tracker(stale_hold)
    stale.sync()
    world.writer = world.take(takeover=True)
    world.add(0)
    stale.sync()  # finds out only when it records the run it has made
    assert stale_hold.lost
    assert world.trial_runs() == {}
    world.tracker().sync()
    assert set(world.trial_runs()) == {("one", 0)}


class Fuse:
    """Ends the n-th write of MLflow's client or of a run's id into the ledger by `error` (n = 0: none).

    A process is killed before the write, since after it is before the next; an answer is lost after it.
    """

    def __init__(self, patch: pytest.MonkeyPatch, world: World, n: int, error: type[BaseException]) -> None:
        self.left, self.error, self.last = n, error, ""
        for name in WRITES:
            patch.setattr(mlflow.MlflowClient, name, self.guard(name, getattr(mlflow.MlflowClient, name)))
        for name in ("set_mlflow_run", "set_mlflow_parent"):
            patch.setattr(world.writer, name, self.guard(name, getattr(world.writer, name)))

    def guard(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return `real`, which fails when its turn has come."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            fails = self.left == 0
            self.last = name if fails else self.last
            if fails and self.error is Killed:
                raise Killed
            result = real(*args, **kwargs)
            if fails:
                raise self.error("no answer")
            return result

        return guarded


def neutral(snapshot: dict[Any, Any], study: str) -> dict[Any, Any]:
    """Return `snapshot` without what names this very study."""
    text = repr(snapshot).replace(study, "STUDY")
    cleaned: dict[Any, Any] = eval(text, {"nan": NAN, "inf": math.inf})
    for _, tags, *_ in cleaned.values():
        tags.pop("ablate.study_id")
        tags.pop("mlflow.source.git.commit", None)
    return cleaned


@pytest.mark.parametrize(
    ("uri", "place", "unreachable"),
    [
        ("http://h:1", "file:///proc/nope/artifacts/1", True),
        ("https://h", "/nope/mlruns/3", True),
        ("http://h:1", "mlflow-artifacts:/1", False),
        ("http://h:1", "s3://bucket/1", False),
        ("sqlite:///x.db", "file:///proc/nope/artifacts/1", False),
    ],
)
def test_a_folder_of_the_servers_own_machine_is_known(uri: str, place: str, unreachable: bool) -> None:
    client = SimpleNamespace(get_experiment=lambda _: SimpleNamespace(artifact_location=place))
    assert Store(client, uri=uri, experiment_id="1").unreachable_artifacts == (place if unreachable else "")


def test_a_folder_that_is_shared_with_the_server_is_used(tmp_path: Path) -> None:
    client = SimpleNamespace(get_experiment=lambda _: SimpleNamespace(artifact_location=f"{tmp_path}/1"))
    assert Store(client, uri="http://h", experiment_id="1").unreachable_artifacts == ""
