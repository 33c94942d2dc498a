"""What `run.loader` returns: batches in an order that is keyed by the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader


class Keyed(Protocol):
    """What batches need of a `Run`."""

    epoch: int

    def pause_if_asked(self) -> None:
        """Pause the trial here if it is to pause."""

    def _number(self, purpose: str, *path: str | int) -> int: ...


class Batches:
    """Each pass over it has another order, keyed by the epoch and the number of the pass."""

    def __init__(self, run: Keyed, made: tuple[int, int], make: Callable[[torch.Generator], DataLoader[Any]]) -> None:
        self._run, self._made, self._make = run, made, make
        self._epoch, self._passes = -1, 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._make(torch.Generator()))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one pass; the trial pauses between two of them if it is asked to."""
        run = self._run
        if self._epoch != run.epoch:
            self._epoch, self._passes = run.epoch, 0
        self._passes += 1
        order = torch.Generator()
        order.manual_seed(run._number("order", run.epoch, *self._made, self._passes))
        for batch in self._make(order):
            run.pause_if_asked()
            yield batch


def seed_worker(worker: int) -> None:
    """Seed NumPy in a DataLoader's worker; torch seeds itself and Python there."""
    np.random.seed(torch.initial_seed() % 2**32)
