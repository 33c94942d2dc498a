"""A search space as arrays: random and mutated configurations, and their coordinates for a surrogate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ablate.tuning.sampling.search_space import SearchSpace, encode

Array = NDArray[np.float64]
MOVED, STEP = 0.5, 0.1  # chance that a mutation moves a number, and the standard deviation as a share of its range
FINE = 10  # whole numbers of more values are moved like real ones


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Configurations as rows [n, D] of Optuna's values by setting, NaN where a setting is not searched."""

    dimensions: SearchSpace

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The settings in order, each after those that its conditions name."""
        return tuple(self.dimensions.distributions)

    @cached_property
    def _when(self) -> list[list[tuple[int, Array]]]:
        """By setting: the places of the settings that its condition names, and the values that they must have."""
        ranges = self.dimensions.space.ranges
        return [
            [
                (self.names.index(other), np.array([encode(ranges[other], value) for value in allowed], dtype=float))
                for other, allowed in ranges[name].when.items()
            ]
            for name in self.names
        ]

    def rows(self, given: Iterable[Mapping[str, Any]]) -> Array:
        """Return configurations as rows."""
        found = [[values.get(name, math.nan) for name in self.names] for values in given]
        return np.array(found, dtype=float).reshape(-1, len(self.names))

    def values(self, row: Array) -> dict[str, Any]:
        """Return a row as Optuna's values; the inverse of `rows`."""
        pairs = zip(self.dimensions.distributions.items(), row, strict=True)
        return {
            name: float(value) if isinstance(own, FloatDistribution) else int(value)
            for (name, own), value in pairs
            if not math.isnan(value)
        }

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Return values of every setting, drawn as the random sampler draws; `placed` takes out those not searched."""
        shares = rng.random((len(self.names), count))
        columns = zip(self.dimensions.distributions.values(), shares, strict=True)
        return np.stack([_at(own, share) for own, share in columns], axis=1)

    def mutate(self, rng: np.random.Generator, parents: Array) -> Array:
        """Return values of every setting near each parent: one or two are drawn anew, half of the real numbers move."""
        fresh = self.draw(rng, len(parents))
        drawn = rng.random(parents.shape).argsort(axis=1) < rng.integers(1, 3, (len(parents), 1))
        moves, steps = rng.random(parents.shape) < MOVED, rng.normal(0.0, STEP, parents.shape)
        found = np.where(drawn | np.isnan(parents), fresh, parents)
        for place, own in enumerate(self.dimensions.distributions.values()):
            if _is_fine(own):
                there = np.clip(_share(own, found[:, place]) + steps[:, place], 0.0, 1.0)
                found[:, place] = np.where(moves[:, place], _at(own, there), found[:, place])
        return found

    def placed(self, rows: Array, fixed: Mapping[str, Any]) -> Array:
        """Return `rows` with the values `fixed`, NaN where a setting is not searched beside the others."""
        found = rows.copy()
        for place, (name, conditions) in enumerate(zip(self.names, self._when, strict=True)):
            if name in fixed:
                found[:, place] = fixed[name]
            for other, allowed in conditions:
                found[~np.isin(found[:, other], allowed), place] = np.nan
        return found

    def coordinates(self, rows: Array) -> Array:
        """Return the places [n, C] of rows: numbers on [0, 1], two choices at distance 1, what is not searched midway.

        A condition needs no column: the setting that it names has one.
        """
        found: list[Array] = []
        for values, own in zip(rows.T, self.dimensions.distributions.values(), strict=True):
            if isinstance(own, CategoricalDistribution):
                each = (values[:, None] == np.arange(len(own.choices))).astype(float)
                found += list(math.sqrt(0.5) * np.where(np.isnan(values[:, None]), 1 / len(own.choices), each).T)
            else:
                found.append(np.where(np.isnan(values), 0.5, _share(own, values)))
        return np.stack(found, axis=1)

    @cached_property
    def groups(self) -> NDArray[np.intp]:
        """The setting [C] of each coordinate, by place."""
        distributions = self.dimensions.distributions.values()
        widths = [len(own.choices) if isinstance(own, CategoricalDistribution) else 1 for own in distributions]
        return np.repeat(np.arange(len(self.names)), widths)


def _at(own: BaseDistribution, share: Array) -> Array:
    """Return Optuna's values at shares in [0, 1] of a distribution (`inner_at_share` of a range, for arrays)."""
    if isinstance(own, CategoricalDistribution):
        chosen: Array = np.floor(np.minimum(share, 1 - 1e-12) * len(own.choices))
        return chosen
    assert isinstance(own, IntDistribution | FloatDistribution)
    low, high = _ends(own)
    place = low + share * (high - low)
    if isinstance(own, FloatDistribution):
        return np.clip(np.exp(place) if own.log else place, own.low, own.high)
    if own.log:
        return np.clip(np.round(np.exp(place)), own.low, own.high)
    found: Array = np.minimum(own.low + own.step * np.floor(share * _count(own)), own.high)
    return found


def _share(own: BaseDistribution, values: Array) -> Array:
    """Return the shares of numbers on their range's scale; a whole number is in the middle of its part of the range."""
    assert isinstance(own, IntDistribution | FloatDistribution)
    if isinstance(own, IntDistribution) and not own.log:
        found: Array = ((values - own.low) / own.step + 0.5) / _count(own)
        return found
    low, high = _ends(own)
    place = np.log(values) if own.log else values
    return (place - low) / (high - low) if high > low else np.full_like(values, 0.5)


def _ends(own: IntDistribution | FloatDistribution) -> tuple[float, float]:
    """Return both ends of a range on its scale; a whole number stands for what rounds to it."""
    half = 0.5 if isinstance(own, IntDistribution) and own.log else 0.0
    low, high = own.low - half, own.high + half
    return (math.log(low), math.log(high)) if own.log else (low, high)


def _count(own: IntDistribution) -> int:
    return (own.high - own.low) // own.step + 1


def _is_fine(own: BaseDistribution) -> bool:
    """Return whether a small move makes another value of a number."""
    if isinstance(own, IntDistribution):
        return _count(own) > FINE
    return isinstance(own, FloatDistribution)
