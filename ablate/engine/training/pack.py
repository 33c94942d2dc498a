"""The training loop: trials of one group key, trained in lockstep; each reports, ends and fails by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from ablate.base.errors import CheckpointDownError, PausedError, RequestError
from ablate.core.trainable import Member
from ablate.core.trial import Report, TrialConfig, TrialKey
from ablate.engine.tasks import Data
from ablate.engine.training.evaluate import Means
from ablate.engine.training.graph import Step, training_step
from ablate.engine.training.group_key import group_key
from ablate.engine.training.order import epoch_index, keys
from ablate.engine.training.pack_state import Common, Trained
from ablate.engine.training.progress import CADENCE, Cadence, Stopwatch, never
from ablate.engine.training.samples import ModelInput

STEPS_BETWEEN_CHECKS = 64  # whether any replicate is alive; a check waits until a GPU is idle
OF_ALL = (MemoryError, torch.OutOfMemoryError)  # errors that concern all trials of a pack

Said = dict[TrialKey, Report | Exception]


class _Paused(Exception):  # noqa: N818 - an event, not an error
    """`pause()` was true."""


class TrialPack:
    """A pack of trials of the family (see `ablate.core.trainable.Pack`); one trial alone may have any settings.

    `load` returns the data of a trial; `judged` and `cadence` are as in `train`. When an epoch begins, trials that have
    left are removed, and new ones added. A trial that resumes in the middle of an epoch first finishes it, together
    with trials at the same step.
    """

    def __init__(
        self,
        *,
        load: Callable[[TrialConfig], Data],
        data_dir: Path | None = None,
        device: str = "cpu",
        pause: Callable[[], bool] = never,
        judged: bool = True,
        cadence: Cadence = CADENCE,
    ) -> None:
        self._load, self._data_dir, self._device, self._judged = load, data_dir, device, judged
        self._pause, self._cadence, self._clock = pause, cadence, Stopwatch(cadence.now)
        self._queued: list[Member] = []
        self._trials: list[Trained] = []
        self._common: Common | None = None
        self._key: str | None = None
        self._step: Step = _no_step
        self._running: tuple[list[Trained], Means] = ([], Means(None))
        self._next_question = self._settled = 0.0

    def add(self, members: Sequence[Member]) -> None:
        """Add trials, which begin at the next boundary of an epoch."""
        self._queued.extend(members)

    def drop(self, key: TrialKey) -> None:
        """Stop training a trial; its checkpoints stay."""
        self._queued = [member for member in self._queued if member.config.key != key]
        self._trials = [trial for trial in self._trials if trial.config.key != key]

    def close(self) -> None:
        """Release the data and the memory of all trials."""
        self._queued, self._trials, self._common, self._step = [], [], None, _no_step
        self._running = ([], Means(None))

    def advance(self) -> Mapping[TrialKey, Report | Exception]:
        """Train until a trial reports, pauses or fails; return the report or error of each such trial, as `Pack` says.

        A trial that resumes after a report first returns it again. The result is empty if the pack has no trials.
        """
        said = self._joined()
        try:
            while not said and self._trials:
                step = max(trial.progress.step for trial in self._trials)  # furthest in an interrupted epoch
                said = self._epoch([trial for trial in self._trials if trial.progress.step == step])
        except _Paused:
            said = self._paused()
        ended = {key for key, one in said.items() if isinstance(one, Exception) or one.final}
        self._trials = [trial for trial in self._trials if trial.config.key not in ended]
        return said

    def _joined(self) -> Said:
        """Add the queued trials; return their stored reports, and the errors of those that cannot join."""
        said: Said = {}
        queued, self._queued = self._queued, []
        for member in queued:
            key = member.config.key
            try:
                trial = self._begun(member)
            except OF_ALL:
                raise
            except Exception as error:  # its checkpoint or its data
                said[key] = error
                continue
            self._trials.append(trial)
            if trial.progress.report is not None:
                said[key] = trial.progress.report
        return said

    def _begun(self, member: Member) -> Trained:
        """Return a new trial, restored from its newest checkpoint if any; raise RequestError for another group key."""
        common, config = self._common, member.config
        if common is None:
            common = Common.of(
                config, data_dir=self._data_dir, device=self._device, load=self._load, judged=self._judged
            )
            self._common, self._key = common, group_key(config, common.shape)
        elif self._key is None or self._key != group_key(config, common.shape):
            raise RequestError(f"trial {config.key} cannot join this pack: its group key differs")
        trial = common.prepared(member)
        if not self._trials:
            self._step = training_step(common.group, steps=len(trial.schedule))
        trial.progress.go_on()
        trial.saved_at = self._clock.seconds()
        if trial.progress.step:
            trial.begun = Means(common.group.pad)
            self._key_dropout(trial)
            trial.progress.take_up(trial.begun)
        return trial

    def _epoch(self, trials: list[Trained]) -> Said:
        """Train an epoch of `trials`, or the rest of it, and return their reports and errors."""
        common = self._common
        assert common is not None
        common.line_up(trials)
        self._clock.start()
        means = self._train(common, trials)
        due = [trial for trial in trials if _is_due(trial) and bool(trial.alive.any())]
        metrics = self._metrics(common, due, means) if due else {}
        self._settle()
        self._clock.stop()
        said: Said = {}
        for trial in trials:
            key, progress = trial.config.key, trial.progress
            if trial.fault is not None:
                said[key] = trial.fault
            elif not bool(trial.alive.any()):
                said[key] = common.diverged(trial)
            else:
                progress.end_epoch()
                if key in metrics:
                    said[key] = self._reported(trial, metrics[key])
        return said

    def _reported(self, trial: Trained, metrics: tuple[dict[str, float], ...]) -> Report | Exception:
        """Write the checkpoint of the epoch that has ended; return its report, or the error if that fails."""
        final = trial.progress.epoch == trial.config.epochs
        report = Report(
            epoch=trial.progress.epoch,
            metrics=metrics,
            wall_seconds=trial.progress.seconds,
            diverged=tuple(not alive for alive in trial.alive.tolist()),
            final=final,
        )
        trial.saved_at = self._clock.seconds()
        try:
            return trial.progress.keep(report)
        except CheckpointDownError as error:
            return error

    def _train(self, common: Common, trials: list[Trained]) -> Means:
        """Train an epoch of `trials`, or the rest of it; return the means of loss and metrics over the whole epoch."""
        group, lead = common.group, trials[0]
        batch, begun = lead.training.batch_size, lead.progress.step
        index = torch.cat([epoch_index(t.config, t.parts.train, epoch=t.progress.epoch + 1) for t in trials])
        left = index[:, begun * batch :]  # slices the index: seen samples are not read again
        augmentation = [key for t in trials for key in keys(t.config, "augmentation", t.progress.epoch + 1)]
        batches = lead.parts.train.batches(left, batch, keys=augmentation)
        means = self._begin(common, trials)
        with closing(batches):
            self._ask()
            for step, (x, targets) in enumerate(batches if left.numel() else (), start=begun):
                scores, losses = self._step(x, targets)
                means.add(common.task.metrics(scores, targets), targets, losses=losses)
                if step % STEPS_BETWEEN_CHECKS == 0 and not bool(group.alive.any()):
                    break
                for trial in trials:
                    trial.progress.step += 1
                self._ask()
        return means

    def _begin(self, common: Common, trials: list[Trained]) -> Means:
        """Seed the dropout of an epoch of `trials`, unless a checkpoint restored it; return the means so far."""
        group = common.group
        begun = [trial.begun for trial in trials if trial.begun is not None]
        means = Means.joined(begun) if begun else Means(group.pad)
        for trial in trials:
            if trial.begun is None:
                self._key_dropout(trial)
            trial.begun = None
        generators = [generator for trial in trials for generator in trial.replicas.generators]
        group.module.train()
        group.give_generators(generators)
        self._running = (trials, means)
        return means

    def _key_dropout(self, trial: Trained) -> None:
        device = trial.replicas.layout.device
        dropout = keys(trial.config, "dropout", trial.progress.epoch + 1)
        if not trial.replicas.generators:  # the same ones in each epoch: a recorded step holds them
            trial.replicas.generators = [torch.Generator(device) for _ in dropout]
        for generator, key in zip(trial.replicas.generators, dropout, strict=True):
            generator.manual_seed(key)

    def _metrics(
        self, common: Common, trials: list[Trained], means: Means
    ) -> dict[TrialKey, tuple[dict[str, float], ...]]:
        """Return the metrics of the reports that are due, one dictionary per replicate.

        May raise _Paused between two batches. Of the training state only `alive` has changed then, and a resumed trial
        repeats that change. An error of one trial alone is stored as its `fault`.
        """
        validation = common.validated(trials, self._ask)
        found, start = {}, 0
        for trial in trials:
            stop = start + len(trial.span)
            try:
                val = {name: value[start:stop] for name, value in validation.items()}
                trial.alive.logical_and_(torch.isfinite(val["loss"]))
                if bool(trial.alive.any()):
                    running = {f"train_{name}": trial.of(value) for name, value in means.values().items()}
                    judged = trial.listed(running | self._judged_values(common, trial, val))
                    found[trial.config.key] = self._tested(common, trial, judged)
            except (_Paused, *OF_ALL):
                raise
            except Exception as error:  # a test part that cannot be read
                trial.fault = error
            start = stop
        return found

    def _judged_values(self, common: Common, trial: Trained, val: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what `trial` reports beside the means over its epoch, one value per replicate."""
        written = common.corpus(trial, trial.parts.validation, "validation", self._ask)
        values = {f"val_{name}": value for name, value in (val | written).items()}
        values["learning_rate"] = trial.of(common.group.learning_rates())
        return values

    def _tested(
        self, common: Common, trial: Trained, metrics: tuple[dict[str, float], ...]
    ) -> tuple[dict[str, float], ...]:
        """Return the metrics of a report; at the end of a confirmation with those of the network that counts."""
        if not _is_last(trial) or trial.config.stage != "confirm":
            return metrics
        with trial.progress.counted_weights(metrics):
            tested = trial.listed(common.test_values(trial, self._ask))
        return tuple({**before, **after} for before, after in zip(metrics, tested, strict=True))

    def _ask(self) -> None:
        """Between two steps, raise _Paused on request, and write checkpoints if the interval has passed."""
        seconds = self._clock.seconds()
        if seconds >= self._next_question:
            self._next_question = seconds + self._cadence.ask_seconds
            if self._pause():
                raise _Paused
        trials, means = self._running
        unsaved = [t for t in trials if seconds - t.saved_at >= self._cadence.checkpoint_seconds]
        if unsaved:
            self._settle()
            with self._clock.stopped():
                for trial in unsaved:
                    trial.saved_at = seconds
                    try:
                        trial.progress.save(means.part(trial.start, trial.span.stop))
                    except CheckpointDownError as error:
                        trial.fault = error

    def _paused(self) -> Said:
        """Write a checkpoint of every trial, and return the error that ends each."""
        self._settle()
        self._clock.stop()
        running, means = self._running
        said: Said = {
            m.config.key: PausedError(f"trial {m.config.key} has paused before it began") for m in self._queued
        }
        self._queued = []
        for trial in self._trials:
            so_far = means.part(trial.start, trial.span.stop) if trial in running else Means(None)
            try:
                said[trial.config.key] = trial.fault or trial.progress.paused(so_far)
            except CheckpointDownError as error:
                said[trial.config.key] = error
        return said

    def _settle(self) -> None:
        """Divide the training time since the last call among the running trials, in proportion to their replicates."""
        seconds, (trials, _) = self._clock.seconds(), self._running
        replicates = sum(len(trial.span) for trial in trials)
        for trial in trials:
            trial.progress.seconds += (seconds - self._settled) * (len(trial.span) / replicates)
        self._settled = seconds


def _no_step(x: ModelInput, targets: Tensor) -> tuple[Tensor, Tensor]:
    raise AssertionError("the pack has no trials")


def _is_last(trial: Trained) -> bool:
    return trial.progress.epoch + 1 == trial.config.epochs


def _is_due(trial: Trained) -> bool:
    """Return whether the trial reports after the epoch that it is in."""
    return _is_last(trial) or (trial.progress.epoch + 1) % trial.training.report_every == 0
