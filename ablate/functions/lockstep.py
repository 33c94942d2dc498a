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
from ablate.engine.training.progress import Stopwatch
from ablate.functions.call import Call, Metrics
from ablate.functions.function import Function
from ablate.functions.metrics import Tested
from ablate.functions.ranks import Ranks
from ablate.functions.run import Kept, Run
from ablate.functions.settings import FunctionSettings
from ablate.functions.stacked import Runs

logger = logging.getLogger("ablate.functions")


@dataclass(kw_only=True)
class _Lockstep:
    config: TrialConfig
    calls: Sequence[Call]
    place: Place | None
    attempt: int
    clock: Stopwatch
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
            yield report
            if report.final and (found.state["returned"] or not any(found.state["seeds"])):
                return  # called again, the function would train from its beginning
            if not report.final:
                yield from self.reports()
        else:
            yield from self.reports()
        _raise_first([call.finish for call in self.calls])

    def read_test(self, found: Checkpoint | None) -> Iterator[Report]:
        """Yield the last report of the evaluated trial with what `test` says of its networks.

        A function restores its objects and trains nothing; one that returns its report is run again. Raises
        CheckpointError if the checkpoint of its last epoch is missing, TrialError if a function trains again.
        """
        _, report = checkpoint.final_report(found, self.config, self.place)
        for call in self.calls:
            if call.advance() is not None and not call.returned:
                raise TrialError(
                    "the function trains again when only its model is asked for: loop over run.epochs(), or begin after"
                    " the reports that run.begin() counts"
                )
        yield replace(report, metrics=self.tested(report.metrics), wall_seconds=0.0, checkpoint=None)

    def reports(self) -> Iterator[Report]:
        """Yield a report for each epoch that is left, its checkpoint durable."""
        length = self.config.epochs
        epoch: int | None = None
        while epoch is None or epoch < length:
            self.clock.start()
            advanced = [call.advance() for call in self.calls]
            if epoch is None:  # a seed whose files were lost begins again, and catches up
                epoch = max(call.run.restored for call in self.calls)
                for index, call in enumerate(self.calls):
                    while advanced[index] is not None and call.run.epoch <= epoch:
                        advanced[index] = call.advance()
            seconds = self.clock.stop()
            metrics = tuple(each for found in advanced if found is not None for each in found)
            self._require_all(metrics, epoch)
            if epoch == 0 and self.config.expects:
                self.calls[0].try_test(self.config.expects)
            epoch += 1
            kept = [] if self.place is None else [call.run.state() for call in self.calls]
            if epoch == length and self.config.stage == "confirm":
                _raise_first([call.finish for call in self.calls])  # `test` is given what the function ends with
                try:
                    metrics = self.tested(metrics)
                except TrialError as error:
                    rule = "in a confirmation `test` runs after the function's end: leave open what it reads"
                    raise TrialError(f"{error} ({rule})", error.kind, error.detail) from error
            yield self.keep(Report(epoch=epoch, metrics=metrics, wall_seconds=seconds, final=epoch == length), kept)

    def _require_all(self, metrics: Metrics, epoch: int) -> None:
        """Raise TrialError unless each seed has made the report after that of `epoch`."""
        if len(metrics) < len(self.config.seeds):
            if epoch == 0:
                raise TrialError(
                    "the function ended without a report: `yield` a dictionary of metrics each epoch, or call"
                    " run.report with one, and leave early stopping to the study"
                )
            raise TrialError(
                f"the function ended after {epoch} of {self.config.epochs} epochs: make a report in each; the study"
                " stops trials early, not the function"
            )
        for call in self.calls:
            if call.run.epoch != epoch + 1:
                raise TrialError(
                    f"{call.place}the function reported in epoch {call.run.epoch} where {epoch + 1} was due: report"
                    " once in each epoch of run.epochs()"
                )

    def tested(self, metrics: Sequence[Mapping[str, float]]) -> Metrics:
        """Return `metrics` with those of the test split added; what `test` says of each sample is written."""
        added = [found for call in self.calls for found in call.test()]
        if self.place is not None:
            checkpoint.keep_samples(self.place, self.attempt, _by_sample(added))
        return tuple({**before, **found.metrics} for before, found in zip(metrics, added, strict=True))

    def keep(self, report: Report, kept: Sequence[Kept]) -> Report:
        """Write the checkpoint that belongs to a report, with the states of then; return the report with its name."""
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
                },
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
    lockstep = _Lockstep(
        config=config,
        calls=_calls(function, config, found, context),
        place=checkpoints if Ranks.here().rank == 0 else None,  # the first rank's checkpoint is that of all
        attempt=attempt,
        clock=Stopwatch(),
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
    count = 1 if function.stacked else len(config.seeds)
    # a function that returned its report is run from its beginning, and so is one whose seeds were kept in another way
    again = found is None or found.state["returned"] or len(found.state["seeds"]) != count
    kept: Sequence[Kept | None] = [None] * count if again or found is None else _kept(found)
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
    runs: list[Run] = (
        [Runs(seeds=config.seeds, found=kept[0], **common)]
        if function.stacked
        else [Run(seed=seed, found=state, **common) for seed, state in zip(config.seeds, kept, strict=True)]
    )
    return [Call(function, config.settings.config, run) for run in runs]


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
