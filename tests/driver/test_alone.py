"""A process runs one study at a time: a second one is refused by every door, and runs once the first has ended."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import ablate
from ablate.base.errors import RequestError, StudyFailedError
from ablate.driver import run as driver
from support import commands, steered_training

LOCAL: dict[str, Any] = {"executor": "local", "tracker": "none"}
SAYS = "this process runs study 'first' already: a second one needs a process of its own"
COMPARED = """\
study: second
datasets: {digits: {patch: 4, train_limit: 128}}
model: {depth: 1}
training: {epochs: 2, batch_size: 32}
variants: [{name: a, model: {width: 8}}, {name: b, model: {width: 16}}]
protocol: paper
compare: {baseline: a}
"""


def search(name: str, runs: Path) -> ablate.StudyHandle:
    space = {"x": ablate.whole(0, 60), "lr": ablate.choice(0.1)}
    asked: dict[str, Any] = {"space": space, "epochs": 2, "trials": 2, "confirm": None, "scheduler": "none"}
    objectives = ["min val_loss"]
    train = "support.steered_training:train"
    return ablate.search(train, name=name, objectives=objectives, runs_dir=runs, **asked, **LOCAL)


def numbers(study: ablate.StudyHandle) -> list[Any]:
    return study.reports().filter(pl.col("val_loss").is_not_null())["val_loss"].to_list()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(steered_training.FOLDER, str(tmp_path))
    (tmp_path / "allowed").write_text("1000")
    (tmp_path / "study.yaml").write_text(COMPARED)
    return tmp_path / "runs"


@contextmanager
def first_running(runs: Path) -> Iterator[list[Any]]:
    """Run the study `first` in a thread inside the block, and let it end after it."""
    gate, found = runs.parent / "allowed", []
    reports = steered_training.count(runs.parent / "reports")
    gate.write_text(str(reports + 1))
    thread = threading.Thread(target=lambda: found.append(numbers(search("first", runs))))
    thread.start()
    while steered_training.count(runs.parent / "reports") <= reports:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield found
    finally:
        gate.write_text("100000")
        thread.join()


DOORS: dict[str, Callable[[Path], Any]] = {
    "search": lambda runs: search("second", runs),
    "same name": lambda runs: search("first", runs),
    "continue": lambda runs: ablate.load_study("done", runs_dir=runs, **LOCAL).run(),
    "compare": lambda runs: ablate.compare(runs.parent / "study.yaml", runs_dir=runs, **LOCAL),
    "asyncio": lambda runs: asyncio.run(asyncio.to_thread(search, "second", runs)),
    "ray": lambda runs: ablate.compare(runs.parent / "study.yaml", runs_dir=runs, tracker="none"),
}


@pytest.mark.services
def test_a_second_study_is_refused_by_every_door_and_changes_nothing(
    runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = numbers(search("done", runs))
    with first_running(runs) as found:
        path, environment = list(sys.path), dict(os.environ)
        for name, door in DOORS.items():
            with pytest.raises(RequestError) as error:
                door(runs)
            assert str(error.value) == SAYS, name
        code, _, err = commands.run(
            capfd, "search", str(runs.parent / "study.yaml"), "--executor", "local", "--runs-dir", str(runs)
        )
        assert (code, SAYS in " ".join(err.split())) == (2, True)
        assert (sys.path, dict(os.environ)) == (path, environment)
        assert sorted(each.name for each in runs.iterdir()) == ["done", "first"]
        assert numbers(ablate.load_study("done", runs_dir=runs)) == alone, "reading is no run"
        if (child := os.fork()) == 0:
            with driver.only_study("in a process of its own"):
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert found == [alone]
    assert ablate.compare(runs.parent / "study.yaml", runs_dir=runs, **LOCAL).trials().height == 2


@pytest.mark.parametrize("end", [KeyboardInterrupt, StudyFailedError, SystemExit, ValueError])
def test_after_any_end_another_study_runs(
    runs: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    def fail(*arguments: Any) -> None:
        raise end("ended")

    monkeypatch.setattr(driver, "_search", fail)
    with pytest.raises(end):
        search("first", runs)
    monkeypatch.undo()
    monkeypatch.setenv(steered_training.FOLDER, str(runs.parent))
    assert len(numbers(search("second", runs))) == 4
