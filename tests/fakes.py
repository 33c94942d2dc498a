"""Trainers without torch for tests of what surrounds training; they behave as `parameters["act"]` says.

Each writes a JSON checkpoint per epoch and goes on from it, first yielding its report again, as the real one
does, and leaves a trace in `home/trace.jsonl` that tests read afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.errors import TrialError
from ablate.trial import Report, TrialConfig


def loss(number: int, epoch: int) -> float:
    """Return the loss that every fake trainer reports for a trial after an epoch."""
    return (1.0 + number) / epoch


def train(
    config: TrialConfig, *, data_dir: Path | None, checkpoints: Path, device: str = "cpu", data: Any = None
) -> Iterator[Report]:
    """Yield one report per epoch, acting up in the epoch and the way that the trial's parameters name."""
    home = checkpoints.parents[2]
    epochs = config.train.epochs
    done = _continued(checkpoints)
    if done:
        yield _report(config, done)
    for epoch in range(done + 1, epochs + 1):
        _trace(home, config, "begin", epoch, device)
        _act(config, epoch, home)
        _save(checkpoints, epoch)
        _trace(home, config, "end", epoch, device)
        yield _report(config, epoch)


def noop(
    config: TrialConfig, *, data_dir: Path | None, checkpoints: Path, device: str = "cpu", data: Any = None
) -> Iterator[Report]:
    """Yield the reports and do nothing else."""
    for epoch in range(1, config.train.epochs + 1):
        yield _report(config, epoch)


def trace(home: Path) -> list[dict[str, Any]]:
    """Return what the trainers did, in order."""
    file = home / "trace.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _act(config: TrialConfig, epoch: int, home: Path) -> None:
    act = config.parameters.get("act", "")
    if act.startswith("sleep"):
        time.sleep(float(act.removeprefix("sleep")))
    if epoch != 2:
        return
    if act == "raise":
        raise ValueError("the wheels came off\nand more that fits no line")
    if act == "diverge":
        raise TrialError(f"diverged at epoch {epoch}")
    if act == "die" or (act == "die once" and not (home / "died").exists()):
        (home / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _report(config: TrialConfig, epoch: int) -> Report:
    number = config.key.number
    value = loss(number, epoch)
    metrics = {"train_loss": value, "val_loss": value, "val_accuracy": 1 / (1 + value), "train_accuracy": 0.5}
    if config.stage == "confirm" and epoch == config.train.epochs:
        metrics |= {"test_loss": value, "test_accuracy": 1 / (1 + value)}
    return Report(
        epoch=epoch,
        metrics=tuple(metrics for _ in config.seeds),
        wall_seconds=0.001 * epoch,
        diverged=tuple(False for _ in config.seeds),
        final=epoch == config.train.epochs,
    )


def _continued(checkpoints: Path) -> int:
    file = checkpoints / "epoch.json"
    return int(json.loads(file.read_text())["epoch"]) if file.exists() else 0


def _save(checkpoints: Path, epoch: int) -> None:
    checkpoints.mkdir(parents=True, exist_ok=True)
    draft = checkpoints / "epoch.json.tmp"
    draft.write_text(json.dumps({"epoch": epoch}))
    draft.replace(checkpoints / "epoch.json")


def _trace(home: Path, config: TrialConfig, what: str, epoch: int, device: str) -> None:
    line = {"trial": config.key.number, "what": what, "epoch": epoch, "pid": os.getpid(), "at": time.time()}
    line |= {"device": device, "threads": os.environ.get("OMP_NUM_THREADS"), "committed": _committed(home)}
    with (home / "trace.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def _committed(home: Path) -> list[list[int]]:
    file = home / "committed.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
