"""The progress of a trial: resuming from a checkpoint, pausing on request, and writing checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from ablate.errors import CheckpointError, PausedError
from ablate.files import Place
from ablate.models.settings import InputShape
from ablate.training import checkpoint
from ablate.training.checkpoint import Checkpoint, CheckpointId
from ablate.training.evaluate import Means
from ablate.training.rows import ReplicaGroup
from ablate.trial import Report, TrialConfig


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """The intervals of a trial's interruptions between steps, in seconds of training, and the clock for them."""

    ask_seconds: float = 0.25  # between two calls of `pause`, which may read a file
    checkpoint_seconds: float = 300.0  # the maximum training time that a killed process loses
    now: Callable[[], float] = time.perf_counter


CADENCE = Cadence()


def never() -> bool:
    """Return False: the trial never pauses."""
    return False


class Stopwatch:
    """Seconds of training over all attempts, excluding the time to write checkpoints or wait for the caller."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._total = 0.0
        self._since: float | None = None

    def seconds(self) -> float:
        """Return the seconds so far."""
        return self._total if self._since is None else self._total + self._now() - self._since

    def start(self) -> None:
        """Start the clock."""
        self._since = self._now()

    def stop(self) -> float:
        """Stop the clock and return its seconds."""
        self._total, self._since = self.seconds(), None
        return self._total

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock inside the block, and start it again afterwards if it ran before."""
        runs = self._since is not None
        self.stop()
        yield
        if runs:
            self.start()

    def set(self, seconds: float) -> None:
        """Stop the clock at `seconds`."""
        self._total, self._since = seconds, None


class TrainingProgress:
    """The progress of a trial through its epochs, starting from the newest checkpoint in `place`.

    `epoch` epochs are done and `step` steps of the next one; `report` is the last one. Without a `place` no checkpoint
    is written or read.
    """

    def __init__(
        self,
        config: TrialConfig,
        shape: InputShape,
        group: ReplicaGroup,
        *,
        place: Place | None,
        attempt: int,
        pause: Callable[[], bool],
        cadence: Cadence,
    ) -> None:
        self.config, self.shape, self.group = config, shape, group
        self.place, self.attempt, self.pause = place, attempt, pause
        self.epoch = self.step = 0
        self.report: Report | None = None
        self.cadence, self.clock = cadence, Stopwatch(cadence.now)
        self._midway: Checkpoint | None = None
        self._saved = (0, 0)
        self._saved_at = self._next_question = 0.0

    def go_on(self) -> None:
        """Restore the newest whole checkpoint, if there is one.

        A checkpoint of an earlier attempt is first written again as this attempt's file. If the earlier attempt still
        runs somewhere, its later checkpoints are ignored. Raises CheckpointError.
        """
        if self.place is None:
            return
        found = checkpoint.newest(self.place, self.config, attempt=self.attempt)
        if found is not None:
            self.group.restore(found.tensors)
            self.epoch, self.step = found.checkpoint_id.epoch, found.checkpoint_id.step
            self.clock.set(found.wall_seconds)
            self._saved, self._saved_at = (self.epoch, self.step), found.wall_seconds
            self._midway = found if self.step else None
            if found.checkpoint_id.attempt < self.attempt:
                found = checkpoint.rewrite(self.place, found, self.attempt)
            self.report = found.report
        elif self.attempt > 1:
            self._write(Means(None))

    @property
    def checkpoint_id(self) -> CheckpointId:
        """The id of a checkpoint at the current position."""
        return CheckpointId(attempt=self.attempt, epoch=self.epoch, step=self.step)

    def take_up(self, means: Means) -> None:
        """Restore the means and the generator states of an epoch that a checkpoint interrupted."""
        if self._midway is None:
            return
        found, device = self._midway.midway, self.group.device
        try:
            means.sums = dict(zip(self._midway.metrics, found["sums"].to(device).unbind(), strict=True))
            means.count = found["count"].to(device)
            self.group.restore_dropout(found["dropout"])
            self.group.steps = self.step
            torch.set_rng_state(found["generator"].clone())
            if "device_generator" in found and device.type != "cpu":
                torch.get_device_module(device).set_rng_state(found["device_generator"].clone(), device)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            name = self._midway.checkpoint_id.name
            raise CheckpointError(f"checkpoint {name} does not say how its epoch continues: {error}") from error
        self._midway = None

    def ask(self, means: Means) -> None:
        """Between two steps, pause on request, and write a checkpoint if the interval has passed.

        Raises PausedError once the checkpoint is written, CheckpointDownError if it cannot be written.
        """
        seconds = self.clock.seconds()
        if seconds >= self._next_question:
            self._next_question = seconds + self.cadence.ask_seconds
            if self.pause():
                self._save(means)
                raise PausedError(f"trial {self.config.key} has paused after {self.epoch} epochs and {self.step} steps")
        if seconds - self._saved_at >= self.cadence.checkpoint_seconds:
            self._save(means)

    def end_epoch(self) -> None:
        """Count the epoch as done."""
        self.epoch, self.step = self.epoch + 1, 0

    def keep(self, report: Report) -> Report:
        """Write the checkpoint that belongs to `report` and return the report with its name."""
        named = replace(report, checkpoint=self.checkpoint_id.name) if self.place is not None else report
        self.report = named
        self._save(Means(None))
        return named

    def _save(self, means: Means) -> None:
        if self.place is not None and self._saved != (self.epoch, self.step):
            with self.clock.stopped():
                self._write(means)
        self._saved_at = self.clock.seconds()

    def _write(self, means: Means) -> None:
        assert self.place is not None
        midway = {}
        if self.step:
            midway = {
                "sums": torch.stack(list(means.sums.values())).cpu(),
                "count": torch.as_tensor(means.count).cpu(),
                "dropout": self.group.dropout_states(),
                "generator": torch.get_rng_state(),
            }
            if self.group.device.type != "cpu":
                midway["device_generator"] = torch.get_device_module(self.group.device).get_rng_state(self.group.device)
        found = Checkpoint(
            checkpoint_id=self.checkpoint_id,
            report=self.report,
            wall_seconds=self.clock.seconds(),
            tensors=self.group.tensors(),
            trial=self.config.to_json(),
            shape=self.shape,
            midway=midway,
            metrics=tuple(means.sums) if self.step else (),
        )
        checkpoint.write(self.place, found)
        self._saved = (self.epoch, self.step)
