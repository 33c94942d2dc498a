"""Counts the parameters of a function's networks by running it up to its loop, on torch's meta device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any, TypeVar

import torch
from torch import nn

from ablate.errors import RequestError, TrialError
from ablate.functions.function import Function
from ablate.functions.run import Run
from ablate.functions.settings import FunctionSettings

M = TypeVar("M", bound=nn.Module)


class _LoopReachedError(BaseException):  # not an Exception, so that the function does not catch it
    """The function asked for its first epoch."""


class SizingRun(Run):
    """A run whose networks have no storage, and which ends where the epochs begin."""

    def construct(self, make: Callable[[], M]) -> M:
        """Return `make()` with weights that have a shape and no values."""
        with torch.device("meta"):
            return make()

    def epochs(self) -> Iterator[int]:
        """End the run."""
        raise _LoopReachedError


def count_by_running(function: Function, settings: FunctionSettings, *, dataset: str) -> int | None:
    """Return the number of trainable parameters of what `run.build` makes before the first epoch, or None.

    None is returned for a function without a loop over `run.epochs()`, and for one that cannot run without values
    in its weights. Raises RequestError if a part that is to be replaced does not exist, or an object cannot be kept.
    """
    if not function.reports_epochs:
        return None
    run = SizingRun(
        study_seed=0, dataset=dataset, seed=0, length=settings.epochs, device="meta", replace=settings.replace
    )
    try:
        with redirect_stdout(sys.stderr), torch.random.fork_rng(devices=[]):
            begun: Any = function.train(dict(settings.config), run)
            next(begun)
    except _LoopReachedError:
        return run.params
    except TrialError as error:
        raise RequestError(f"trainable {function.name!r}: {error}") from error
    except Exception:  # the user's code, on weights without values
        return None
    return None
