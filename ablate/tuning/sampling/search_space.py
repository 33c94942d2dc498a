"""Converts a study's ranges to Optuna's distributions and walks every combination of a finite space."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ablate.base.randomness import stream
from ablate.study.space import Choices, FloatRange, IntRange, Range, Space

GRID_LIMIT = 5_000_000  # 40 MB of permutation
ENUMERATION_LIMIT = 200_000


def distribution_of(spec: Range) -> BaseDistribution:
    """Return the Optuna distribution of a range.

    A choice is represented by its index, so that `1`, `True` and `1.0` stay different. A float with a step is
    represented by the number of steps, so that its values equal those of the grid, bit for bit.
    """
    if isinstance(spec, Choices):
        return CategoricalDistribution(tuple(range(len(spec.choices))))
    if isinstance(spec, IntRange):
        (low, high), step = spec.bounds, spec.step or 1
        return IntDistribution(low, low + (high - low) // step * step, log=spec.log, step=step)
    assert isinstance(spec, FloatRange)
    if _is_stepped(spec):
        return IntDistribution(0, (spec.count() or 1) - 1)
    return FloatDistribution(*spec.bounds, log=spec.log)


def decode(spec: Range, inner: Any) -> Any:
    """Return the setting's value for an Optuna value; a real number is rounded, and trained as it is shown."""
    if isinstance(spec, Choices):
        return spec.choices[int(inner)]
    if isinstance(spec, IntRange):
        return int(inner)
    assert isinstance(spec, FloatRange)
    return spec.at(int(inner)) if _is_stepped(spec) else spec.rounded(float(inner))


def encode(spec: Range, value: Any) -> Any:
    """Return the Optuna value for a setting's value; the inverse of `decode`, which rounds."""
    if isinstance(spec, Choices):
        return spec.index(value)
    if isinstance(spec, IntRange):
        return int(value)
    assert isinstance(spec, FloatRange)
    return spec.place(value) if _is_stepped(spec) else float(value)


def inner_at(spec: Range, index: int) -> Any:
    """Return the Optuna value at `index` of a finite range."""
    if isinstance(spec, IntRange):
        return spec.bounds[0] + index * (spec.step or 1)
    return spec.bounds[0] if isinstance(spec, FloatRange) and not _is_stepped(spec) else index


def inner_at_share(spec: Range, share: float) -> Any:
    """Return the Optuna value at the fraction `share` in [0, 1) of the range, on the range's scale."""
    if isinstance(spec, IntRange) and spec.log:
        low, high = spec.bounds
        log_low, log_high = math.log(low - 0.5), math.log(high + 0.5)
        return min(max(round(math.exp(log_low + share * (log_high - log_low))), low), high)
    if (size := spec.count()) is not None:
        return inner_at(spec, min(int(share * size), size - 1))
    assert isinstance(spec, FloatRange)
    least, most = spec.bounds
    if spec.log:
        log_low, log_high = math.log(least), math.log(most)
        return min(max(math.exp(log_low + share * (log_high - log_low)), least), most)
    return min(max(least + share * (most - least), least), most)


def _is_stepped(spec: FloatRange) -> bool:
    return spec.step is not None and spec.bounds[0] < spec.bounds[1]


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The space of one data set as Optuna distributions, each condition before the settings that depend on it."""

    space: Space
    distributions: Mapping[str, BaseDistribution]

    @staticmethod
    def of(space: Space) -> SearchSpace:
        """Return the dimensions of `space`."""
        return SearchSpace(space=space, distributions={n: distribution_of(spec) for n, spec in space.ranges.items()})

    @property
    def conditional(self) -> bool:
        """Whether some setting is searched only under a condition."""
        return any(spec.when for spec in self.space.ranges.values())

    def product(self) -> int | None:
        """Return the number of combinations without regard to conditions, or None if there are infinitely many."""
        sizes = [spec.count() for spec in self.space.ranges.values()]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def encode(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return Optuna's values of `parameters`."""
        return {name: encode(self.space.ranges[name], value) for name, value in parameters.items()}

    def decode(self, inner: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of Optuna's values; the inverse of `encode`."""
        return {name: decode(self.space.ranges[name], value) for name, value in inner.items()}

    def combination(self, index: int) -> dict[str, Any] | None:
        """Return Optuna's values of combination `index`; the last setting varies fastest.

        Returns None if an inactive setting is not at its first value, so that of the combinations that differ only in
        inactive settings exactly one is returned.
        """
        digits: dict[str, int] = {}
        for name, spec in reversed(list(self.space.ranges.items())):
            size = spec.count()
            assert size is not None
            index, digits[name] = divmod(index, size)
        inner: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for name, spec in self.space.ranges.items():
            if self.space.is_active(name, values):
                inner[name] = inner_at(spec, digits[name])
                values[name] = decode(spec, inner[name])
            elif digits[name]:
                return None
        return inner


@lru_cache(maxsize=8)
def shuffled(size: int, *, study_seed: int, dataset: str, purpose: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a permutation of range(size) that depends only on the study's seed, the data set and the purpose."""
    order = stream(study_seed, dataset, 0, "sampler", purpose).permutation(size)
    order.setflags(write=False)
    return order


def walk(
    dimensions: SearchSpace, order: np.ndarray[Any, np.dtype[np.int64]], start: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (place in `order`, Optuna's values) of each distinct combination from place `start` on."""
    for place in range(start, len(order)):
        inner = dimensions.combination(int(order[place]))
        if inner is not None:
            yield place, inner
