"""Trains a trial of a user's function: its seeds in lockstep, one report at a time, each with a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import torch

from ablate.base.errors import AblateError, PausedError, TrialError
from ablate.base.files import Place
from ablate.base.sample_files import SampleValues
from ablate.core.trainable import TrialContext
from ablate.core.trial import Report, TrialConfig
from ablate.engine.training import checkpoint
from ablate.engine.training.checkpoint import Checkpoint, CheckpointId
from ablate.engine.training.progress import Counted, Stopwatch, final_report
from ablate.functions.call import Call, Metrics
from ablate.functions.function import Function
from ablate.functions.metrics import Tested
from ablate.functions.output import ended_early_text
from ablate.functions.ranks import Ranks
from ablate.functions.run import Kept, Run
from ablate.functions.settings import FunctionSettings

logger = logging.getLogger("ablate.functions")


@dataclass(kw_only=True)
class _Lockstep:
    config: TrialConfig
    calls: Sequence[Call]
    place: Place | None
    attempt: int
    clock: Stopwatch
    counted: Counted
    latest: list[Metrics | None]  # of each call, the metrics of its last report
    ended: list[bool]  # which calls have ended by themselves before the last epoch
    checked: bool = False  # whether the state at a report was noted, to be compared with that at the next epoch

    def resumed(self, found: Checkpoint | None) -> Iterator[Report]:
        """Yield the report of the checkpoint, if there is one, and those of the epochs that are left.

        The functions then run to their ends.
        """
        if found is not None and found.report is not None:
            self.clock.set(found.wall_seconds)
            if self.place is not None and found.checkpoint_id.attempt < self.attempt:
                found = checkpoint.rewrite(self.place, found, self.attempt)
            report = found.report
            assert report is not None
            self.counted.restore(found)
            yield report
            if report.final and (found.state["returned"] or not any(found.state["seeds"])):
                return  # called again, the function would train from its beginning
            if not report.final:
                yield from self.reports()
        else:
            yield from self.reports()
        _raise_first([call.finish for call in self.calls])

    def read_test(self, found: Checkpoint | None) -> Iterator[Report]:
        """Yield the report of the evaluated trial that counts with what `test` says of its networks.

        A function restores its objects and trains nothing; one that returns its report is run again. Raises
        CheckpointError if the checkpoint of its last epoch is missing, TrialError if a function trains again.
        """
        best, report = final_report(found, self.config, self.place)
        for call in self.calls:
            if call.advance() is not None and not call.returned:
                raise TrialError(
                    "the function trains again when only its model is asked for: loop over run.epochs(), or begin after"
                    " the reports that run.begin() counts"
                )
        self.restore(_kept(best) if self.config.best is not None else [])
        yield replace(report, metrics=self.tested(report.metrics), wall_seconds=0.0, checkpoint=None)

    def reports(self) -> Iterator[Report]:
        """Yield a report for each epoch that is left, its checkpoint durable."""
        length = self.config.epochs
        epoch: int | None = None
        while epoch is None or epoch < length:
            self.clock.start()
            for index in range(len(self.calls)):
                self._advance(index)
            if epoch is None:  # a seed whose files were lost begins again, and catches up
                epoch = max(call.run.restored for call in self.calls)
                for index, call in enumerate(self.calls):
                    while not self.ended[index] and call.run.epoch <= epoch:
                        self._advance(index)
            seconds = self.clock.stop()
            self._require_all(epoch)
            if epoch == 0 and self.config.expects:
                self.calls[0].try_test(self.config.expects)
            if all(self.ended):
                print(ended_early_text(epoch, length))
            epoch = length if all(self.ended) else epoch + 1
            metrics = tuple(found for found in self.latest if found is not None)
            kept = [] if self.place is None and self.config.best is None else [call.run.state() for call in self.calls]
            if epoch == length and self.config.stage == "confirm":
                metrics = self._confirmed(metrics, kept)
            yield self.keep(Report(epoch=epoch, metrics=metrics, wall_seconds=seconds, final=epoch == length), kept)

    def _advance(self, index: int) -> None:
        """Let a call make its next report, unless it has ended: then its last report stays."""
        found = None if self.ended[index] else self.calls[index].advance()
        self.ended[index] = found is None
        self.latest[index] = found or self.latest[index]

    def _confirmed(self, metrics: Sequence[Metrics], kept: Sequence[Kept]) -> tuple[Metrics, ...]:
        """Return the metrics of the last report, and those of the test split of the networks that count.

        They are those of the best report, or what the function ends with.
        """
        _raise_first([call.finish for call in self.calls])
        if self.config.best is not None:
            epoch = Ranks.here().told_by_first(None if self.counted.is_replaced(metrics) else self.counted.epoch)
            self.restore(kept if epoch is None else self._best(epoch))
        try:
            return self.tested(metrics)
        except TrialError as error:
            rule = "in a confirmation `test` runs after the function's end: leave open what it reads"
            raise TrialError(f"{error} ({rule})", error.kind, error.detail) from error

    def _require_all(self, epoch: int) -> None:
        """Raise TrialError unless each seed has made the report after that of `epoch`, or has ended before it."""
        if None in self.latest:
            raise TrialError(
                "the function ended without a report: `yield` a dictionary of metrics each epoch, or call run.report"
                " with one"
            )
        for call, ended in zip(self.calls, self.ended, strict=True):
            if not ended and call.run.epoch != epoch + 1:
                raise TrialError(
                    f"{call.place}the function reported in epoch {call.run.epoch} where {epoch + 1} was due: report"
                    " once in each epoch of run.epochs()"
                )

    def tested(self, metrics: Sequence[Mapping[str, float]]) -> tuple[Metrics, ...]:
        """Return `metrics` with those of the test split added; what `test` says of each sample is written."""
        added = [call.test() for call in self.calls]
        if self.place is not None:
            checkpoint.keep_samples(self.place, self.attempt, _by_sample(added))
        return tuple({**before, **found.metrics} for before, found in zip(metrics, added, strict=True))

    def _best(self, epoch: int) -> Sequence[Kept]:
        """Return the states of the seeds at the report that counts; raise CheckpointError if they are lost."""
        found = self.counted.state(self.attempt, epoch)
        return _kept(found) if isinstance(found, Checkpoint) else found

    def restore(self, kept: Sequence[Kept]) -> None:
        """Give the kept objects the states of a report; those of a function that returned its report stay."""
        for call, state in zip(self.calls, kept, strict=False):
            if not call.returned:
                call.restore(state)

    def keep(self, report: Report, kept: Sequence[Kept]) -> Report:
        """Write the checkpoint that belongs to a report, with the states of then; return the report with its name."""
        self.counted.take(report, kept)
        if self.place is None:
            return report
        position = CheckpointId(attempt=self.attempt, epoch=report.epoch)
        report = replace(report, checkpoint=position.name)
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
                trial=checkpoint.identity(self.config),
                state={
                    "seeds": [dict(one.states) for one in kept],
                    "streams": [dict(one.streams) for one in kept],
                    "returned": any(call.returned for call in self.calls),
                    "ended": list(self.ended),
                },
                counted=self.counted.epoch,
            ),
        )
        return report


def _by_sample(tested: Sequence[Tested]) -> SampleValues:
    """Return the metrics that every seed's `test` gave by sample, for equally many samples in the user's order."""
    lengths = {name: {len(found.samples.get(name, ())) for found in tested} for name in tested[0].samples}
    shared = [name for name, found in lengths.items() if len(found) == 1]
    return SampleValues(
        values={name: np.stack([found.samples[name] for found in tested]) for name in shared}, split="in order"
    )


def train(function: Function, config: TrialConfig, **context: Unpack[TrialContext]) -> Iterator[Report]:
    """Return the reports of a trial of a user's function; the last one of its checkpoint is offered again first.

    The checkpoint is read before the first report is asked for, so that no rank reads what another one writes. Raises
    TrialError for a fault of the function, CheckpointError and CheckpointDownError as in `training.train`, and
    PausedError once `pause()` is true: between two batches of `run.loader` or at the beginning of an epoch. What was
    trained since the last report is then trained again.
    """
    checkpoints, attempt = context["checkpoints"], context["attempt"]
    where = None if config.evaluates is not None else attempt
    found = None if checkpoints is None else checkpoint.newest(checkpoints, config.origin, attempt=where)
    calls = _calls(function, config, found, context)
    lockstep = _Lockstep(
        config=config,
        calls=calls,
        place=checkpoints if Ranks.here().rank == 0 else None,  # the first rank's checkpoint is that of all
        attempt=attempt,
        clock=Stopwatch(),
        counted=Counted(config, checkpoints),
        latest=[None] * len(calls)
        if found is None or found.report is None
        else [dict(metrics) for metrics in found.report.metrics],
        ended=[False] * len(calls),
    )
    return _trained(lockstep, found)


def _trained(lockstep: _Lockstep, found: Checkpoint | None) -> Iterator[Report]:
    """Yield the reports, and end the calls of the function with the caller or with the first error."""
    try:
        yield from lockstep.read_test(found) if lockstep.config.evaluates is not None else lockstep.resumed(found)
    except GeneratorExit:
        _raise_first([call.stop for call in lockstep.calls])
        raise
    except BaseException:
        for call in lockstep.calls:
            try:
                call.stop()
            except (TrialError, PausedError) as error:  # the first error is what ended the trial
                logger.warning("while its trial was ended: %s", error)
        raise


def _raise_first(steps: Iterable[Callable[[], None]]) -> None:
    """Take every step, and then raise the first TrialError or PausedError of them, if there is one."""
    failed: list[AblateError] = []
    for step in steps:
        try:
            step()
        except (TrialError, PausedError) as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _calls(function: Function, config: TrialConfig, found: Checkpoint | None, context: TrialContext) -> list[Call]:
    assert isinstance(config.settings, FunctionSettings)
    # a function that returned its report is run from its beginning
    again = found is None or found.state["returned"]
    kept: Sequence[Kept | None] = [None] * len(config.seeds) if again or found is None else _kept(found)
    common: dict[str, Any] = {
        "study_seed": config.study_seed,
        "dataset": config.key.dataset,
        "length": config.epochs,
        "device": context["device"],
        "stage": config.stage,
        "replace": config.settings.replace,
        "pause": context["pause"],
        "checkpoints": context["checkpoints"],
        "ranks": Ranks.here(),
    }
    runs = [Run(seed=seed, found=state, **common) for seed, state in zip(config.seeds, kept, strict=True)]
    return [Call(function, config.settings.config, run) for run in runs]


def _kept(found: Checkpoint) -> list[Kept]:
    return [
        Kept(
            epoch=found.checkpoint_id.epoch,
            states=state,
            streams=streams,
            tensors={n.removeprefix(f"{i}."): t for n, t in found.tensors.items() if n.startswith(f"{i}.")},
            ended=found.state["ended"][i],
        )
        for i, (state, streams) in enumerate(zip(found.state["seeds"], found.state["streams"], strict=True))
    ]
