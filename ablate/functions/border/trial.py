"""Trains a trial of a user's code: each seed has its own process, and an epoch is reported once all seeds have it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Unpack

import numpy as np

from ablate.base.ending import COMMAND_SECONDS, STOP_SECONDS
from ablate.base.errors import AblateError, PausedError
from ablate.base.files import SEED_STATE, expect_ledger
from ablate.base.sample_files import SampleValues
from ablate.core.objectives import mean
from ablate.core.registry import OWN_COMMAND, trainable_kind
from ablate.core.trainable import TrialContext
from ablate.core.trial import Report, TrialConfig
from ablate.functions.border.process import UserProcess
from ablate.functions.output import Output, ended_early_text, files_of
from ablate.functions.seed_messages import Best, Keep, Metrics, Reported, Restored, Stored

Start = Callable[[Output, Callable[[], object]], UserProcess]
Note = Callable[[str, str], None]  # takes what a user is to know, by subject

logger = logging.getLogger("ablate.functions")


def train(start: Start, config: TrialConfig, note: Note, **context: Unpack[TrialContext]) -> Iterator[Report]:
    """Yield the reports of a trial of a user's code; the last one of its checkpoints is offered again first.

    `start` starts a process that has imported a function, or that supervises a command. Raises TrialError for a fault
    of the code, CheckpointError and CheckpointDownError as in `training.train`, and PausedError once `pause()` is true:
    between two batches of `run.loader` or at the beginning of an epoch, and at any time in a command. What was trained
    since the last report is then trained again. When the caller stops, or the trial ends, so do the processes and all
    that they have started.
    """
    expect_ledger(context["checkpoints"], config.ledger)
    output = Output(context["checkpoints"])
    trial = _Trial(config, context, output, note)
    try:
        trial.begin(start)
        yield from trial.tested() if config.evaluates is not None else trial.reports()
    except GeneratorExit:
        trial.stop(trial.grace)
        raise
    except BaseException:
        trial.stop(lambda: STOP_SECONDS)
        raise
    finally:
        trial.end()
        output.close()


class _Seed:
    def __init__(self, number: int, process: UserProcess) -> None:
        self.number, self.process = number, process
        self.waits = True  # whether it waits for a request
        self.failed = False  # whether its training has ended with an error
        self.epoch, self.ended = 0, False
        self.metrics: Metrics | None = None
        self.restored: Restored | None = None

    def send(self, request: str, *arguments: Any) -> None:
        self.waits = False
        self.process.send(request, *arguments)

    def receive(self, **options: Any) -> Any:
        try:
            found = self.process.receive(**options)
        except AblateError:
            self.failed = True
            raise
        self.waits = True
        return found


class _Trial:
    """The seeds of a trial; a checkpoint of a seed is written once every seed has made the report.

    So the seeds of a trial that was interrupted are at most one report apart.
    """

    def __init__(self, config: TrialConfig, context: TrialContext, output: Output, note: Note) -> None:
        self._config, self._context, self._output, self._note = config, context, output, note
        self._seeds: list[_Seed] = []
        self._best: Best | None = None  # of the report that counts so far
        self._seconds = 0.0
        self._is_command = trainable_kind(config.trainable) == OWN_COMMAND

    def begin(self, start: Start) -> None:
        """Start the processes of the seeds, and read their checkpoints."""
        context = dict(self._context)
        threads = context.pop("threads", 1)
        context.pop("pause")
        files = files_of(self._context["checkpoints"])
        for number in self._config.seeds:
            seed = _Seed(number, start(self._output, self._output.trim))
            self._seeds.append(seed)
            seed.send("train", replace(self._config, seeds=(number,)), threads, files, context)
        for seed in self._seeds:
            seed.restored = seed.receive()

    def reports(self) -> Iterator[Report]:
        """Yield a report for each epoch that is left, its checkpoints durable, and that of the checkpoints first.

        The functions then run to their ends.
        """
        length, done = self._config.epochs, 0
        if any(seed.restored for seed in self._seeds):
            report = self._restored()
            yield report
            if report.final and all(seed.restored is not None and seed.restored.complete for seed in self._seeds):
                return  # called again, the function would train from its beginning
            done = report.epoch
        while done < length:
            self._advance(self._seeds)
            if done == 0 and self._config.expects:
                self._ask(self._seeds[0], "try_test", self._config.expects)
            ended = all(seed.ended for seed in self._seeds)
            if ended and done:
                self._output.write(f"{ended_early_text(done, length)}\n".encode())
            done = length if ended else done + 1
            yield self._report(done, self._stored(self._seeds, done))
        self._finish()

    def tested(self) -> Iterator[Report]:
        """Yield the report of the evaluated trial that counts with what `test` says of its networks."""
        stored: list[Stored] = []
        for group in self._groups(self._seeds):
            for seed in group:
                seed.send("test")
            for seed in group:
                counted, found = self._receive(seed)
                seed.epoch, metrics = counted.epoch, {**counted.metrics[0], **found.metrics}
                stored.append(Stored(metrics=metrics, samples=found.samples))
        self._keep_samples(stored)
        yield Report(
            epoch=min(seed.epoch for seed in self._seeds),
            metrics=tuple(each.metrics for each in stored),
            wall_seconds=0.0,
            final=True,
        )

    def _restored(self) -> Report:
        """Return the report of the checkpoints; seeds that lack it train until there."""
        known = [seed.restored for seed in self._seeds if seed.restored is not None]
        newest = max(known, key=lambda each: each.epoch)
        self._best, self._seconds = newest.best, max(each.seconds for each in known)
        behind = []
        for seed in self._seeds:
            seed.epoch = seed.restored.epoch if seed.restored else 0
            seed.metrics = seed.restored.stored.metrics if seed.restored else None
            behind += [seed] * (seed.epoch < newest.epoch)
        stored = {s.number: s.restored.stored for s in self._seeds if s.restored is not None and s not in behind}
        for seed in behind:
            while seed.epoch < newest.epoch:
                self._advance([seed])
                seed.epoch = newest.epoch if seed.ended else seed.epoch
                (stored[seed.number],) = self._stored([seed], seed.epoch)
        return self._report(newest.epoch, [stored[seed.number] for seed in self._seeds])

    def _advance(self, seeds: Sequence[_Seed]) -> None:
        """Let each seed make its next report, unless its function has ended: then its last report stays."""
        begun = monotonic()
        for group in self._groups([seed for seed in seeds if not seed.ended]):
            for seed in group:
                seed.send("go")
            for seed in group:
                found: Reported = self._receive(seed)
                seed.metrics, seed.epoch, seed.ended = found.metrics, found.epoch, found.ended
        self._seconds += monotonic() - begun

    def _stored(self, seeds: Sequence[_Seed], epoch: int) -> list[Stored]:
        """Let seeds write the checkpoints of their reports, in a confirmation after the function's end and its test."""
        final = epoch == self._config.epochs
        tests = final and self._config.stage == "confirm"
        if self._config.best is not None and seeds == self._seeds:
            value = mean(seed.metrics.get(self._config.best.metric) for seed in seeds if seed.metrics)
            if self._config.best.replaces(value, math.nan if self._best is None else self._best[1]):
                self._best = (epoch, value)
        if tests:
            for seed in seeds:
                self._ask(seed, "finish")
        for seed in seeds:
            best = self._best
            seed.send("keep", Keep(epoch=epoch, seconds=self._seconds, final=final, tests=tests, best=best))
        found: list[Stored] = [self._receive(seed) for seed in seeds]
        for each in found:
            if each.moved:
                self._note("moved", _moved_text(each.moved))
        self._seconds = max((each.seconds for each in found if each.seconds is not None), default=self._seconds)
        return found

    def _report(self, epoch: int, stored: Sequence[Stored]) -> Report:
        final = epoch == self._config.epochs
        self._keep_samples(stored)
        named = stored[0].checkpoint
        place = None if named is None else f"{SEED_STATE}{self._config.seeds[0]}/{named}"
        gone = tuple(each.diverged for each in stored)
        return Report(
            epoch=epoch,
            metrics=tuple(each.metrics for each in stored),
            wall_seconds=self._seconds,
            final=final,
            checkpoint=place,
            diverged=gone if any(gone) else (),
        )

    def _keep_samples(self, stored: Sequence[Stored]) -> None:
        """Write what `test` said of each sample, of the metrics for which every seed has equally many samples."""
        place = self._context["checkpoints"]
        lengths = {name: {len(each.samples.get(name, ())) for each in stored} for name in stored[0].samples}
        shared = [name for name, found in lengths.items() if len(found) == 1]
        if place is not None and shared:
            from ablate.engine.training.checkpoint import keep_samples  # it imports torch

            values = {name: np.stack([each.samples[name] for each in stored]) for name in shared}
            keep_samples(place, self._context["attempt"], SampleValues(values=values, split="in order"))

    def _finish(self) -> None:
        """Let the functions run to their ends, within the grace time; note what goes wrong: the report stands."""
        for group in self._groups(self._seeds):
            for seed in group:
                seed.send("finish")
            self._await_ends(group, self.grace)

    def stop(self, limit: Callable[[], float]) -> None:
        """Stop the functions that wait at a report, at which their `finally` blocks run; end those that do not.

        A command can be told to end at any time.
        """
        going = [seed for seed in self._seeds if seed.process.alive and not seed.failed]
        waiting = [seed for seed in going if seed.waits or self._is_command]
        for seed in waiting:
            seed.send("stop")
        self._await_ends(waiting, limit)

    def end(self) -> None:
        """End the processes of the seeds and all that they have started."""
        for seed in self._seeds:
            seed.process.end()

    def _await_ends(self, seeds: Sequence[_Seed], limit: Callable[[], float]) -> None:
        begun = monotonic()

        def left() -> float:
            return (COMMAND_SECONDS if self._is_command else limit()) - (monotonic() - begun)

        for seed in seeds:
            try:
                seed.receive(limit=left, watch=self._output.trim)
            except TimeoutError:
                self._note(
                    "late",
                    f"the code of trial {self._config.key} did not end by itself within --grace"
                    f" ({self._grace_seconds:g} s), so its process was ended. (This is said once.)",
                )
            except (AblateError, PausedError) as error:
                self._note(f"ended {self._config.key}", f"trial {self._config.key}, after it had ended: {error}")

    @property
    def _grace_seconds(self) -> float:
        return self._context.get("grace_seconds", STOP_SECONDS)

    def grace(self) -> float:
        """Return how many seconds the code has for its end: the grace time, and less once the study is to pause."""
        return min(self._grace_seconds, STOP_SECONDS) if self._context["pause"]() else self._grace_seconds

    def _groups(self, seeds: Sequence[_Seed]) -> Iterator[Sequence[_Seed]]:
        """Yield the seeds that train at the same time."""
        count = max(self._context.get("seeds_at_once", 1), 1)
        yield from (seeds[first : first + count] for first in range(0, len(seeds), count))

    def _ask(self, seed: _Seed, request: str, *arguments: Any) -> Any:
        seed.send(request, *arguments)
        return self._receive(seed)

    def _receive(self, seed: _Seed) -> Any:
        return seed.receive(pause=self._context["pause"], watch=self._output.trim)


def _moved_text(names: Sequence[str]) -> str:
    return (
        f"the code draws from {', '.join(names)} at the top of its module: each seed begins with it anew, also one that"
        " continues from a checkpoint. Use run.stream(), or make it in the function and run.keep it. (It is said once.)"
    )
