"""Counts the parameters of a function's networks by running it up to its loop, on torch's meta device."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from types import GeneratorType
from typing import Any

import torch
from torch import nn

from ablate.base.errors import RequestError, TrialError
from ablate.core.config import Counted, Timed
from ablate.functions.blame import user_line
from ablate.functions.function import Function
from ablate.functions.function_settings import FunctionSettings
from ablate.functions.metrics import checked_metrics
from ablate.functions.networks.tracing import Trace, traced
from ablate.functions.run import M, Run


class LoopReachedError(BaseException):  # not an Exception, so that the function does not catch it
    """The function asked for its first epoch, or has made the first call of its network in it."""


def _end(*_: Any) -> Any:
    raise LoopReachedError


class PlannedRun(Run):
    """A run with seed 0, before there is a study."""

    def __init__(self, settings: FunctionSettings, *, dataset: str = "", device: str = "meta") -> None:
        super().__init__(
            study_seed=0, seed=0, dataset=dataset, length=settings.epochs, device=device, replace=settings.replace
        )


class SizingRun(PlannedRun):
    """A run that ends where the epochs begin, or after the first call of a network whose shapes only a call tells."""

    network: nn.Module | None = None
    trace: Trace | None = None
    in_loop = False
    hooks: ExitStack | None = None  # of a function that does not yield: it ends at the first call of its network

    def build(self, cls: Callable[..., M], *arguments: Any, **named: Any) -> M:
        """Return the network, which cannot be moved to another device, and remember the first one."""
        module = super().build(cls, *arguments, **named)
        for move in ("to", "cpu", "cuda"):  # such as by a Trainer; there are no values to be moved
            setattr(module, move, lambda *_, **__: module)
        if self.network is None:
            self.network = module
            if self.hooks is not None:
                self.trace = self.hooks.enter_context(traced(module, end=LoopReachedError()))
        return module

    def epochs(self) -> Iterator[int]:
        """End the run, here or after the first call of the network.

        Code of this package that owns the loop, such as that for Lightning, is not begun: it writes files.
        """
        unknown = any(record.needs_shape for record in self.replacements)
        if self.network is None or not unknown or self.owns_loop():
            raise LoopReachedError
        yield from self.first_epoch()

    def first_epoch(self) -> Iterator[int]:
        """Yield an epoch that ends at the first call of the network."""
        assert self.network is not None
        self.in_loop = True
        if self.hooks is not None:
            yield 1
        else:
            with traced(self.network, end=LoopReachedError()) as self.trace:
                yield 1
        raise LoopReachedError

    @staticmethod
    def owns_loop() -> bool:
        """Return whether the loop over `epochs` is code of this package."""
        return str(sys._getframe(2).f_globals.get("__name__")).startswith("ablate.")

    begin: Any = _end
    hand_over: Any = _end


def count_by_running(function: Function, settings: FunctionSettings, *, dataset: str) -> Counted:
    """Return the number of trainable parameters of what `run.build` makes before the first epoch.

    A function that does not yield is run up to the first call of its network or, if it comes before, `run.begin()`;
    nothing is known of one that does not call `run.build` itself. Of one that fails, in code that needs values in
    its weights or for another reason, the note says where. Raises RequestError if a part that is to be replaced does
    not exist, or an object cannot be kept.
    """
    if not (function.reports_epochs or function.builds):
        return Counted()
    run = SizingRun(settings, dataset=dataset)
    try:
        with torch.random.fork_rng(devices=[]):
            reach_loop(function, settings, run)
    except LoopReachedError:
        return Counted(params=run.params)
    except TrialError as error:
        raise RequestError(f"trainable {function.name!r}: {error}") from error
    except BaseException as error:  # whatever a user's code raises is told
        why = "; the weights have no values in a plan" if "meta" in str(error) else ""
        return Counted(note=f"the size is unknown before training: {user_line(error)}{why}")
    return Counted(params=run.params) if run.in_loop else Counted()


class TimedRun(PlannedRun):
    """A run that ends at its first report, `given`; `seconds` are those before the first epoch, if that is known."""

    seconds = 0.0
    given: Any = None

    def __init__(self, settings: FunctionSettings, *, dataset: str, device: str) -> None:
        super().__init__(settings, dataset=dataset, device=device)
        self.started = time.monotonic()

    def _begin(self) -> None:
        self.seconds = time.monotonic() - self.started
        super()._begin()

    def hand_over(self, metrics: Any, place: str) -> None:
        """Keep the report, and end the run."""
        self.given = metrics
        raise LoopReachedError


def time_report(function: Function, settings: FunctionSettings, *, dataset: str) -> Timed:
    """Return the seconds of a full trial, from those that a function takes for its first report.

    It trains one epoch with seed 0 and without a checkpoint. Of a function that fails, `fault` says where.
    """
    run = TimedRun(settings, dataset=dataset, device="cuda" if torch.cuda.is_available() else "cpu")
    try:
        begun: Any = function.train(deepcopy(settings.config), run)
        whole = not isinstance(begun, GeneratorType)
        given = begun if whole else next(begun)
    except LoopReachedError:
        given, whole = None, False
    except BaseException as error:  # whatever a user's code raises is told
        return Timed(fault=f"a trial would fail before its first report: {user_line(error)}")
    seconds = time.monotonic() - run.started
    try:
        reported = checked_metrics(given if run.given is None else run.given, run)
    except TrialError as error:
        return Timed(fault=f"a trial would fail at its first report: {error}")
    whole = whole and run.given is None  # a function may catch what ends it, or report in another thread
    total = seconds if whole else run.seconds + settings.epochs * (seconds - run.seconds)
    return Timed(seconds=total, reported=reported)


def reach_loop(function: Function, settings: FunctionSettings, run: SizingRun) -> None:
    """Call a function until it asks for its first epoch, or has called its network for the first time.

    What it raises in its loop is of no interest: its tensors have no values.
    """
    with ExitStack() as hooks:
        if not function.reports_epochs:
            run.hooks = hooks
        try:
            begun: Any = function.train(deepcopy(settings.config), run)
            if isinstance(begun, GeneratorType):
                next(begun)
        except (TrialError, KeyboardInterrupt, LoopReachedError):
            raise
        except BaseException as error:
            if not run.in_loop:
                raise
            raise LoopReachedError from error
