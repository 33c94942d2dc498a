"""MLflow's runs equal the ledger after kills, lost answers, a store that is down, refusals and takeovers."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from ablate.base.errors import LedgerError
from ablate.core.trial import OUTPUT, TrialState, checkpoint_folder
from ablate.ledger import Ledger
from ablate.tracking.store import elsewhere
from ablate.tracking.tracker import Several
from support.ledgers import Clock
from support.tracked import NAN, WRITES, World, mlflow, runs, world

__all__ = ["runs", "world"]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.services
@pytest.mark.parametrize(("kind", "first"), [("killed", 1), ("answer lost", 3)])
def test_an_end_at_any_write_leaves_neither_gaps_nor_doubles(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, first: int
) -> None:
    """The n-th write is the last of its process, or fails after it was done; what the next process leaves equals what
    an undisturbed one (n = 0) leaves."""
    wanted: dict[Any, Any] = {}
    for n in (0, *range(first, 200, 6)):
        with Ledger.open(f"sqlite:///{tmp_path}/{n}.sqlite", clock=Clock()) as ledger:
            world = World(runs, ledger)
            begin(world)
            with monkeypatch.context() as patch:
                fuse = Fuse(patch, world, n, Killed if kind == "killed" else ConnectionError)
                with suppress(Killed):
                    tracker = world.tracker()
                    tracker.sync()
                    finish(world)
                    tracker.sync()
                    close(world, tracker)
            finish(world)
            close(world, world.tracker())
            seen = neutral(world.snapshot(), world.name)
            wanted = wanted or seen
            assert seen == wanted, f"{kind} at write {n}: {fuse.last}"
            if n > 0 and not fuse.last:
                break
    assert {status for (status, *_), *_ in wanted.values()} == {"FINISHED", "FAILED", "KILLED"}
    assert wanted["one 0000 confirmed by 0002"][-1] == ["model", "model/settings.json"]
    assert [files for *_, files in wanted.values()].count(["page.html"]) == 2
    assert n >= 40, "too few writes were interrupted for this test to mean anything"


@pytest.mark.services
def test_kill_9_between_any_two_statements_of_the_database_leaves_neither_gaps_nor_doubles(tmp_path: Path) -> None:
    """A forked process is killed at its n-th statement, in the middle of what one call of MLflow's client does."""
    World(tmp_path, ledger := Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite", clock=Clock())).tracker().sync()
    ledger.close()
    statements, wanted = shown_by_forks(tmp_path / "0", tmp_path / "mlflow.db", 0)
    assert statements > 300
    for n in range(1, statements, statements // 8):
        killed_at, seen = shown_by_forks(tmp_path / str(n), tmp_path / "mlflow.db", n)
        assert killed_at == n
        assert seen == wanted, f"killed at statement {n} of {statements}"


def shown_by_forks(folder: Path, store: Path, n: int) -> tuple[int, dict[Any, Any]]:
    """Show a study in a process that ends at its n-th statement (0: none), then in another one.

    Return how many statements the first one reached, and what MLflow holds in the end.
    """
    folder.mkdir()
    (folder / "mlflow.db").write_bytes(store.read_bytes())  # without connections of this process, which forks
    with Ledger.open(f"sqlite:///{folder}/ledger.sqlite", clock=Clock()) as ledger:
        begin(World(folder, ledger, "killed"))
    if (child := os.fork()) == 0:
        try:
            reached = count_statements(n, folder / "reached")
            with Ledger.open(f"sqlite:///{folder}/ledger.sqlite", clock=Clock(1.7e9 + 100)) as ledger:
                world = World(folder, ledger, "killed", takeover=True)
                tracker = world.tracker()
                tracker.sync()
                finish(world)
                close(world, tracker)
            (folder / "reached").write_text(str(reached()))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) == (n > 0)
    with Ledger.open(f"sqlite:///{folder}/ledger.sqlite", clock=Clock(1.7e9 + 100)) as ledger:
        world = World(folder, ledger, "killed", takeover=True)
        finish(world)
        close(world, world.tracker())
        return int((folder / "reached").read_text()), neutral(world.snapshot(), world.name)


def count_statements(n: int, file: Path) -> Callable[[], int]:
    """Kill this process at MLflow's n-th statement, and note the number; return a function that counts."""
    seen = [0]

    def before(connection: sqlalchemy.Connection, *_: Any) -> None:
        seen[0] += str(connection.engine.url).endswith("mlflow.db")
        if seen[0] == n > 0:
            file.write_text(str(n))
            os.kill(os.getpid(), signal.SIGKILL)

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", before)
    return lambda: seen[0]


def begin(world: World) -> None:
    """Put trials of two data sets into the ledger: one that has reported, one that failed with an output."""
    world.report(world.add(0, replicates=1), 1, 0.5)
    world.report(world.add(0, "two", replicates=1), 1, 0.3)
    failed = world.add(1)
    place = checkpoint_folder(world.runs / world.name, failed)
    assert isinstance(place, Path)
    place.mkdir(parents=True)
    (place / OUTPUT).write_text("what it printed")
    world.writer.finish(failed, TrialState.FAIL, "x")
    (world.runs / world.name / "page.html").write_text("<p>front</p>")


def finish(world: World) -> None:
    """End every trial, and add two that confirm one network, unless that is done."""
    if len(world.ledger.trials(world.name)) > 3:
        return
    world.report(world.key(0), 2, 0.4, state=TrialState.COMPLETE)
    world.report(world.key(0, "two"), 2, 0.2, state=TrialState.PRUNED)
    for number in (2, 3):
        confirmation = world.add(number, stage="confirm", source=0, replicates=2)
        world.report(confirmation, 1, 0.1 * number, 0.3, state=TrialState.COMPLETE)


def close(world: World, tracker: Several) -> None:
    """End a tracker as a driver does: with a page, and files of a confirmed trial."""
    config = world.ledger.trials(world.name, "one")[2].config
    tracker.log_models([config], write=lambda _, folder: (folder / "settings.json").write_text("{}"))
    tracker.log_artifacts([world.runs / world.name / "page.html"])
    tracker.close()


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
            tracker.sync()
        assert len(calls) == 6
        assert [r.levelname for r in caplog.records if "cannot be kept up to date" in r.message] == ["WARNING"]
    world.report(world.key(0, "two"), 8, 0.01, state=TrialState.COMPLETE)
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


def test_twins_of_a_driver_that_lost_the_study_are_deleted_later(world: World) -> None:
    world.plant()
    world.tracker().sync()
    before, client = world.snapshot(), world.client()
    kept = {run.info.run_id for run in world.mlflow_runs()}
    for run in world.mlflow_runs():
        client.create_run(run.info.experiment_id, run.info.start_time, run.data.tags, run.info.run_name)
    world.tracker().sync()
    assert len(world.mlflow_runs()) == len(kept)
    parents = {run.info.run_id for run in world.mlflow_runs() if run.data.tags["ablate.kind"] == "study"}
    assert {run.data.tags["mlflow.parentRunId"] for run in world.trial_runs().values()} == parents
    assert {run.info.run_id for run in world.trial_runs().values()} <= kept
    assert world.snapshot() == before


class Fuse:
    """Ends the n-th write of MLflow's client or of a run's id into the ledger by `error` (n = 0: none).

    A process is killed before the write, since after it is before the next; an answer is lost after it.
    """

    def __init__(self, patch: pytest.MonkeyPatch, world: World, n: int, error: type[BaseException]) -> None:
        self.left, self.error, self.last = n, error, ""
        for name in WRITES:
            patch.setattr(mlflow.MlflowClient, name, self.guard(name, getattr(mlflow.MlflowClient, name)))
        patch.setattr(world.writer, "set_mlflow_run", self.guard("set_mlflow_run", world.writer.set_mlflow_run))

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
    ("place", "own", "is_elsewhere"),
    [
        ("file:///proc/nope/artifacts/1", None, True),
        ("/nope/mlruns/3", "file:///runs/mlartifacts", True),
        ("/proc/3", None, True),
        ("mlflow-artifacts:/1", None, False),
        ("s3://bucket/1", None, False),
        ("file:///tmp/runs/mlartifacts/name", "file:///tmp/runs/mlartifacts", False),
        ("file:///tmp/name", None, False),
    ],
)
def test_a_folder_of_another_machine_is_known(place: str, own: str | None, is_elsewhere: bool) -> None:
    assert elsewhere(place, own) == is_elsewhere
