"""Counts the parameters of a function's networks by running it up to its loop, on torch's meta device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ablate.config import Counted
from ablate.errors import RequestError, TrialError
from ablate.functions.blame import user_line
from ablate.functions.function import Function
from ablate.functions.run import Run
from ablate.functions.settings import FunctionSettings
from ablate.functions.stacked import Runs


class _LoopReachedError(BaseException):  # not an Exception, so that the function does not catch it
    """The function asked for its first epoch."""


class SizingRun(Run):
    """A run that ends where the epochs begin."""

    def epochs(self) -> Iterator[int]:
        """End the run."""
        raise _LoopReachedError

    def begin(self) -> int:
        """End the run."""
        raise _LoopReachedError

    def hand_over(self, metrics: Any, place: str) -> None:
        """End the run."""
        raise _LoopReachedError


class SizingRuns(Runs):
    """The same for a function that trains all seeds at once."""

    def epochs(self) -> Iterator[int]:
        """End the run."""
        raise _LoopReachedError

    def begin(self) -> int:
        """End the run."""
        raise _LoopReachedError

    def hand_over(self, metrics: Any, place: str) -> None:
        """End the run."""
        raise _LoopReachedError


def count_by_running(function: Function, settings: FunctionSettings, *, dataset: str) -> Counted:
    """Return the number of trainable parameters of what `run.build` makes before the first epoch.

    Nothing is known of a function without a loop over `run.epochs()`. Of one that fails, in code that needs values in
    its weights or for another reason, the note says where. Raises RequestError if a part that is to be replaced does
    not exist, or an object cannot be kept.
    """
    if not function.reports_epochs:
        return Counted()
    common: dict[str, Any] = {"study_seed": 0, "dataset": dataset, "length": settings.epochs, "device": "meta"}
    common["replace"] = settings.replace
    run = SizingRuns(seeds=(0, 1), **common) if function.stacked else SizingRun(seed=0, **common)
    try:
        with torch.random.fork_rng(devices=[]):
            begun: Any = function.train(dict(settings.config), run)
            next(begun)
    except _LoopReachedError:
        return Counted(params=next(iter(run)).params if isinstance(run, SizingRuns) else run.params)
    except TrialError as error:
        raise RequestError(f"trainable {function.name!r}: {error}") from error
    except BaseException as error:  # whatever a user's code raises is told
        why = "; the weights have no values in a plan" if "meta" in str(error) else ""
        return Counted(note=f"the size is unknown before training: {user_line(error)}{why}")
    return Counted()
