"""One seed of a trial of a user's function, in a process of its own: it trains, and waits at each report.

The other side is `functions.border.trial`: it decides at each report, and writes nothing of the seed's itself.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import replace
from multiprocessing.connection import Connection
from types import GeneratorType
from typing import Any

import torch

from ablate.base.errors import AblateError, CheckpointDownError, PausedError, TrialError, lacks_memory
from ablate.base.files import Place
from ablate.core.trainable import TrialContext
from ablate.core.trial import Report, TrialConfig, seed_place
from ablate.engine.training import checkpoint
from ablate.engine.training.checkpoint import Checkpoint, CheckpointId
from ablate.engine.training.progress import final_report
from ablate.functions.blame import place_of_generator, user_line
from ablate.functions.function import Function
from ablate.functions.function_settings import FunctionSettings
from ablate.functions.keeping import unchanged_modules, unchanged_randomness
from ablate.functions.metrics import Tested, checked_metrics, checked_test
from ablate.functions.run import Kept, Run, TrialPausedError, TrialStoppedError
from ablate.functions.seed_messages import Keep, Metrics, Reported, Restored, Stored
from ablate.functions.shared_generators import SharedGenerators

CLOSINGS = 10  # attempts to close a generator that yields again
SAMPLES = "test:"  # begins the name of a tensor with what `test` said of each sample


class Seed:
    """Calls the function for the one seed of `config`, and answers requests at each report and when it has ended.

    `run.report` returns when the trial continues, in whichever thread of the function it was called. Files of the
    user's code are in `files`.
    """

    def __init__(
        self, function: Function, config: TrialConfig, context: TrialContext, files: Place, line: Connection
    ) -> None:
        self._function, self._config, self._line = function, config, line
        trial, seed = context["checkpoints"], config.seeds[0]
        self._place = None if trial is None else seed_place(trial, seed)
        self._attempt, self._lock, self._process = context["attempt"], threading.RLock(), os.getpid()
        self._found = self._newest()
        self.run = self._begin_run(context, files)
        self.place = ""  # the line of the user's code that made the last report
        self.returned = False  # whether its report is what the function returned
        self._epoch = 0 if self._found is None else self._found.checkpoint_id.epoch
        self._latest = None if self._found is None or self._found.report is None else self._found.report.metrics[0]
        self._over = self._early = self._model_only = False
        self._refused: AblateError | None = None
        self._end: tuple[type[BaseException], str] | None = None
        self._reports = 0
        self._last: Kept | None = None  # the state at the last report of a confirmation
        self._held: Kept | None = None  # the state of the report that counts, where no checkpoint is written
        self._shared = SharedGenerators.of(function.train)

    def _newest(self) -> Checkpoint | None:
        if self._place is None:
            return None
        attempt = None if self._config.evaluates is not None else self._attempt
        found = checkpoint.newest(self._place, self._config.origin, attempt=attempt)
        if found is not None and attempt is not None and found.checkpoint_id.attempt < attempt:
            found = checkpoint.rewrite(self._place, found, attempt)
        return found

    def _begin_run(self, context: TrialContext, files: Place) -> Run:
        config, found = self._config, self._found
        assert isinstance(config.settings, FunctionSettings)
        run = Run(
            study_seed=config.study_seed,
            dataset=config.key.dataset,
            seed=config.seeds[0],
            length=config.epochs,
            device=context["device"],
            stage=config.stage,
            replace=config.settings.replace,
            pause=context["pause"],
            # a function that returned its report is run from its beginning
            found=None if found is None or found.state["returned"] else kept_of(found),
            files=files,
        )
        run.reporter = self
        return run

    def serve(self) -> None:
        """Answer the requests of `functions.border.trial` until its side is gone; raise what ends the seed."""
        answer: Any = self._restored()
        while True:
            self._line.send(("value", answer))
            request, arguments = self._line.recv()
            answer = getattr(self, request)(*arguments)

    def _restored(self) -> Restored | None:
        found = self._found
        if found is None or found.report is None:
            return None
        value = found.state["value"]
        samples = {n.removeprefix(SAMPLES): t.numpy() for n, t in found.tensors.items() if n.startswith(SAMPLES)}
        return Restored(
            epoch=found.checkpoint_id.epoch,
            seconds=found.wall_seconds,
            final=found.report.final,
            complete=found.state["returned"] or not found.state["kept"],
            best=None if found.counted is None else (found.counted, float("nan") if value is None else value),
            stored=Stored(metrics=found.report.metrics[0], samples=samples, checkpoint=found.checkpoint_id.name),
        )

    def go(self) -> Reported:
        """Return the next report, or the last one again if the function has ended."""
        if not self._over:
            self._call()
            self._early = True
        if self._latest is None:
            raise TrialError(
                "the function ended without a report: `yield` a dictionary of metrics each epoch, or call run.report"
                " with one"
            )
        return Reported(metrics=self._latest, epoch=self._epoch, ended=True)

    def finish(self) -> None:
        """Let the function run to its end after its last report; raise TrialError for what goes wrong there."""
        self.run.stays = True
        if not self._over and not (self._found and self._found.state["returned"]):
            self._call()

    def stop(self) -> None:
        """End the function: nothing to do where it has not begun, or has ended."""

    def test(self) -> tuple[Report, Tested]:
        """Return the report of the evaluated trial that counts, and what `test` says of its network.

        A function restores its objects and trains nothing; one that returns its report is run again. Raises
        CheckpointError if the checkpoint of its last epoch is missing, TrialError if the function trains again.
        """
        best, report = final_report(self._found, self._config, self._place)
        self._model_only = True
        self._call()
        if self._config.best is not None and not self.returned:
            self._restore(kept_of(best))
        return report, self._tested()

    def try_test(self, expected: Collection[str]) -> None:
        """Call `test` once for its faults: its numbers are dropped, and what it does to a module is put back.

        Raises TrialError if there is no model, for whatever `test` raises, and if it does not return all of `expected`.
        A model that is None so far is not tested.
        """
        if "model" in self.run.kept and self.run.value("model") is None:
            return
        with unchanged_randomness(), unchanged_modules(self.run.kept.get("model")):
            returned = self._tested().metrics
        if missing := [name for name in expected if name not in returned]:
            raise TrialError(
                f"`test` returned {', '.join(returned)}: the study needs {', '.join(missing)} too, the test split's"
                " value of what the study file asks for"
            )

    def keep(self, asked: Keep) -> Stored:
        """Write the checkpoint of the last report; the states are those at the report.

        Raises TrialError for what cannot be kept and for a fault of `test`, CheckpointDownError.
        """
        assert self._latest is not None
        holds = self._place is not None or self._config.best is not None
        kept = self._last or (self.run.state() if holds else Kept(epoch=asked.epoch, states={}))
        metrics, samples = dict(self._latest), dict[str, Any]()
        if asked.tests:
            found = self._confirmed(kept, asked)
            metrics, samples = metrics | found.metrics, found.samples
        counts = asked.best is not None and asked.best[0] == asked.epoch
        if self._place is None:
            self._held = kept if counts else self._held
        elif self._reports == 1:
            self.run.reported = kept
        self._epoch = asked.epoch
        name = self._write(kept, asked, metrics, samples)
        return Stored(metrics=metrics, samples=samples, checkpoint=name, moved=self._shared.moved())

    def _write(self, kept: Kept, asked: Keep, metrics: Metrics, samples: Mapping[str, Any]) -> str | None:
        """Write the checkpoint, and return its file's name."""
        if self._place is None:
            return None
        position = CheckpointId(attempt=self._attempt, epoch=asked.epoch)
        tensors = {**kept.tensors, **{f"{SAMPLES}{name}": torch.from_numpy(v) for name, v in samples.items()}}
        report = Report(epoch=asked.epoch, metrics=(metrics,), wall_seconds=asked.seconds, final=asked.final)
        checkpoint.write(
            self._place,
            Checkpoint(
                checkpoint_id=position,
                report=replace(report, checkpoint=position.name),
                wall_seconds=asked.seconds,
                tensors=tensors or {"empty": torch.zeros(0)},
                trial=checkpoint.identity(self._config),
                state={
                    "kept": dict(kept.states),
                    "streams": dict(kept.streams),
                    "returned": self.returned,
                    "ended": self._early,
                    "value": None if asked.best is None else asked.best[1],
                },
                counted=None if asked.best is None else asked.best[0],
            ),
        )
        return position.name

    def _confirmed(self, last: Kept, asked: Keep) -> Tested:
        """Return what `test` says of the network that counts: of the best report, or what the function ends with."""
        if asked.best is not None and not self.returned:
            self._restore(last if asked.best[0] == asked.epoch else self._best(asked.best[0]))
        try:
            return self._tested()
        except TrialError as error:
            rule = "in a confirmation `test` runs after the function's end: leave open what it reads"
            raise TrialError(f"{error} ({rule})", error.kind, error.detail) from error

    def _best(self, epoch: int) -> Kept:
        if self._place is None:
            assert self._held is not None
            return self._held
        return kept_of(checkpoint.read(self._place, CheckpointId(attempt=self._attempt, epoch=epoch).name))

    def _restore(self, kept: Kept) -> None:
        try:
            self.run.restore(kept)
        except Exception as error:  # of the user's load_state_dict, which may raise anything
            raise self._translated(error) from error

    def _tested(self) -> Tested:
        try:
            return checked_test(self._function.tested(self.run, self._settings()), self.run)
        except BaseException as error:
            raise self._translated(error) from error

    def _settings(self) -> dict[str, Any]:
        assert isinstance(self._config.settings, FunctionSettings)
        return deepcopy(dict(self._config.settings.config))

    def _call(self) -> None:
        """Call the function until it ends; raise what ended it, unless that is its stop."""
        self.run.seed_globals("start")
        ended: BaseException | None = None
        try:
            self._body()
        except TrialStoppedError:
            pass
        except BaseException as error:
            ended = error
        self._over = True
        if os.getpid() != self._process:  # a process that the function has forked, whose copy has come to its end
            os._exit(0)
        first = self._refused or self._paused or ended  # a function may have caught the first two
        if first is not None:
            raise self._translated(first) from ended

    def _body(self) -> None:
        """Call the function and report what it yields or returns."""
        begun = self._function.train(self._settings(), self.run)
        if isinstance(begun, GeneratorType):
            try:
                for reported in begun:
                    self.run.hand_over(reported, place_of_generator(begun))
            finally:
                _close(begun)
        elif self._reports == self.run.restored == 0 and (begun is not None or self.run.length == 1):
            if self.run.length > 1:
                raise TrialError(
                    "the function returned one report, so it has no epochs: remove `epochs:` from the study file, or"
                    " report each epoch by run.report({...})"
                )
            self.returned = True
            self.run.hand_over(begun, "")

    def report(self, value: Any, place: str) -> None:
        """Report, and return once the trial is to continue; raise TrialError if it is no report, or none is due."""
        if os.getpid() != self._process:
            raise TrialError("run.report was called in another process: call it in the one in which the function runs")
        with self._lock:
            self.check()
            try:
                self.place = place
                self._hand_over(value)
            except AblateError as error:
                self._refused = self._refused or error
                raise

    def _hand_over(self, value: Any) -> None:
        self.run.check_parts()
        metrics = checked_metrics(value, self.run)
        epoch = self.run.epoch
        if self._model_only and not self.returned:
            raise TrialError(
                "the function trains again when only its model is asked for: loop over run.epochs(), or begin after the"
                " reports that run.begin() counts"
            )
        if self._model_only or (self._reports == self.run.restored == 0 and epoch <= self._epoch):
            return  # it was reported before a restart
        if self.run.stays:
            raise TrialError("the function reports again after its last epoch, so it was ended there")
        if epoch != self._epoch + 1:
            raise TrialError(
                f"the function reported in epoch {epoch} where {self._epoch + 1} was due: report once in each epoch of"
                " run.epochs()"
            )
        self._latest, self._reports = metrics, self._reports + 1
        self._wait(Reported(metrics=metrics, epoch=epoch))

    def _wait(self, answer: Any) -> None:
        """Answer requests until the function is to continue; raise what ends it."""
        while True:
            self._line.send(("value", answer))
            request, arguments = self._line.recv()
            if request == "go":
                return
            if request == "finish":
                self.run.stays = True
                self._last = self.run.state() if self._config.stage == "confirm" else None
                return
            if request == "stop":
                raise self.end(TrialStoppedError, "the study has stopped this trial")
            answer = getattr(self, request)(*arguments)

    def end(self, kind: type[BaseException], reason: str) -> BaseException:
        """Return what ends the function; it is raised again wherever the function asks, if it was caught."""
        self._end = (kind, reason)
        return kind(reason)

    def check(self) -> None:
        """Raise what has ended the function, if anything has."""
        if self._refused is not None:
            raise self._refused
        if self._end is not None:
            kind, reason = self._end
            raise kind(reason)

    @property
    def _paused(self) -> BaseException | None:
        return None if self._end is None or self._end[0] is not TrialPausedError else TrialPausedError(self._end[1])

    def _translated(self, error: BaseException) -> AblateError:
        if isinstance(error, TrialPausedError):
            return PausedError(str(error))
        if isinstance(error, AblateError) and not isinstance(error, TrialError):
            return error
        epoch = self.run.epoch + (0 if self.run.loops or self.run.epoch == 0 else 1)
        when = "" if self.run.stays else f" in epoch {epoch}" if epoch else " before its first report"
        line = user_line(error, when, place=self.place)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return CheckpointDownError(f"{line}; free some space there and run the same command again")
        memory = isinstance(error, MemoryError) or lacks_memory(f"{type(error).__name__}: {error}")
        return TrialError(line, "memory" if memory else "trial")


def kept_of(found: Checkpoint) -> Kept:
    """Return the state of a seed in its checkpoint."""
    return Kept(
        epoch=found.checkpoint_id.epoch,
        states=found.state["kept"],
        streams=found.state["streams"],
        tensors={name: value for name, value in found.tensors.items() if not name.startswith(SAMPLES)},
        ended=found.state["ended"],
    )


def _close(generator: GeneratorType[Any, Any, Any]) -> None:
    """End a user's generator: its `finally` blocks run. Raises TrialError for one that yields again each time."""
    place = place_of_generator(generator)
    for _ in range(CLOSINGS):
        try:
            return generator.close()
        except TrialStoppedError:
            return None
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                raise
    raise TrialError(f"{place}the function yields again whenever it is ended, so it was left")
