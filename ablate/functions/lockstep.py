"""Trains a trial of a user's function: its seeds in lockstep, one report at a time, each with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch

from ablate.errors import TrialError
from ablate.files import Place
from ablate.functions.function import Function
from ablate.functions.keeping import GlobalRandomness
from ablate.functions.run import Kept, Run, checked_metrics, checked_test
from ablate.functions.settings import FunctionSettings
from ablate.functions.stacked import Runs
from ablate.trainable import TrialContext
from ablate.training import checkpoint
from ablate.training.checkpoint import Checkpoint, CheckpointId
from ablate.training.progress import Stopwatch
from ablate.trial import Report, TrialConfig

Metrics = tuple[dict[str, float], ...]  # one dictionary per seed
Check = Callable[[object, Run], dict[str, float]]


class _Call:
    """One call of the user's function: its run, its generator, and the global random state that belongs to it.

    There is one for each seed of a trial, or one for all seeds of a stacked function.
    """

    def __init__(self, function: Function, config: Mapping[str, Any], run: Run) -> None:
        self.run = run
        self._config = config
        self._function = function
        self._randomness = GlobalRandomness()
        self._generator: Generator[Any, None, None] | None = None
        self._started = False

    def advance(self) -> Metrics | None:
        """Return the metrics of the next report, or None at the end; random states of other calls are not seen."""
        with self._own_randomness():
            if self._generator is None:
                begun = self._function.train(dict(self._config), self.run)
                self._generator = begun if isinstance(begun, Generator) else _nothing()
                if not isinstance(begun, Generator):
                    self.run.epoch = 1
                    self.run.check_parts()
                    return self._checked(begun, checked_metrics)
            reported = next(self._generator, None)
            if reported is not None:
                self.run.check_parts()
            return None if reported is None else self._checked(reported, checked_metrics)

    def test(self) -> Metrics:
        """Return what the function's `test` says of the kept model."""
        with self._own_randomness():
            return self._checked(self._function.tested(self.run, dict(self._config)), checked_test)

    def _checked(self, value: object, check: Check) -> Metrics:
        if not isinstance(self.run, Runs):
            return (check(value, self.run),)
        if not isinstance(value, list | tuple) or len(value) != len(self.run):
            raise TrialError(f"a function with `runs` gives a list of {len(self.run)} dictionaries, one for each seed")
        return tuple(check(one, run) for one, run in zip(value, self.run, strict=True))

    def close(self) -> None:
        """End the user's generator: its `finally` blocks run."""
        if self._generator is not None:
            with self._own_randomness():
                self._generator.close()

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        if self._started:
            self._randomness.give()
        else:
            self.run.seed_globals("start")
            self._started = True
        try:
            yield
        finally:
            self._randomness.take()


def _nothing() -> Generator[Any, None, None]:
    yield from ()


@dataclass(kw_only=True)
class _Lockstep:
    config: TrialConfig
    calls: Sequence[_Call]
    place: Place | None
    attempt: int
    clock: Stopwatch
    checked: bool = False  # whether the state at a report was noted, to be compared with that at the next epoch

    def resumed(self, found: Checkpoint | None) -> Iterator[Report]:
        """Yield the report of the checkpoint, if there is one, and those of the epochs that are left."""
        epoch = 0
        if found is not None and found.report is not None:
            self.clock.set(found.wall_seconds)
            if self.place is not None and found.checkpoint_id.attempt < self.attempt:
                found = checkpoint.rewrite(self.place, found, self.attempt)
            report = found.report
            assert report is not None
            yield report
            keeps = any(state for state in found.state["seeds"])
            epoch = report.epoch if keeps or report.final else 0
        yield from self.reports(epoch)

    def read_test(self, found: Checkpoint | None) -> Iterator[Report]:
        """Yield the last report of the evaluated trial with what `test` says of its networks.

        A function that loops over epochs restores its objects and trains nothing; one that returns is run again.
        Raises CheckpointError if the checkpoint of its last epoch is missing.
        """
        _, report = checkpoint.final_report(found, self.config, self.place)
        for call in self.calls:
            call.advance()  # to the end of its loop, which has no epoch left: the objects are kept and restored
        yield replace(report, metrics=self.tested(report.metrics), wall_seconds=0.0, checkpoint=None)

    def reports(self, epoch: int) -> Iterator[Report]:
        """Yield a report for each epoch after `epoch`, its checkpoint durable."""
        length = self.config.epochs
        while epoch < length:
            self.clock.start()
            advanced = [call.advance() for call in self.calls]
            seconds = self.clock.stop()
            metrics = tuple(each for found in advanced if found is not None for each in found)
            if len(metrics) < len(self.config.seeds):
                if epoch == 0:
                    raise TrialError("the function ended without a report: `yield` a dictionary of metrics each epoch")
                raise TrialError(f"the function ended after {epoch} of {length} epochs: loop over run.epochs()")
            reached = {call.run.epoch for call in self.calls}
            if reached != {epoch + 1}:
                raise TrialError(
                    f"the function reported in epoch {max(reached)} where {epoch + 1} was due: `yield` once in each"
                    " epoch of run.epochs()"
                )
            epoch += 1
            if epoch == length and self.config.stage == "confirm":
                metrics = self.tested(metrics)
            yield self.keep(Report(epoch=epoch, metrics=metrics, wall_seconds=seconds, final=epoch == length))

    def tested(self, metrics: Sequence[Mapping[str, float]]) -> Metrics:
        """Return `metrics` with those of the test split added."""
        added = [found for call in self.calls for found in call.test()]
        return tuple({**before, **found} for before, found in zip(metrics, added, strict=True))

    def keep(self, report: Report) -> Report:
        """Write the checkpoint that belongs to a report and return the report with its name."""
        if self.place is None:
            return report
        position = CheckpointId(attempt=self.attempt, epoch=report.epoch)
        report = replace(report, checkpoint=position.name)
        kept = [call.run.state() for call in self.calls]
        if not self.checked:
            self.checked = True
            for call, state in zip(self.calls, kept, strict=True):
                call.run.reported = state
        tensors = {f"{i}.{name}": tensor for i, one in enumerate(kept) for name, tensor in one.tensors.items()}
        checkpoint.write(
            self.place,
            Checkpoint(
                checkpoint_id=position,
                report=report,
                wall_seconds=report.wall_seconds,
                tensors=tensors or {"empty": torch.zeros(0)},
                trial=self.config.to_json(),
                state={
                    "seeds": [dict(one.states) for one in kept],
                    "streams": [dict(one.streams) for one in kept],
                },
            ),
        )
        return report


def train(function: Function, config: TrialConfig, **context: Unpack[TrialContext]) -> Iterator[Report]:
    """Yield the reports of a trial of a user's function; the last one of its checkpoint is offered again first.

    Raises TrialError for a fault of the function, CheckpointError and CheckpointDownError as in `training.train`, and
    PausedError once `pause()` is true: between two batches of `run.loader` or at the beginning of an epoch. What was
    trained since the last report is then trained again.
    """
    checkpoints, attempt = context["checkpoints"], context["attempt"]
    where = None if config.evaluates is not None else attempt
    found = None if checkpoints is None else checkpoint.newest(checkpoints, config.origin, attempt=where)
    lockstep = _Lockstep(
        config=config,
        calls=_calls(function, config, found, device=context["device"], pause=context["pause"]),
        place=checkpoints,
        attempt=attempt,
        clock=Stopwatch(),
    )
    try:
        yield from lockstep.read_test(found) if config.evaluates is not None else lockstep.resumed(found)
    finally:
        for call in lockstep.calls:
            call.close()


def _calls(
    function: Function, config: TrialConfig, found: Checkpoint | None, *, device: str, pause: Callable[[], bool]
) -> list[_Call]:
    assert isinstance(config.settings, FunctionSettings)
    count = 1 if function.stacked else len(config.seeds)
    # a function that returns is run from its beginning, and so is one whose seeds were kept in another way
    again = found is None or not function.reports_epochs or len(found.state["seeds"]) != count
    kept: Sequence[Kept | None] = [None] * count if again or found is None else _kept(found)
    common: dict[str, Any] = {
        "study_seed": config.study_seed,
        "dataset": config.key.dataset,
        "length": config.epochs,
        "device": device,
        "stage": config.stage,
        "replace": config.settings.replace,
        "pause": pause,
    }
    runs: list[Run] = (
        [Runs(seeds=config.seeds, found=kept[0], **common)]
        if function.stacked
        else [Run(seed=seed, found=state, **common) for seed, state in zip(config.seeds, kept, strict=True)]
    )
    return [_Call(function, config.settings.config, run) for run in runs]


def _kept(found: Checkpoint) -> list[Kept]:
    return [
        Kept(
            epoch=found.checkpoint_id.epoch,
            states=state,
            streams=streams,
            tensors={n.removeprefix(f"{i}."): t for n, t in found.tensors.items() if n.startswith(f"{i}.")},
        )
        for i, (state, streams) in enumerate(zip(found.state["seeds"], found.state["streams"], strict=True))
    ]
