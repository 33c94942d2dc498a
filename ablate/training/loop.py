"""The training loop, as a generator of Reports: the caller that iterates decides whether to continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ablate.errors import PausedError
from ablate.files import Place
from ablate.models.settings import InputShape
from ablate.tasks import Data, Task, load_task
from ablate.tasks.base import Decoded
from ablate.training import checkpoint
from ablate.training.corpus import check_decoding, corpus_metrics
from ablate.training.evaluate import BATCH, Means, evaluate
from ablate.training.family import family
from ablate.training.made_up import metric_names
from ablate.training.modules import initial_weights, plain_module, stackable
from ablate.training.order import epoch_index, keys, steps_per_epoch
from ablate.training.progress import CADENCE, Cadence, TrainingProgress, never
from ablate.training.rows import DTYPES, ReplicaGroup
from ablate.training.samples import Samples
from ablate.training.schedule import multipliers
from ablate.training.splits import Splits, split, test_part
from ablate.trial import Report, TrialConfig

STEPS_BETWEEN_CHECKS = 64  # checking on a GPU whether any row is alive blocks until it is idle


class _AllDiverged(Exception):  # noqa: N818 - an event, not an error
    """All replicates have diverged."""


@dataclass(frozen=True, kw_only=True)
class _Trial:
    config: TrialConfig
    task: Task
    data: Data
    shape: InputShape
    parts: Splits
    group: ReplicaGroup
    judged: bool


def train(
    config: TrialConfig,
    *,
    data_dir: Path | None = None,
    checkpoints: Place | None = None,
    device: str = "cpu",
    attempt: int = 1,
    pause: Callable[[], bool] = never,
    data: Data | None = None,
    judged: bool = True,
    cadence: Cadence = CADENCE,
) -> Iterator[Report]:
    """Train one trial, all its replicates at once, and yield a Report every `report_every` epochs and after the last.

    `checkpoints` is the trial's own folder, and a checkpoint is durable before its Report is yielded. A trial that
    finds a checkpoint there first yields the last Report again and then continues. On the CPU the result is equal bit
    for bit to that of an uninterrupted run. `attempt` counts how often the trial was started. `pause()` is called
    between steps; once it returns True, a checkpoint is written and PausedError raised. `cadence` sets the interval of
    further checkpoints. `data` replaces the task's data; with `judged` False, generated text is not scored. A replicate
    whose loss or gradient is not finite is frozen, and its metrics become NaN. If none is left, the Report that says
    so is the last. A trial that evaluates another one yields one Report (`_run_test`); `checkpoints` is then the folder
    of that other trial. Torch's thread count and global random state do not change. Raises CheckpointError
    (CheckpointDownError if `checkpoints` cannot be read or written now), DataError, RegistryError and PausedError.
    """
    trial = _prepare(config, data_dir=data_dir, device=device, data=data, judged=judged)
    if config.evaluates is not None:
        yield _run_test(trial, checkpoints, pause)
        return
    progress = TrainingProgress(
        config, trial.shape, trial.group, place=checkpoints, attempt=attempt, pause=pause, cadence=cadence
    )
    progress.go_on()
    if progress.report is not None:
        yield progress.report
    while progress.epoch < config.epochs:
        progress.clock.start()
        try:
            metrics = _epoch(trial, progress)
        except _AllDiverged:
            yield _diverged(trial, progress.epoch + 1, progress.clock.stop())
            return
        wall_seconds = progress.clock.stop()
        progress.end_epoch()
        if metrics is not None:
            yield progress.keep(_report(trial, progress.epoch, metrics, wall_seconds))


def _report(trial: _Trial, epoch: int, metrics: tuple[dict[str, float], ...], wall_seconds: float) -> Report:
    diverged = tuple(not alive for alive in trial.group.alive.tolist())
    final = epoch == trial.config.epochs
    return Report(epoch=epoch, metrics=metrics, wall_seconds=wall_seconds, diverged=diverged, final=final)


def _prepare(config: TrialConfig, *, data_dir: Path | None, device: str, data: Data | None, judged: bool) -> _Trial:
    task = load_task(config.task)
    shape = task.shape(data_dir)
    data = task.load(data_dir) if data is None else data
    training = family(config).training
    parts = split(data, config, device=torch.device(device), dtype=DTYPES[training.precision])
    steps = steps_per_epoch(parts.train.index.shape[1], training)
    schedule = multipliers(training.schedule, epochs=config.epochs, steps_per_epoch=steps)
    rows = len(config.seeds)
    module = plain_module(config, shape)
    group = ReplicaGroup(
        module,
        [initial_weights(config, shape, replicate=replicate) for replicate in range(rows)],
        [training] * rows,
        [schedule] * rows,
        loss=task.loss,
        pad=data.pad,
        device=device,
        stacked=stackable(module, shape),
    )
    check_decoding(task, data, group, config)
    return _Trial(config=config, task=task, data=data, shape=shape, parts=parts, group=group, judged=judged)


def _epoch(trial: _Trial, progress: TrainingProgress) -> tuple[dict[str, float], ...] | None:
    """Train the next epoch, or the rest of it; return each replicate's metrics if a report is due."""
    means = _train_epoch(trial, progress)
    epoch, settings = progress.epoch + 1, family(trial.config).training
    final = epoch == settings.epochs
    if not final and epoch % settings.report_every:
        return None
    return _metrics(trial, means.values(), final=final, between=partial(progress.ask, means))


def _train_epoch(trial: _Trial, progress: TrainingProgress) -> Means:
    """Train the next epoch, or the rest of it; return the means of loss and metrics over the whole epoch."""
    group, config, epoch = trial.group, trial.config, progress.epoch + 1
    index = epoch_index(config, trial.parts.train, epoch=epoch)
    augmentation = keys(config, "augmentation", epoch)
    means = Means(group.pad)
    group.module.train()
    group.key_dropout(keys(config, "dropout", epoch))
    batch = family(config).training.batch_size
    left = index[:, progress.step * batch :]  # slices the index: seen samples are not read again
    batches = trial.parts.train.batches(left, batch, keys=augmentation)
    with _keyed_global_generator(config, epoch, group.device), closing(batches):
        progress.take_up(means)
        progress.ask(means)
        for x, targets in batches if left.numel() else ():
            scores, losses = group.step(x, targets)
            means.add(trial.task.metrics(scores, targets), targets, losses=losses)
            if progress.step % STEPS_BETWEEN_CHECKS == 0:
                _require_alive(group)
            progress.step += 1
            progress.ask(means)
    _require_alive(group)
    return means


@contextmanager
def _keyed_global_generator(config: TrialConfig, epoch: int, device: torch.device) -> Iterator[None]:
    """Key the draws that a user's module makes from torch's global generator (dropout), and restore its state."""
    key = keys(config, "dropout", epoch)[0]
    on_cpu = device.type == "cpu"
    with torch.random.fork_rng(devices=[] if on_cpu else [device], device_type="cuda" if on_cpu else device.type):
        torch.manual_seed(key)
        yield


def _metrics(
    trial: _Trial, running: dict[str, Tensor], *, final: bool, between: Callable[[], None]
) -> tuple[dict[str, float], ...]:
    """Return one dictionary of metrics per replicate; all are NaN where a replicate diverged.

    `between` is called between batches and may raise. At that point only `alive` has changed, and repeating that
    change has no effect.
    """
    group = trial.group
    values = {f"train_{name}": value for name, value in running.items()}
    validation = _evaluated(trial, trial.parts.validation, between)
    group.freeze(~torch.isfinite(validation["loss"]))
    _require_alive(group)
    values |= {f"val_{name}": value for name, value in validation.items()}
    written = _measure_corpus(trial, trial.parts.validation, "validation", between)
    values |= {f"val_{name}": value for name, value in written.items()}
    values["learning_rate"] = group.learning_rates()
    if final and trial.config.stage == "confirm":
        values |= _test_values(trial, between)
    rows = torch.stack([torch.where(group.alive, value, torch.nan) for value in values.values()]).T.tolist()
    return tuple(dict(zip(values, row, strict=True)) for row in rows)


def _run_test(trial: _Trial, place: Place | None, pause: Callable[[], bool]) -> Report:
    """Return the last report of the evaluated trial, with its networks' metrics on the test split added.

    Nothing is trained or written. Raises CheckpointError if the checkpoint of its last epoch is missing.
    """
    config = trial.config

    def between() -> None:
        if pause():
            raise PausedError(f"trial {config.key} has paused")

    newest = None if place is None else checkpoint.newest(place, config.origin)
    found, report = checkpoint.final_report(newest, config, place)
    trial.group.restore(found.tensors)
    values = _test_values(trial, between)
    rows = torch.stack([torch.where(trial.group.alive, value, torch.nan) for value in values.values()]).T.tolist()
    pairs = zip(report.metrics, rows, strict=True)
    metrics = tuple({**before, **dict(zip(values, row, strict=True))} for before, row in pairs)
    return replace(report, metrics=metrics, wall_seconds=0.0, checkpoint=None)


def _test_values(trial: _Trial, between: Callable[[], None]) -> dict[str, Tensor]:
    """Return the metrics on the test split by name, one value per replicate."""
    test = test_part(trial.data, trial.config, device=trial.group.device, dtype=trial.group.dtype)
    values = {f"test_{name}": value for name, value in _evaluated(trial, test, between).items()}
    return values | {f"test_{name}": value for name, value in _measure_corpus(trial, test, "test", between).items()}


def _evaluated(trial: _Trial, samples: Samples, between: Callable[[], None]) -> dict[str, Tensor]:
    """Return loss and metrics of `samples`; scores per token and images from disk use the batch size of training."""
    large = trial.shape.output == "token" or not isinstance(samples.inputs, Tensor)
    batch = min(BATCH, family(trial.config).training.batch_size) if large else BATCH
    return evaluate(trial.group, trial.task, samples, batch=batch, between=between, judged=trial.judged)


def _measure_corpus(trial: _Trial, samples: Samples, part: str, between: Callable[[], None]) -> dict[str, Tensor]:
    """Return the task's metrics of the text that the replicates generate; empty for other tasks."""
    if not trial.judged or not isinstance(trial.task, Decoded):
        return {}
    return corpus_metrics(
        trial.group,
        trial.task,
        trial.data,
        samples,
        part=part,
        shape=trial.shape,
        batch=BATCH,
        between=between,
    )


def _require_alive(group: ReplicaGroup) -> None:
    if not bool(group.alive.any()):
        raise _AllDiverged


def _diverged(trial: _Trial, epoch: int, wall_seconds: float) -> Report:
    """Return the last report of a trial whose replicates have all diverged: all metrics NaN, and no checkpoint."""
    config = trial.config
    usual = ("train_loss", "train_accuracy", "val_loss", "val_accuracy")
    names = (*(metric_names(trial.task, trial.shape) or usual), "learning_rate")
    return Report(
        epoch=epoch,
        metrics=tuple(dict.fromkeys(names, float("nan")) for _ in config.seeds),
        wall_seconds=wall_seconds,
        diverged=tuple(True for _ in config.seeds),
        final=True,
    )
