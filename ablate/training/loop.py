"""The training loop, as a generator of Reports: whoever iterates decides whether to go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ablate.config import InputShape
from ablate.tasks import Data, Task, load_task
from ablate.tasks.base import Decoded
from ablate.training import checkpoint
from ablate.training.corpus import check_decoding, corpus_metrics
from ablate.training.evaluate import BATCH, Means, evaluate
from ablate.training.modules import initial_weights, plain_module
from ablate.training.order import epoch_index, keys, steps_per_epoch
from ablate.training.parts import Parts, split, test_part
from ablate.training.rows import DTYPES, RowGroup
from ablate.training.samples import Samples
from ablate.training.schedule import multipliers
from ablate.trial import Report, TrialConfig

STEPS_BETWEEN_CHECKS = 64  # asking a GPU whether any row is alive waits for it


class _AllDiverged(Exception):  # noqa: N818 - an event, not an error
    """No replicate is left to train."""


@dataclass(frozen=True, kw_only=True)
class _Trial:
    config: TrialConfig
    task: Task
    data: Data
    shape: InputShape
    parts: Parts
    group: RowGroup
    judged: bool


def train(
    config: TrialConfig,
    *,
    data_dir: Path | None = None,
    checkpoints: Path | None = None,
    device: str = "cpu",
    data: Data | None = None,
    judged: bool = True,
) -> Iterator[Report]:
    """Train one trial, all its replicates at once, and yield a Report every `report_every` epochs and after the last.

    `checkpoints` is the trial's own folder: a checkpoint is on disk before its Report is yielded, and a trial that
    finds one there first yields that Report again, then goes on, on the CPU bit for bit as if it had not stopped.
    `data` replaces what the task would load; with `judged` False, what a model writes is not looked at. A replicate
    whose loss or gradient is not finite is frozen, its metrics become NaN; when none is left, the Report that says so
    is the last. Torch's thread count and global random state are left alone. Raises CheckpointError, DataError and
    RegistryError.
    """
    trial = _prepare(config, data_dir=data_dir, device=device, data=data, judged=judged)
    last, wall_seconds = 0, 0.0
    saved = checkpoint.newest(checkpoints, config, repair=True) if checkpoints is not None else None
    if saved is not None:
        trial.group.restore(saved.tensors)
        last, wall_seconds = saved.report.epoch, saved.report.wall_seconds
        yield saved.report
    for epoch in range(last + 1, config.train.epochs + 1):
        started = time.perf_counter()
        final = epoch == config.train.epochs
        try:
            running = _train_epoch(trial, epoch)
            if not final and epoch % config.train.report_every:
                wall_seconds += time.perf_counter() - started
                continue
            metrics = _metrics(trial, running, final=final)
        except _AllDiverged:
            yield _diverged(config, epoch, wall_seconds + time.perf_counter() - started)
            return
        wall_seconds += time.perf_counter() - started
        report = Report(
            epoch=epoch,
            metrics=metrics,
            wall_seconds=wall_seconds,
            checkpoint=None if checkpoints is None else checkpoint.file_name(epoch),
            diverged=tuple(not alive for alive in trial.group.alive.tolist()),
            final=final,
        )
        if checkpoints is not None:
            checkpoint.write(checkpoints, config, trial.shape, report, trial.group.tensors())
        yield report


def _prepare(config: TrialConfig, *, data_dir: Path | None, device: str, data: Data | None, judged: bool) -> _Trial:
    task = load_task(config.task)
    shape = task.shape(data_dir)
    data = task.load(data_dir) if data is None else data
    parts = split(data, config, device=torch.device(device), dtype=DTYPES[config.train.precision])
    steps = steps_per_epoch(parts.train.index.shape[1], config.train)
    schedule = multipliers(config.train.schedule, epochs=config.train.epochs, steps_per_epoch=steps)
    rows = len(config.seeds)
    group = RowGroup(
        plain_module(config, shape),
        [initial_weights(config, shape, replicate=replicate) for replicate in range(rows)],
        [config.train] * rows,
        [schedule] * rows,
        loss=task.loss,
        pad=data.pad,
        device=device,
    )
    check_decoding(task, data, group, config)
    return _Trial(config=config, task=task, data=data, shape=shape, parts=parts, group=group, judged=judged)


def _train_epoch(trial: _Trial, epoch: int) -> dict[str, Tensor]:
    """Train one epoch; return the running means over it of loss and metrics, float64 [R] each."""
    group, config = trial.group, trial.config
    index = epoch_index(config, trial.parts.train, epoch=epoch)
    augmentation = keys(config, "augmentation", epoch)
    means = Means(group.pad)
    group.module.train()
    group.key_dropout(keys(config, "dropout", epoch))
    batches = trial.parts.train.batches(index, config.train.batch_size, keys=augmentation)
    with _keyed_global_generator(config, epoch, group.device), closing(batches):
        for step, (x, targets) in enumerate(batches):
            scores, losses = group.step(x, targets)
            means.add(trial.task.metrics(scores, targets), targets, losses=losses)
            if step % STEPS_BETWEEN_CHECKS == 0:
                _require_alive(group)
    _require_alive(group)
    return means.values()


@contextmanager
def _keyed_global_generator(config: TrialConfig, epoch: int, device: torch.device) -> Iterator[None]:
    """Key what a module of your own draws from torch's global generator (dropout), and put the old state back."""
    key = keys(config, "dropout", epoch)[0]
    on_cpu = device.type == "cpu"
    with torch.random.fork_rng(devices=[] if on_cpu else [device], device_type="cuda" if on_cpu else device.type):
        torch.manual_seed(key)
        yield


def _metrics(trial: _Trial, running: dict[str, Tensor], *, final: bool) -> tuple[dict[str, float], ...]:
    """Return one dictionary of metrics per replicate; all are NaN where a replicate diverged."""
    group = trial.group
    values = {f"train_{name}": value for name, value in running.items()}
    validation = _evaluated(trial, trial.parts.validation)
    group.freeze(~torch.isfinite(validation["loss"]))
    _require_alive(group)
    values |= {f"val_{name}": value for name, value in validation.items()}
    values |= {f"val_{name}": value for name, value in _written(trial, trial.parts.validation, "validation").items()}
    values["learning_rate"] = group.learning_rates()
    if final and trial.config.stage == "confirm":
        test = test_part(trial.data, trial.config, device=group.device, dtype=group.dtype)
        values |= {f"test_{name}": value for name, value in _evaluated(trial, test).items()}
        values |= {f"test_{name}": value for name, value in _written(trial, test, "test").items()}
    rows = torch.stack([torch.where(group.alive, value, torch.nan) for value in values.values()]).T.tolist()
    return tuple(dict(zip(values, row, strict=True)) for row in rows)


def _evaluated(trial: _Trial, samples: Samples) -> dict[str, Tensor]:
    """Return loss and metrics of `samples`; scores per token and images from disk come in batches as in training."""
    large = trial.shape.output == "token" or not isinstance(samples.inputs, Tensor)
    batch = min(BATCH, trial.config.train.batch_size) if large else BATCH
    return evaluate(trial.group, trial.task, samples, batch=batch)


def _written(trial: _Trial, samples: Samples, part: str) -> dict[str, Tensor]:
    """Return the task's metrics of what the replicates write, none for a task without."""
    if not trial.judged or not isinstance(trial.task, Decoded):
        return {}
    return corpus_metrics(trial.group, trial.task, trial.data, samples, part=part, shape=trial.shape, batch=BATCH)


def _require_alive(group: RowGroup) -> None:
    if not bool(group.alive.any()):
        raise _AllDiverged


def _diverged(config: TrialConfig, epoch: int, wall_seconds: float) -> Report:
    """Return the last report of a trial of which no replicate is left: all metrics NaN, and no checkpoint."""
    names = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "learning_rate")
    return Report(
        epoch=epoch,
        metrics=tuple(dict.fromkeys(names, float("nan")) for _ in config.seeds),
        wall_seconds=wall_seconds,
        diverged=tuple(True for _ in config.seeds),
        final=True,
    )
