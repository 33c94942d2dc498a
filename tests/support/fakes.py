"""Trainers without torch for tests of what surrounds training.

They do as `home/acts.json` says for the trial's number, write a JSON checkpoint per epoch and go on from it, first
yielding that epoch's report again, as the real one does. What they do leaves lines in `home/trace.jsonl`. Workers
import this module, so it stays small.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.base.errors import PausedError, TrialError
from ablate.core.trial import Report, TrialConfig, TrialKey


def loss(number: int, epoch: int) -> float:
    """Return the loss that every fake trainer reports for a trial after an epoch."""
    return (1.0 + number) / epoch


def train(
    config: TrialConfig, *, data_dir: Path | None, checkpoints: Path, device: str, attempt: int,
    pause: Callable[[], bool],
) -> Iterator[Report]:  # fmt: skip
    """Yield one report per epoch, acting up in the epoch and the way that the script names."""
    home = checkpoints.parents[2]
    done = _continued(checkpoints)
    if done:
        yield report(config, done)
    for epoch in range(done + 1, config.epochs + 1):
        if pause():
            raise PausedError(f"paused before epoch {epoch}")
        facts = {"pid": os.getpid(), "device": device, "threads": os.environ.get("OMP_NUM_THREADS")}
        note(home, "begin", config.key, epoch=epoch, **facts)
        _act(config, epoch, home)
        _save(checkpoints, epoch)
        note(home, "end", config.key, epoch=epoch)
        yield report(config, epoch)


def script(home: Path, acts: Mapping[int, str]) -> None:
    """Say what the trainer does, by trial (-1 for all others).

    In epoch 2: raise, diverge, die, die once, warn. In every epoch: `sleep SECONDS`, `meet TRIALS`.
    """
    home.mkdir(parents=True, exist_ok=True)
    (home / "acts.json").write_text(json.dumps({str(number): act for number, act in acts.items()}))


def note(home: Path, what: str, key: TrialKey, **facts: object) -> None:
    """Append one line to the trace; short appends are atomic, so many processes may write."""
    line = json.dumps({"what": what, "trial": key.number, "at": time.time(), **facts}) + "\n"
    with (home / "trace.jsonl").open("a") as file:
        file.write(line)


def trace(home: Path) -> list[dict[str, Any]]:
    """Return the lines of the trace in order."""
    file = home / "trace.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may just be being written


def _act(config: TrialConfig, epoch: int, home: Path) -> None:
    acts = json.loads((home / "acts.json").read_text()) if (home / "acts.json").exists() else {}
    act = acts.get(str(config.key.number), acts.get("-1", ""))
    if act.startswith("sleep"):
        time.sleep(float(act.removeprefix("sleep")))
    if act.startswith("meet"):
        _meet(home, int(act.removeprefix("meet")))
    if epoch != 2:
        return
    if act == "raise":
        raise ValueError("the wheels came off\nand more that fits no line")
    if act == "diverge":
        raise TrialError(f"diverged at epoch {epoch}")
    if act == "warn":
        logging.getLogger("ablate.engine").warning("the wheels are %s", "loose")
        logging.getLogger("ablate.engine").warning("%s wheels left", 3, extra={"progress": True})
    if act == "die" or (act == "die once" and not (home / f"died-{config.key.number}").exists()):
        (home / f"died-{config.key.number}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _meet(home: Path, others: int) -> None:
    """Wait until so many trials have begun, then give one more the time to begin where it should not."""
    deadline = time.monotonic() + 120.0
    while sum(line["what"] == "begin" for line in trace(home)) < others and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)


def report(config: TrialConfig, epoch: int) -> Report:
    value = loss(config.key.number, epoch)
    metrics = {"train_loss": value, "val_loss": value, "val_accuracy": 1 / (1 + value), "train_accuracy": 0.5}
    if config.stage == "confirm" and epoch == config.epochs:
        metrics |= {"test_loss": value, "test_accuracy": 1 / (1 + value)}
    return Report(
        epoch=epoch,
        metrics=tuple(metrics for _ in config.seeds),
        wall_seconds=0.001 * epoch,
        diverged=tuple(False for _ in config.seeds),
        final=epoch == config.epochs,
    )


def _continued(checkpoints: Path) -> int:
    file = checkpoints / "epoch.json"
    return int(json.loads(file.read_text())["epoch"]) if file.exists() else 0


def _save(checkpoints: Path, epoch: int) -> None:
    checkpoints.mkdir(parents=True, exist_ok=True)
    draft = checkpoints / "epoch.json.tmp"
    draft.write_text(json.dumps({"epoch": epoch}))
    draft.replace(checkpoints / "epoch.json")
