"""W&B's offline runs hold what the ledger holds of each ended trial, once; read by the format of its files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ablate.core.trial import TrialState
from support.tracked import World
from support.tracked import own_world as world

__all__ = ["world"]

pytest.importorskip("wandb")

from wandb.proto import wandb_internal_pb2

from ablate.tracking import wandb_tracker

BLOCK, HEAD = 2**15, 7  # of LevelDB's log, after a head of the file


def records(file: Path) -> Iterator[Any]:
    """Yield the records of a run's file: LevelDB's log of blocks of 32 KiB, each chunk with checksum, length, kind."""
    data, at, whole = file.read_bytes(), HEAD, b""
    assert data[:4] == b":W&B"
    while at < len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
        _, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        whole += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (1, 4):  # a whole record, or its last chunk
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def runs_of(world: World) -> dict[str, dict[str, Any]]:
    """Return what each run's file holds, by the run's name; fail where a name is there twice."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((world.runs / world.name / "wandb").glob("offline-run-*/*.wandb")):
        run: Any = None
        history: dict[tuple[str, int], float] = {}
        summary: dict[str, Any] = {}
        code = None
        for record in records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = record.run
            elif kind == "history":
                row = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                assert record.history.step.num == row["epoch"]
                history |= {(name, row["epoch"]): value for name, value in row.items() if name[0] != "_"}
            elif kind == "summary":
                summary |= {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.summary.update}
            elif kind == "exit":
                code = record.exit.exit_code
        assert run.display_name not in found
        config = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in run.config.update}
        assert code is not None, "the file ends before the run does"
        summary = {name: value for name, value in sorted(summary.items()) if name[0] != "_"}  # times of writing
        found[run.display_name] = {
            "group": run.run_group, "job": run.job_type, "tags": [*run.tags], "config": config, "exit": code,
            "history": dict(sorted(history.items())), "summary": summary, "notes": run.notes,
        }  # fmt: skip
    return found


@pytest.mark.services
def test_runs_equal_the_ledger(world: World) -> None:
    """A second reading of the ledger, in the test's own words."""
    world.plant()
    assert world.tracker(name="wandb").close() == []
    found = runs_of(world)
    names = {0: "one 0000 · full model · width 60 · taste sour", 1: "one 0001 · width 62 · taste sour"}
    names |= {2: "one 0002 · width 64 · taste sour", 3: "one 0000 confirmed by 0003"}
    assert set(found) == set(names.values()), "the trial that is running has no run yet"
    for trial in world.ledger.trials(world.name, "one"):
        run = found[names[trial.key.number]]
        assert run["group"] == world.name
        assert (run["job"], run["tags"]) == (trial.config.stage, ["one", trial.state])
        assert run["exit"] == (trial.state == "FAIL")
        assert run["config"]["model.width"] == trial.config.parameters["model.width"]
        assert run["config"]["seeds"] == list(trial.config.seeds)
        expected: dict[tuple[str, int], float] = {}
        for report in world.ledger.reports(world.name, "one", trial.key.number):
            expected["epoch", report.epoch] = report.epoch
            expected["wall_seconds", report.epoch] = 1.5 * report.epoch
            for name, value in report.metrics.items():
                if len(trial.config.seeds) > 1:
                    expected[f"{name}/replicate_{report.replicate}", report.epoch] = value
                so_far = expected.get((name, report.epoch), 0.0)
                expected[name, report.epoch] = so_far + value / len(trial.config.seeds)
        assert run["history"] == pytest.approx(expected, nan_ok=True)
        assert run["summary"]["state"] == trial.state
        assert run["summary"]["params"] == 12345
        assert ("final/params" in run["summary"]) == (trial.state == "COMPLETE")
    assert found[names[1]]["notes"] == "stopped early, 1 of 9 epochs"


@pytest.mark.services
def test_repeating_and_restarting_write_nothing_twice_and_a_cut_run_is_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.plant()
    first = world.tracker(name="wandb")
    first.sync()
    first.sync()
    before = runs_of(world)
    second = world.tracker(name="wandb")
    with monkeypatch.context() as patch:
        patch.setattr(wandb_tracker, "_write", None)  # a call would fail
        second.close()
    assert "cannot be kept up to date" not in caplog.text
    folder = world.runs / world.name / "wandb"
    shown = sorted((folder / "shown").iterdir())
    assert len(shown) == len(before) == 4
    shown[1].unlink()  # as a driver leaves it that was killed in the middle of a run
    [cut] = folder.glob(f"offline-run-*-{shown[1].name}/*.wandb")
    cut.write_bytes(cut.read_bytes()[:200])
    world.report(world.key(0, "two"), 3, 0.1, state=TrialState.COMPLETE)
    third = world.tracker(name="wandb")
    third.close()
    after = runs_of(world)
    assert repr({name: after[name] for name in before}) == repr(before)
    assert len(after) == 5


@pytest.mark.services
def test_what_w_and_b_refuses_stops_nothing_and_is_written_later(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    world.plant()
    tracker = world.tracker(name="wandb")
    with monkeypatch.context() as patch:
        patch.setattr(wandb_tracker.wandb, "init", broken)
        for _ in range(3):
            tracker.sync()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be kept up to date" in caplog.text
    tracker.close()
    assert len(runs_of(world)) == 4


def broken(**_: Any) -> None:
    raise OSError("no service")
