"""One call of a user's function, which stops at each report and continues when it is asked to."""

from __future__ import annotations

import contextvars
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from traceback import walk_tb
from types import GeneratorType
from typing import Any

from greenlet import getcurrent, greenlet

from ablate.base.errors import AblateError, PausedError, TrialError, lacks_memory
from ablate.functions.blame import ABLATE, place_of_generator, user_line
from ablate.functions.door import Door, TrialPausedError, TrialStoppedError
from ablate.functions.function import Function
from ablate.functions.keeping import GlobalRandomness, unchanged_modules
from ablate.functions.metrics import Tested, checked_metrics, checked_test
from ablate.functions.process_state import ProcessState
from ablate.functions.run import Kept, Run

Metrics = dict[str, float]
CLOSINGS = 10  # attempts to close a generator that yields again


class Call:
    """A call of the function for one seed of a trial.

    The function runs in a greenlet, in the thread of whoever advances it. So `run.report` can wait in a callback of a
    library, where a generator could not. A call has separate global random state and process state: what it changes is
    put back while others run.
    """

    def __init__(self, function: Function, config: Mapping[str, Any], run: Run) -> None:
        self.run = run
        self.returned = False  # whether its report is what the function returned
        self._config, self._function = config, function
        self._randomness, self._state = GlobalRandomness(), None
        self._stack = greenlet(self._body)
        self._stack.gr_context = contextvars.copy_context()
        self._waiting = self._stack  # what continues: the function, or a greenlet of its own that has reported
        self._caller = getcurrent()  # the greenlet of whoever advances the call
        self._door = run.door = Door(self._hand_over)
        self._metrics: Metrics | None = None
        self._reports = 0
        self._mixed: tuple[str, ...] = ()  # what the function has changed and nobody can put back

    _state: ProcessState | None  # None before the first turn

    @property
    def place(self) -> str:
        """The line of the user's code that made the last report, as `mine.py:12: `; empty without one."""
        return self._door.place

    def advance(self) -> Metrics | None:
        """Return the metrics of the next report, or None at the end of the function.

        Raises TrialError for whatever the function raises, PausedError if the trial has paused.
        """
        self._metrics = None
        with self._own_state():
            self._switch(self._waiting.switch)
        if self._metrics is not None and self._mixed:
            raise TrialError(
                f"{self.place}the report is made inside a block that the calls of other seeds would be in too"
                f" ({', '.join(self._mixed)}): report after the block"
            )
        return self._metrics

    def finish(self) -> None:
        """Let the function run to its end after its last report; raise TrialError for what goes wrong there."""
        self.run.stays = True
        if self.advance() is not None:
            place = self.place
            self.stop()
            raise TrialError(f"{place}the function reports again after its last epoch, so it was ended there")

    def stop(self) -> None:
        """End the function, if it has begun and not ended, at its `yield` or `run.report`: its `finally` blocks run.

        Raises TrialError for what it raises then.
        """
        if self._state is not None and not self._stack.dead:
            end = self._door.end(TrialStoppedError, "the study has stopped this trial")
            with self._own_state():
                self._switch(lambda: self._waiting.throw(end))

    def restore(self, kept: Kept) -> None:
        """Give what the function keeps the state of a report; raise TrialError if it does not take it."""
        try:
            with self._own_state():
                self.run.restore(kept)
        except Exception as error:  # of the user's load_state_dict, which may raise anything
            raise self._translated(error) from error

    def test(self) -> Tested:
        """Return what the function's `test` says of the kept model."""
        with self._own_state():
            return self._tested()

    def _tested(self) -> Tested:
        try:
            return checked_test(self._function.tested(self.run, deepcopy(dict(self._config))), self.run)
        except BaseException as error:
            raise self._translated(error) from error

    def try_test(self, expected: Collection[str]) -> None:
        """Call `test` once for its faults: its numbers are dropped, and what it does to a module is put back.

        Raises TrialError if there is no model, for whatever `test` raises, and if it does not return all of `expected`.
        A model that is None so far is not tested.
        """
        if "model" in self.run.kept and self.run.value("model") is None:
            return
        before = GlobalRandomness()
        with self._own_state(), unchanged_modules(self.run.kept.get("model")):
            before.take()
            returned = self._tested().metrics
            before.give()
        if missing := [name for name in expected if name not in returned]:
            raise TrialError(
                f"`test` returned {', '.join(returned)}: the study needs {', '.join(missing)} too, the test split's"
                " value of what the study file asks for"
            )

    def _body(self) -> None:
        """Call the function and hand over what it yields or returns."""
        begun = self._function.train(deepcopy(dict(self._config)), self.run)
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

    def _hand_over(self, value: object) -> None:
        self.run.check_parts()
        self._metrics = checked_metrics(value, self.run)
        self._reports += 1
        self._waiting = getcurrent()
        self._caller.switch()

    def _switch(self, into: Callable[[], object]) -> None:
        """Run the function until it reports or ends; raise what ended it, unless that is its stop."""
        self._caller = self._stack.parent = getcurrent()
        ended: BaseException | None = None
        try:
            into()
        except TrialStoppedError:
            pass
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and _raised_here(error):
                raise  # the process is to end
            ended = error
        first = self._door.refused or self._door.paused or ended  # a function may have caught the first two
        if first is not None:
            raise self._translated(first) from ended

    def _translated(self, error: BaseException) -> AblateError:
        if isinstance(error, TrialPausedError):
            return PausedError(str(error))
        epoch = self.run.epoch + (0 if self.run.loops or self.run.epoch == 0 else 1)
        when = "" if self.run.stays else f" in epoch {epoch}" if epoch else " before its first report"
        memory = isinstance(error, MemoryError) or lacks_memory(f"{type(error).__name__}: {error}")
        return TrialError(user_line(error, when, place=self.place), "memory" if memory else "trial")

    @contextmanager
    def _own_state(self) -> Iterator[None]:
        """Give the function its random state and its state of the process for the block.

        The former state of the process is put back at the end; that of the generators is not: each call sets its own.
        """
        outside = ProcessState.of_turn()
        if self._state is None:
            self.run.seed_globals("start")
            warnings.filters = list(warnings.filters)  # `catch_warnings` puts the list back as an object: one for each
        else:
            self._randomness.give()
            if failed := self._state.put_back(outside):
                raise TrialError(f"{self.place}what the function changed cannot be given back: {', '.join(failed)}")
        try:
            yield
        finally:
            self._randomness.take()
            self._state = ProcessState.of_turn()
            self._mixed = outside.put_back(self._state)


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


def _raised_here(error: BaseException) -> bool:
    """Return whether this package itself raised an error, such as the handler of a signal."""
    frames = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return Path(frames[-1]).is_relative_to(ABLATE)
