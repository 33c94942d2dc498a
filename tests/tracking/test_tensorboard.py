"""TensorBoard's own reader finds in the event files what the ledger holds, once, whoever was killed."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import StaleDriverError
from ablate.core.trial import TrialState
from support.commands import run, write_study
from support.paths import REPOSITORY
from support.tracked import World
from support.tracked import own_world as world

__all__ = ["world"]

pytest.importorskip("tensorboard")

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from ablate.tracking.tensorboard_tracker import FILE, TensorBoardTracker


def tracker_of(world: World) -> TensorBoardTracker:
    """Return a tracker as a new process would make it."""
    return TensorBoardTracker(
        study=world.study, ledger=world.ledger, writer=world.writer, home=world.runs / world.name, clock=world.clock
    )


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return found


def scalars(folder: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Return (value, time) by tag and step; fail where one is there twice."""
    events = read(folder)
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            assert (tag, event.step) not in found, f"{tag} has step {event.step} twice"
            found[tag, event.step] = (event.value, event.wall_time)
    return found


def single(value: float) -> float:
    """Return a number as TensorBoard stores it."""
    return float(np.float32(value))


def folders(world: World) -> dict[str, Path]:
    root = world.runs / world.name / "tensorboard"
    return {str(path.parent.relative_to(root)): path.parent for path in sorted(root.rglob(FILE))}


def test_event_files_equal_the_ledger(world: World) -> None:
    """A second reading of the ledger, in the test's own words."""
    world.plant()
    tracker_of(world).sync()
    found = folders(world)
    names = {("one", 0): "one/0000", ("one", 1): "one/0001", ("one", 2): "one/0002"}
    names |= {("one", 3): "one/0000-confirmed-by-0003", ("two", 0): "two/0000"}
    assert set(found) == {".", *names.values()}
    for trial in world.ledger.trials(world.name):
        expected: dict[tuple[str, int], float] = {}
        for report in world.ledger.reports(world.name, trial.key.dataset, trial.key.number):
            expected["wall_seconds", report.epoch] = 1.5 * report.epoch
            for name, value in report.metrics.items():
                if len(trial.config.seeds) > 1:
                    expected[f"{name}/replicate_{report.replicate}", report.epoch] = value
                so_far = expected.get((name, report.epoch), 0.0)
                expected[name, report.epoch] = so_far + value / len(trial.config.seeds)
        if trial.state.finished:
            expected |= {(name, trial.epochs_done): getattr(trial, name) for name in ("params", "params_body", "flops")}
            expected["q", trial.epochs_done] = (1437 - 144) * 10 / 12345
        if trial.state is TrialState.COMPLETE:
            expected["final/val_accuracy", trial.epochs_done] = expected["val_accuracy", trial.epochs_done]
            expected["final/params", trial.epochs_done] = 12345
        shown = scalars(found[names[trial.key.dataset, trial.key.number]])
        assert set(shown) == set(expected)
        for where, value in expected.items():
            assert shown[where][0] == pytest.approx(single(value), rel=1e-6, nan_ok=True), where
    times = {r.epoch: r.created_at for r in world.ledger.reports(world.name, "one", 0)}
    shown = scalars(found["one/0000"])
    assert {step: when for (tag, step), (_, when) in shown.items() if tag == "val_loss"} == pytest.approx(
        times, abs=0.001
    )


def test_settings_and_objectives_are_on_the_page_of_hyperparameters(world: World) -> None:
    world.plant()
    tracker_of(world).sync()
    found = folders(world)
    root = read(found["."]).SummaryMetadata(metadata.EXPERIMENT_TAG).plugin_data.content
    experiment = metadata.parse_experiment_plugin_data(root)
    assert [metric.name.tag for metric in experiment.metric_infos] == ["final/val_accuracy", "final/params"]
    events = read(found["one/0000-confirmed-by-0003"])
    start = metadata.parse_session_start_info_plugin_data(
        events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    )
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert values == {"model.width": "66", "taste": "sour", "stage": "confirm"}
    status = {name: end_status(read(path)) for name, path in found.items() if name != "."}
    assert status == {
        "one/0000": 1, "one/0001": 1, "one/0002": 2, "one/0000-confirmed-by-0003": 1, "two/0000": None,
    }  # fmt: skip


def end_status(events: EventAccumulator) -> int | None:
    """Return how a session ended: 1 success, 2 failure, None not yet."""
    if metadata.SESSION_END_INFO_TAG not in events.Tags()["tensors"]:
        return None
    content = events.SummaryMetadata(metadata.SESSION_END_INFO_TAG).plugin_data.content
    return int(metadata.parse_session_end_info_plugin_data(content).status)


def test_repeating_and_restarting_write_nothing_twice(world: World) -> None:
    world.plant()
    first = tracker_of(world)
    first.sync()
    first.sync()
    before = {name: (path / FILE).read_bytes() for name, path in folders(world).items()}
    tracker_of(world).sync()
    assert {name: (path / FILE).read_bytes() for name, path in folders(world).items()} == before
    inode = (folders(world)["two/0000"] / FILE).stat().st_ino
    key = world.key(0, "two")
    world.report(key, 2, 0.2)
    first.sync()
    world.report(key, 3, 0.1, state=TrialState.COMPLETE)
    assert first.close() == ()
    file = folders(world)["two/0000"] / FILE
    assert file.stat().st_ino == inode, "a page that reads the file must see it grow"
    assert file.read_bytes().startswith(before["two/0000"])
    assert {step for tag, step in scalars(file.parent) if tag == "val_loss"} == {1, 2, 3}


SECOND = """\
import json, sys
from pathlib import Path
from ablate.ledger import Ledger
from ablate.study import Study
from ablate.tracking.tensorboard_tracker import TensorBoardTracker

with Ledger.open(sys.argv[1], create=False) as ledger:
    study = Study.model_validate(json.loads(sys.argv[2]))
    TensorBoardTracker(study=study, ledger=ledger, writer=None, home=Path(sys.argv[3])).close()
"""


def test_a_file_is_the_same_in_every_process(world: World) -> None:
    """Many settings, because a mapping that is written in any order has a fair chance to be in the same one."""
    world.report(world.add(0, parameters={f"x{n}": n for n in range(40)}), 1, 0.5, 0.25)
    tracker_of(world).sync()
    file = folders(world)["one/0000"] / FILE
    other = world.runs / "other"
    words = [f"sqlite:///{world.runs}/ledger.sqlite", world.study.model_dump_json(exclude_unset=True), str(other)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", SECOND, *words], check=True, env=environment)
    assert (other / "tensorboard" / "one" / "0000" / FILE).read_bytes() == file.read_bytes()


def test_a_file_cut_anywhere_is_completed(world: World) -> None:
    """A kill can end a write at any byte."""
    world.plant()
    tracker_of(world).sync()
    file = folders(world)["one/0000"] / FILE
    whole = file.read_bytes()
    for cut in [*range(0, len(whole), 7), len(whole) - 1]:
        file.write_bytes(whole[:cut])
        tracker_of(world).sync()
        assert file.read_bytes() == whole, cut
    for other in (whole + b"more", b"x" + whole[1:]):  # another ledger's, or damaged
        file.write_bytes(other)
        tracker_of(world).sync()
        assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_stops_nothing(world: World, caplog: Any) -> None:
    world.plant()
    blocked = world.runs / world.name / "tensorboard"
    blocked.parent.mkdir()
    blocked.write_text("")
    tracker = tracker_of(world)
    for _ in range(3):
        tracker.sync()
    assert len(caplog.records) == 1
    assert "cannot be kept up to date" in caplog.text
    blocked.unlink()
    world.clock.now += 1.0
    tracker.sync()
    assert "has caught up" in caplog.text
    assert len(folders(world)) == 6


def test_a_driver_that_lost_the_study_writes_nothing_more(world: World) -> None:
    world.plant()
    tracker = tracker_of(world)
    tracker.sync()
    before = (folders(world)["two/0000"] / FILE).read_bytes()
    former, world.writer = world.writer, world.take(takeover=True, holder="bob")
    world.report(world.key(0, "two"), 2, 0.2)
    with pytest.raises(StaleDriverError, match="another driver took over"):
        former.renew()
    tracker.close()
    assert (folders(world)["two/0000"] / FILE).read_bytes() == before
    tracker_of(world).close()
    assert (folders(world)["two/0000"] / FILE).read_bytes() != before


def test_infinite_values_are_stored(world: World) -> None:
    key = world.add(0, replicates=1)
    world.report(key, 1, math.inf, state=TrialState.COMPLETE)
    tracker_of(world).sync()
    assert scalars(folders(world)["one/0000"])["val_loss", 1][0] == math.inf


ALL = """\
study: shown
trainable: shown_own:train
config: {x: {float: [0.0, 1.0]}}
epochs: 2
objectives: [{metric: val_loss, direction: minimize}]
budget: {trials: 3}
confirm: null
"""
OWN = """\
class Kept:
    def state_dict(self): return {}
    def load_state_dict(self, state): pass


def train(config, run):
    run.keep(model=Kept())
    for epoch in run.epochs():
        yield {"val_loss": config["x"] + epoch, "params": 1}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: it holds a study file and the function that it names."""
    write_study(tmp_path, {"shown.yaml": ALL, "shown_own.py": OWN})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("shown_own", None)


SEARCH = ("search", "shown.yaml", "--executor", "local", "--tracker")


@pytest.mark.services
def test_a_study_is_shown_by_several_trackers_and_the_same_command_adds_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, *SEARCH, "tensorboard,mlflow")
    assert code == 0, err
    files = {path: path.read_bytes() for path in (folder / "runs" / "shown" / "tensorboard").rglob(FILE)}
    assert len(files) == 4
    assert (folder / "runs" / "mlflow.db").is_file()
    assert "MLflow: ablate ui" in out
    code, _, err = run(capfd, *SEARCH, "tensorboard")
    assert code == 0, err
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.services
@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_one_line_before_anything_runs(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for loaded in [*sys.modules]:
        if loaded.partition(".")[0] == name or loaded == f"ablate.tracking.{name}_tracker":
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)  # what cannot be imported
    code, _, err = run(capfd, *SEARCH, f"mlflow,{name}")
    assert code == 2, err
    assert err.startswith(f"ablate: --tracker {name} needs the package {name}, which is not installed")
    assert err.endswith(f"Type: pip install 'ablate-search[{name}]'\n")
    assert len(err.splitlines()) == 1
    assert not (folder / "runs").exists()
