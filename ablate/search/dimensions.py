"""Between a study's parameters and Optuna's distributions, and a walk over every combination of a finite space."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ablate.randomness import stream
from ablate.study.space import Parameter, Space

GRID_LIMIT = 5_000_000  # 40 MB of permutation
ENUMERATION_LIMIT = 200_000


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One parameter as Optuna sees it.

    Choices are told by their index, so that `1`, `True` and `1.0` stay different; a float with a step is told by
    the number of steps, so that its values are those of the grid, bit for bit.
    """

    parameter: Parameter
    distribution: BaseDistribution

    @staticmethod
    def of(parameter: Parameter) -> Dimension:
        """Return the dimension of `parameter`."""
        return Dimension(parameter=parameter, distribution=_distribution(parameter))

    @property
    def size(self) -> int | None:
        """Number of values, or None where there are infinitely many."""
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return len(d.choices)
        if isinstance(d, IntDistribution):
            return (d.high - d.low) // d.step + 1
        return 1 if d.single() else None

    def decode(self, inner: Any) -> Any:
        """Return the parameter's value for Optuna's."""
        p = self.parameter
        if p.kind == "categorical":
            return p.choices[int(inner)]
        if p.kind == "int":
            return int(inner)
        return p.low + int(inner) * p.step if p.step is not None and _stepped(p) else float(inner)

    def encode(self, value: Any) -> Any:
        """Return Optuna's value for the parameter's; the inverse of `decode`."""
        p = self.parameter
        if p.kind == "categorical":
            return next(i for i, c in enumerate(p.choices) if c == value and type(c) is type(value))
        if p.kind == "int":
            return int(value)
        return round((value - p.low) / p.step) if p.step is not None and _stepped(p) else float(value)

    def at(self, index: int) -> Any:
        """Return Optuna's value number `index` of a finite dimension."""
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return d.choices[index]
        return d.low + index * d.step if isinstance(d, IntDistribution) else self.parameter.low

    def from_unit(self, u: float) -> Any:
        """Return Optuna's value at `u` in [0, 1) of the range, on its own scale."""
        d = self.distribution
        if isinstance(d, IntDistribution) and d.log:
            low, high = math.log(d.low - 0.5), math.log(d.high + 0.5)
            return min(max(round(math.exp(low + u * (high - low))), d.low), d.high)
        if (size := self.size) is not None:
            return self.at(min(int(u * size), size - 1))
        assert isinstance(d, FloatDistribution)
        if d.log:
            low, high = math.log(d.low), math.log(d.high)
            return min(max(math.exp(low + u * (high - low)), d.low), d.high)
        return min(max(d.low + u * (d.high - d.low), d.low), d.high)


def _stepped(p: Parameter) -> bool:
    return p.kind == "float" and p.step is not None and p.low < p.high


def _distribution(p: Parameter) -> BaseDistribution:
    if p.kind == "categorical":
        return CategoricalDistribution(tuple(range(len(p.choices))))
    if p.kind == "int":
        low, step = int(p.low), int(p.step or 1)
        return IntDistribution(low, low + (int(p.high) - low) // step * step, log=p.log, step=step)
    if p.step is not None and _stepped(p):
        return IntDistribution(0, math.floor((p.high - p.low) / p.step + 1e-9))
    return FloatDistribution(p.low, p.high, log=p.log)


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """All dimensions of one data set's space, conditions before their dependents."""

    space: Space
    by_name: Mapping[str, Dimension]

    @staticmethod
    def of(space: Space) -> Dimensions:
        """Return the dimensions of `space`."""
        return Dimensions(space=space, by_name={p.name: Dimension.of(p) for p in space.parameters})

    @property
    def conditional(self) -> bool:
        """Whether some parameter exists only under a condition."""
        return any(p.when for p in self.space.parameters)

    def product(self) -> int | None:
        """Return the number of combinations without regard to conditions, or None where there are infinitely many."""
        sizes = [d.size for d in self.by_name.values()]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def encode(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return Optuna's values of `parameters`."""
        return {name: self.by_name[name].encode(value) for name, value in parameters.items()}

    def distributions(self, names: Mapping[str, Any]) -> dict[str, BaseDistribution]:
        """Return the distributions of the named parameters, in their order."""
        return {name: self.by_name[name].distribution for name in names}

    def combination(self, index: int) -> dict[str, Any] | None:
        """Return Optuna's values of combination `index`, the last parameter turning fastest.

        None where a parameter that does not exist there is not at its first value: of the combinations that
        differ only in such parameters exactly one is returned.
        """
        digits: dict[str, int] = {}
        for name, dimension in reversed(list(self.by_name.items())):
            assert dimension.size is not None
            index, digits[name] = divmod(index, dimension.size)
        inner: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for name, dimension in self.by_name.items():
            if self.space.is_active(dimension.parameter, values):
                inner[name] = dimension.at(digits[name])
                values[name] = dimension.decode(inner[name])
            elif digits[name]:
                return None
        return inner


@lru_cache(maxsize=8)
def shuffled(size: int, *, study_seed: int, dataset: str, purpose: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a permutation of range(size) that only the study's seed, the data set and the purpose decide."""
    order = stream(study_seed, dataset, 0, "sampler", purpose).permutation(size)
    order.setflags(write=False)
    return order


def walk(
    dimensions: Dimensions, order: np.ndarray[Any, np.dtype[np.int64]], start: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (place in `order`, Optuna's values) of each distinct combination from place `start` on."""
    for place in range(start, len(order)):
        inner = dimensions.combination(int(order[place]))
        if inner is not None:
            yield place, inner
