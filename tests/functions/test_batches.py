"""`run.loader` takes what a DataLoader takes: data sets without an order, samplers, and no generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from ablate.base.errors import TrialError
from ablate.functions.run import Run

PLAIN = TensorDataset(torch.arange(10))


class Flow(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.tensor(i),) for i in range(10)])


Options = Callable[[], dict[str, Any]]
TAKEN: dict[str, tuple[Dataset[Any], Options]] = {
    "iterable": (Flow(), dict),
    "iterable in workers": (Flow(), lambda: {"batch_size": 3, "num_workers": 1}),
    "in order": (PLAIN, lambda: {"batch_size": 3, "shuffle": False}),
    "list": (PLAIN, lambda: {"batch_size": 2, "sampler": [3, 1, 4]}),
    "list of batches": (PLAIN, lambda: {"batch_sampler": [[1, 2], [0]]}),
}
DRAWN: dict[str, tuple[int, Options]] = {
    "no option": (10, dict),
    "no generator": (10, lambda: {"generator": None, "sampler": None}),
    "sampler": (10, lambda: {"batch_size": 3, "sampler": RandomSampler(PLAIN)}),
    "weighted": (8, lambda: {"batch_size": 3, "sampler": WeightedRandomSampler(torch.ones(10), 8)}),
    "subset": (5, lambda: {"batch_size": 3, "shuffle": False, "sampler": SubsetRandomSampler(range(5))}),
    "batches": (10, lambda: {"batch_sampler": BatchSampler(RandomSampler(PLAIN), 3, False)}),
    "batches in order": (10, lambda: {"shuffle": False, "batch_sampler": BatchSampler(RandomSampler(PLAIN), 3, False)}),
}


def read(dataset: Dataset[Any], options: Options, *, disturb: int = 0) -> list[list[list[int]]]:
    """Return the batches of each of two epochs; `disturb` numbers are drawn before, as by dropout."""
    run, found = Run(study_seed=1, dataset="d", seed=0, length=2), []
    loader = run.loader(dataset, **options())
    for _ in run.epochs():
        torch.rand(disturb)
        found.append([batch.tolist() for (batch,) in loader])
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


@pytest.mark.parametrize("name", TAKEN)
def test_what_draws_nothing_is_read_as_a_data_loader_reads_it(name: str) -> None:
    dataset, options = TAKEN[name]
    sized = {"batch_size": 64} if "batch_sampler" not in options() else {}
    expected = [batch.tolist() for (batch,) in DataLoader(dataset, **{**sized, **options()})]
    assert read(dataset, options) == [expected, expected]


@pytest.mark.parametrize("name", DRAWN)
def test_the_order_of_a_sampler_is_keyed_by_the_epoch_alone(name: str) -> None:
    count, options = DRAWN[name]
    first, second = read(PLAIN, options)
    assert first != second
    assert len(flat(first)) == len(flat(second)) == count
    assert read(PLAIN, options, disturb=3) == [first, second]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"generator": torch.Generator()}, "leave out generator$"),
        ({"sampler": RandomSampler(PLAIN, generator=torch.Generator())}, "leave out the generator of sampler$"),
        (
            {"batch_sampler": BatchSampler(RandomSampler(PLAIN, generator=torch.Generator()), 3, False)},
            "leave out the generator of batch_sampler$",
        ),
    ],
)
def test_a_generator_of_ones_own_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TrialError, match=f"run.loader keys the order of the samples itself: {says}"):
        Run(study_seed=1, dataset="d", seed=0, length=2).loader(PLAIN, **options)
