"""The progress of a trial: resuming from a checkpoint, and writing checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ablate.base.errors import CheckpointError, PausedError
from ablate.base.files import Place, expect_ledger
from ablate.base.redaction import redact_url
from ablate.core.objectives import mean
from ablate.core.trial import Report, TrialConfig
from ablate.engine.models.model_config import InputShape
from ablate.engine.training import checkpoint
from ablate.engine.training.checkpoint import Checkpoint, CheckpointId
from ablate.engine.training.evaluate import Means
from ablate.engine.training.state import Replicas


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """How often training is interrupted between steps, in seconds of training, and their clock."""

    ask_seconds: float = 0.25  # between two calls of `pause`, which may read a file
    checkpoint_seconds: float = 300.0  # the maximum training time that a killed process loses
    now: Callable[[], float] = time.perf_counter


CADENCE = Cadence()


def never() -> bool:
    """Return False: the trial never pauses."""
    return False


class Stopwatch:
    """Adds up the seconds between `start` and `stop`, without those of a `stopped` block."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._total = 0.0
        self._since: float | None = None

    def seconds(self) -> float:
        """Return the seconds so far."""
        return self._total if self._since is None else self._total + self._now() - self._since

    def start(self) -> None:
        """Start the clock."""
        self._since = self._now()

    def stop(self) -> None:
        """Stop the clock."""
        self._total, self._since = self.seconds(), None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock inside the block, and start it again afterwards if it ran before."""
        runs = self._since is not None
        self.stop()
        yield
        if runs:
            self.start()


class Counted:
    """The report of a trial that counts so far, for a trial whose best report counts: its epoch, and its state.

    The state is a checkpoint in `place`; without a place, what `take` was given.
    """

    def __init__(self, config: TrialConfig, place: Place | None) -> None:
        self.epoch: int | None = None
        self._best, self._place, self._value = config.best, place, math.nan
        self._held: Any = None

    def restore(self, found: Checkpoint) -> None:
        """Continue from the newest checkpoint of the trial."""
        best = None if self._place is None or found.counted is None else checkpoint.find_counted(self._place, found)
        if best is not None and best.report is not None:
            self.take(best.report)

    def is_replaced(self, metrics: Sequence[Mapping[str, float]]) -> bool:
        """Return whether a further report, by its metrics of each replicate, is the one that counts."""
        return self._best is None or self._best.replaces(self._mean(metrics), self._value)

    def take(self, report: Report, held: Any = None) -> None:
        """Apply a further report, and hold its state if there is no place for checkpoints."""
        if self._best is not None and self.is_replaced(report.metrics):
            self.epoch, self._value = report.epoch, self._mean(report.metrics)
            self._held = held if self._place is None else None

    def state(self, attempt: int, epoch: int) -> Any:
        """Return the checkpoint of the report that counts, after `epoch`, or what was held; raise CheckpointError."""
        if self._place is None:
            return self._held
        return checkpoint.read(self._place, CheckpointId(attempt=attempt, epoch=epoch).name)

    def _mean(self, metrics: Sequence[Mapping[str, float]]) -> float:
        assert self._best is not None
        return mean(each.get(self._best.metric) for each in metrics)


def final_report(found: Checkpoint | None, config: TrialConfig, place: Place | None) -> tuple[Checkpoint, Report]:
    """Return the checkpoint of the report that counts of the trial that `config` evaluates, and that report as final.

    Raises CheckpointError if `found`, the newest one in `place`, is not of the last epoch.
    """
    best = None if found is None or place is None else checkpoint.find_counted(place, found)
    if found is None or best is None or best.report is None or found.report is None or not found.report.final:
        where = "" if place is None else f" in {redact_url(place)}"
        raise CheckpointError(
            f"trial {config.origin.key} cannot be read on the test split: no whole checkpoint of its last epoch{where}"
        )
    return best, replace(best.report, final=True, diverged=found.report.diverged)


class TrainingProgress:
    """The progress of a trial through its epochs, starting from the newest checkpoint in `place`.

    `epoch` epochs are done and `step` steps of the next one; `report` is the last one, and `seconds` is the trial's
    time of training over all attempts. Without a `place` no checkpoint is written or read.
    """

    def __init__(
        self, config: TrialConfig, shape: InputShape, replicas: Replicas, *, place: Place | None, attempt: int
    ) -> None:
        expect_ledger(place, config.ledger)
        self.config, self.shape, self.replicas = config, shape, replicas
        self.place, self.attempt = place, attempt
        self.epoch = self.step = 0
        self.seconds = 0.0
        self.report: Report | None = None
        self._midway: Checkpoint | None = None
        self._saved = (0, 0)
        self.counted = Counted(config, place)

    def go_on(self) -> None:
        """Restore the newest whole checkpoint, if there is one. Raises CheckpointError.

        If an earlier attempt wrote it, it is written again as this attempt's file (see `checkpoint.rewrite`). If there
        is none, a later attempt writes its initial state for the same reason.
        """
        if self.place is None:
            return
        found = checkpoint.newest(self.place, self.config, attempt=self.attempt)
        if found is not None:
            self.replicas.layout.restore(self.replicas.state, found.tensors)
            self.epoch, self.step = found.checkpoint_id.epoch, found.checkpoint_id.step
            self.seconds, self._saved = found.wall_seconds, (self.epoch, self.step)
            self._midway = found if self.step else None
            if found.checkpoint_id.attempt < self.attempt:
                found = checkpoint.rewrite(self.place, found, self.attempt)
            self.report = found.report
            self.counted.restore(found)
        elif self.attempt > 1:
            self._write(Means(None))

    @property
    def checkpoint_id(self) -> CheckpointId:
        """The id of a checkpoint at the current position."""
        return CheckpointId(attempt=self.attempt, epoch=self.epoch, step=self.step)

    def take_up(self, means: Means) -> None:
        """Restore `means` and the generators of an epoch that a checkpoint interrupted; raise CheckpointError."""
        assert self._midway is not None
        found, device = self._midway.midway, self.replicas.layout.device
        try:
            means.sums = dict(zip(self._midway.metrics, found["sums"].to(device).unbind(), strict=True))
            means.count = found["count"].to(device)
            self.replicas.restore_dropout(found["dropout"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            name = self._midway.checkpoint_id.name
            raise CheckpointError(f"checkpoint {name} does not say how its epoch continues: {error}") from error

    def paused(self, means: Means) -> PausedError:
        """Write a checkpoint and return the error that says where the trial has paused.

        Raises CheckpointDownError if the checkpoint cannot be written.
        """
        self.save(means)
        return PausedError(f"trial {self.config.key} has paused after {self.epoch} epochs and {self.step} steps")

    def end_epoch(self) -> None:
        """Count the epoch as done."""
        self.epoch, self.step, self._midway = self.epoch + 1, 0, None

    def keep(self, report: Report) -> Report:
        """Write a checkpoint with `report`; return the report with the file's name. Raises CheckpointDownError."""
        named = replace(report, checkpoint=self.checkpoint_id.name) if self.place is not None else report
        self.report = named
        self.counted.take(named, self._tensors() if self.place is None else None)
        self.save(Means(None))
        return named

    @contextmanager
    def counted_weights(self, metrics: Sequence[Mapping[str, float]]) -> Iterator[None]:
        """Give the replicates the state of the report that counts in the block, given the metrics of a further report.

        Raises CheckpointError, and CheckpointDownError if the checkpoints cannot be read.
        """
        epoch = self.counted.epoch
        if epoch is None or self.counted.is_replaced(metrics):
            yield
            return
        layout, now, best = self.replicas.layout, self._tensors(), self.counted.state(self.attempt, epoch)
        layout.restore(self.replicas.state, best.tensors if isinstance(best, Checkpoint) else best)
        try:
            yield
        finally:
            layout.restore(self.replicas.state, now)

    def _tensors(self) -> dict[str, Tensor]:
        return self.replicas.layout.tensors(self.replicas.state)

    def save(self, means: Means) -> None:
        """Write a checkpoint of the current position, unless there is one; `means` are those of its epoch so far."""
        if self.place is not None and self._saved != (self.epoch, self.step):
            self._write(means)

    def _write(self, means: Means) -> None:
        assert self.place is not None
        midway = {}
        if self.step:
            midway = {
                "sums": torch.stack(list(means.sums.values())).cpu(),
                "count": torch.as_tensor(means.count).cpu(),
                "dropout": self.replicas.dropout_states(),
            }
        found = Checkpoint(
            checkpoint_id=self.checkpoint_id,
            report=self.report,
            wall_seconds=self.seconds,
            tensors=self._tensors(),
            trial=checkpoint.identity(self.config),
            shape=self.shape,
            midway=midway,
            metrics=tuple(means.sums) if self.step else (),
            counted=self.counted.epoch,
        )
        checkpoint.write(self.place, found)
        self._saved = (self.epoch, self.step)
