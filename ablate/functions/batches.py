"""What `run.loader` returns: batches in an order that is keyed by the epoch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from ablate.base.errors import TrialError

SAMPLERS = {"sampler", "batch_sampler"}  # options of a DataLoader


class Batches:
    """Each pass over it has another order, keyed by the epoch and the number of the pass."""

    def __init__(self, run: Any, made: tuple[int, int], make: Callable[[torch.Generator], DataLoader[Any]]) -> None:
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


def keyed_loader(dataset: Dataset[Any], order: torch.Generator, options: Mapping[str, Any]) -> DataLoader[Any]:
    """Return a DataLoader with `options`, those of one, whose order is drawn from `order`.

    Without a sampler the samples of a data set that has an order are shuffled. Samplers of torch draw from `order`. An
    IterableDataset is read as it is.
    """
    given = {name: value for name, value in options.items() if value is not None or name == "batch_size"}
    for name in SAMPLERS:
        if name in given:
            given[name] = _keyed(given[name], order)
    if not isinstance(dataset, IterableDataset) and not given.keys() & SAMPLERS:
        given.setdefault("shuffle", True)
    return DataLoader(dataset, generator=order, **given)


def refuse_own_generator(options: Mapping[str, Any]) -> None:
    """Raise TrialError if the options of a DataLoader hold a generator, whose state no checkpoint would hold."""
    for name in ("generator", *sorted(SAMPLERS)):
        given = options.get(name)
        inner = getattr(given, "sampler", None)  # of a BatchSampler
        held = (given, getattr(given, "generator", None), getattr(inner, "generator", None))
        if any(isinstance(each, torch.Generator) for each in held):
            what = "leave out generator" if name == "generator" else f"leave out the generator of {name}"
            raise TrialError(f"run.loader keys the order of the samples itself: {what}")


def _keyed(sampler: Any, order: torch.Generator) -> Any:
    """Return a sampler of torch that draws from `order`; another one is returned as it is."""
    if type(sampler).__module__ != Sampler.__module__:
        return sampler
    keyed = copy.copy(sampler)
    if hasattr(keyed, "generator"):
        keyed.generator = order
    if hasattr(keyed, "sampler"):
        keyed.sampler = _keyed(keyed.sampler, order)
    return keyed


def seed_worker(worker: int) -> None:
    """Seed NumPy in a DataLoader's worker; torch seeds itself and Python there."""
    np.random.seed(torch.initial_seed() % 2**32)
