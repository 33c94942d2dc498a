"""A command with checkpoints of its own continues after a kill, and reports what one does that was not killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import PausedError, TrialError
from ablate.functions.command_record import forget_records
from support.commanded import commanded, losses
from support.paths import TESTS

SCRIPT = """\
import json, os, pathlib, sys, time
epochs, order, pace = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
file = pathlib.Path(os.environ["ABLATE_FOLDER"], "state.json")
state = json.loads(file.read_text()) if file.exists() else {"step": 0, "weight": 0.5}
def save():
    part = file.with_suffix(".part"); part.write_text(json.dumps(state)); part.replace(file)
while state["step"] < 10 * epochs:
    time.sleep(pace)
    weight = state["weight"]
    state = {"step": state["step"] + 10, "weight": 3.7 * weight * (1 - weight)}
    open("trained", "a").write("x")
    if order == "first":
        save()
    print(f"step {state['step']}: train .5, val_loss={state['weight']!r}", flush=True)
    if order == "last":
        save()
print("test_loss=" + repr(state["weight"] / 2))
"""
METRICS = {"val_loss": "val_loss={number}", "test_loss": "test_loss={number}"}
EPOCHS = 12


def truth() -> list[float]:
    weights = [0.5]
    for _ in range(EPOCHS):
        weights.append(3.7 * weights[-1] * (1 - weights[-1]))
    return weights[1:]


def trial(place: Path, order: str = "last", pace: float = 0.0, **more: Any) -> Any:
    command = f"{sys.executable} train.py {{epochs}} {order} {pace}"
    given = {"metrics": METRICS, "config": {}, "epochs": EPOCHS, "epoch": "step {number}:"} | more
    return commanded(command, checkpoints=place, **given)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


WORKER = """\
import json, sys
from pathlib import Path
from functions.test_command_continues import trial
for report in trial(Path("t"), sys.argv[1], float(sys.argv[2]), attempt=int(sys.argv[3]), stage="confirm"):
    open("ledger", "a").write(json.dumps([report.epoch, report.metrics[0]]) + chr(10))
"""


def worker(order: str, pace: float, attempt: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    return subprocess.Popen([sys.executable, "-c", WORKER, order, str(pace), str(attempt)], env=environment)


@pytest.mark.parametrize("order", ["first", "last"])
def test_a_command_that_is_killed_again_and_again_reports_the_same(order: str, folder: Path) -> None:
    """SIGKILL of the worker at random moments: before a report is read, between it and its checkpoint, after both."""
    random.seed(order)
    trained, ledger = folder / "trained", folder / "ledger"
    trained.touch()
    for attempt in range(1, 100):
        running, aim = worker(order, 0.02, attempt), trained.stat().st_size + random.randrange(2, 8)
        while running.poll() is None and trained.stat().st_size < aim:
            time.sleep(0.001)
        running.send_signal(signal.SIGKILL)
        if running.wait() == 0:
            break
    committed = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert attempt > 1, "no kill came before the end"
    assert {epoch for epoch, _ in committed} == {*range(1, EPOCHS + 1)}
    for epoch, metrics in committed:
        expected = {"val_loss": truth()[epoch - 1]} | ({"test_loss": truth()[-1] / 2} if epoch == EPOCHS else {})
        assert metrics == expected, epoch


def test_a_paused_command_continues(folder: Path) -> None:
    place = folder / "t"
    asked = iter([False] * 3 + [True] * 100)
    with pytest.raises(PausedError):
        list(trial(place, pace=0.1, pause=lambda: next(asked)))
    before = (folder / "trained").stat().st_size
    assert losses(trial(place, attempt=2)) == [[value] for value in truth()]
    assert 0 < before < EPOCHS
    assert (folder / "trained").stat().st_size <= EPOCHS + 1


def test_without_the_epoch_a_trial_begins_again_in_an_empty_folder(folder: Path) -> None:
    """Otherwise the reports 1 to 4 of the second attempt would be those of the epochs 5 to 8."""
    running = trial(folder / "t", epoch=None)
    for _ in range(4):
        next(running)
    running.close()
    assert (folder / "t" / "seed-0" / "state.json").exists()
    assert losses(trial(folder / "t", attempt=2, epoch=None)) == [[value] for value in truth()]


def test_a_lost_report_lets_the_trial_begin_again(folder: Path) -> None:
    """The command has saved an epoch whose report nobody has read, as when its machine loses power."""
    running = trial(folder / "t", pace=0.05)
    for _ in range(4):
        next(running)
    running.close()
    record = folder / "t" / "seed-0.reports.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"reports": content["reports"][:3]}))
    found = list(trial(folder / "t", attempt=2))
    assert [report.epoch for report in found] == [*range(1, EPOCHS + 1)]
    assert [report.metrics[0]["val_loss"] for report in found] == truth()


def test_a_lost_last_report_lets_the_trial_begin_again(folder: Path) -> None:
    list(trial(folder / "t"))
    record = folder / "t" / "seed-0.reports.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"reports": content["reports"][:-1], "ended": False}))
    assert losses(trial(folder / "t", attempt=2)) == [[value] for value in truth()]


@pytest.mark.parametrize("known", [0, 2, 3, 5])
def test_a_killed_command_that_ends_by_itself_reports_the_same(folder: Path, known: int) -> None:
    """Its patience ends after 5 of 12 epochs; a kill has left the record of its first reports."""
    (folder / "train.py").write_text(SCRIPT.replace("10 * epochs", "50"))
    first = losses(trial(folder / "t"))
    assert first == [[value] for value in [*truth()[:5], truth()[4]]]
    record = folder / "t" / "seed-0.reports.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"reports": content["reports"][:known], "ended": False}))
    assert losses(trial(folder / "t", attempt=2)) == first


def test_a_command_that_skips_epochs_in_an_empty_folder_too_fails(folder: Path) -> None:
    lines = "".join(f"print('step {step}: val_loss=1')\n" for step in (10, 20, 30))
    (folder / "train.py").write_text(lines)
    running = trial(folder / "t")
    for _ in range(3):
        next(running)
    running.close()
    (folder / "train.py").write_text("print('step 90: val_loss=1')")
    with pytest.raises(TrialError, match="continued with epoch 90, after a report of 30"):
        list(trial(folder / "t", attempt=2))


def test_a_trial_whose_commands_have_ended_is_not_run_again(folder: Path) -> None:
    """The kill came between the end of the command and the commit of the last report."""
    first = [report.metrics for report in trial(folder / "t", epoch=None, stage="confirm")]
    (folder / "train.py").unlink()
    again = trial(folder / "t", epoch=None, stage="confirm", attempt=2)
    assert [report.metrics for report in again] == first


def test_a_trial_that_is_to_begin_again_does(folder: Path) -> None:
    list(trial(folder / "t"))
    forget_records(folder / "t")
    list(trial(folder / "t", attempt=2))
    assert (folder / "trained").stat().st_size == 2 * EPOCHS


def test_a_damaged_record_lets_the_trial_begin_again(folder: Path) -> None:
    list(trial(folder / "t"))
    (folder / "t" / "seed-0.reports.json").write_text('{"reports": [{"epoch": "x"}], "more": 3}')
    assert losses(trial(folder / "t", attempt=2)) == [[value] for value in truth()]
    assert (folder / "trained").stat().st_size == 2 * EPOCHS


def test_links_in_a_folder_that_is_emptied_are_not_followed(folder: Path) -> None:
    own = folder / "t" / "seed-0"
    own.mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "data" / "kept").write_text("x")
    (own / "data").symlink_to(folder / "data")
    (own / "below").mkdir()
    (own / "below" / "file").write_text("x")
    list(trial(folder / "t"))
    assert (folder / "data" / "kept").exists()
    assert sorted(path.name for path in own.iterdir()) == ["state.json"]


def test_the_rows_of_a_comparison_are_read_on_the_test_split_without_training(folder: Path) -> None:
    list(trial(folder / "t", trial={"variant": "complete"}))
    (folder / "train.py").unlink()
    evaluating = {"variant": "complete", "evaluates": 3, "source": 3}
    (report,) = trial(folder / "t", stage="confirm", trial=evaluating)
    assert (report.epoch, report.final, report.wall_seconds) == (EPOCHS, True, 0.0)
    assert report.metrics == ({"val_loss": truth()[-1], "test_loss": truth()[-1] / 2},)
    with pytest.raises(TrialError, match="trial s/data/3 cannot be read on the test split: what it printed is"):
        list(trial(folder / "u", stage="confirm", trial=evaluating))
