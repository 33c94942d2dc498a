"""The search space: parameters by dotted name, their ranges, and the conditions under which they exist."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Scalar = str | int | float | bool | None
COUNTED = 1_000_000  # a space with more conditional combinations than this counts as infinite


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One thing the sampler chooses.

    `float` and `int` have `low <= value <= high`, optionally on a `log` scale or in steps of `step` from `low`;
    `categorical` has `choices`. `when` maps the names of other categorical or int parameters to the values under which
    this one exists; elsewhere the configuration's default stands.
    """

    name: str
    kind: Literal["float", "int", "categorical"]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    choices: tuple[Scalar, ...] = ()
    when: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """Return what is wrong with the range, one rule per fault."""
        if self.kind == "categorical":
            return self._choice_faults()
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return ["bounds must be finite numbers"]
        faults = []
        if self.low > self.high:
            faults.append(f"low must not exceed high, got [{self.low:g}, {self.high:g}]")
        if self.log and self.low <= 0:
            faults.append(f"a log scale needs low > 0, got {self.low:g}")
        if self.log and self.step is not None:
            faults.append("log and step exclude each other")
        if self.step is not None and not (math.isfinite(self.step) and self.step > 0):
            faults.append(f"step must be a positive number, got {self.step}")
        if self.kind == "int" and any(v is not None and v != int(v) for v in (self.low, self.high, self.step)):
            faults.append("an int parameter needs whole numbers")
        return faults

    def _choice_faults(self) -> list[str]:
        if not self.choices:
            return ["choices must not be empty"]
        seen: list[Scalar] = []
        for choice in self.choices:
            if isinstance(choice, float) and not math.isfinite(choice):
                return ["choices must be finite"]
            if any(choice == other and type(choice) is type(other) for other in seen):
                return [f"choice {choice!r} is given twice"]
            seen.append(choice)
        return []

    def grid(self) -> Sequence[Scalar] | None:
        """Return every value in order, or None where there are infinitely many, or more than COUNTED real steps."""
        if self.kind == "categorical":
            return self.choices
        if self.kind == "int":
            return range(int(self.low), int(self.high) + 1, int(self.step or 1))
        if self.low == self.high:
            return (self.low,)
        if self.step is None:
            return None
        count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
        if count > COUNTED:
            return None
        return tuple(self.low + i * self.step for i in range(count))

    def contains(self, value: Any) -> bool:
        """Return whether `value` can have been drawn from this parameter."""
        if self.kind == "categorical":
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        slack = 1e-9 * max(abs(self.low), abs(self.high), 1e-300)
        return self.low - slack <= value <= self.high + slack


@dataclass(frozen=True, kw_only=True)
class Space:
    """All parameters of a study, each after those that its conditions name."""

    parameters: tuple[Parameter, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Return the parameters' names in order."""
        return tuple(p.name for p in self.parameters)

    def is_active(self, parameter: Parameter, values: Mapping[str, Any]) -> bool:
        """Return whether `parameter` exists under the `values` chosen before it."""
        return all(name in values and values[name] in allowed for name, allowed in parameter.when.items())

    def active(self, values: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the parameters that exist under `values`."""
        return tuple(p for p in self.parameters if self.is_active(p, values))

    def cardinality(self) -> int | None:
        """Return the number of distinct configurations, or None where there are too many to count."""
        if any(p.grid() is None for p in self.parameters):
            return None
        named = {name for p in self.parameters for name in p.when}
        tied = Space(parameters=tuple(p for p in self.parameters if p.when or p.name in named))
        free = math.prod(len(p.grid() or ()) for p in self.parameters if not p.when and p.name not in named)
        count = sum(1 for _ in itertools.islice(tied.grid(), COUNTED + 1))
        return free * count if count <= COUNTED else None

    def grid(self) -> Iterator[dict[str, Scalar]]:
        """Yield every configuration of a finite space, the last parameter turning fastest."""
        yield from _expand(self, {}, 0)

    def contains(self, values: Mapping[str, Any]) -> bool:
        """Return whether `values` is one configuration of this space: the active parameters, each in its range."""
        active = self.active(values)
        return {p.name for p in active} == set(values) and all(p.contains(values[p.name]) for p in active)


def _expand(space: Space, values: dict[str, Scalar], index: int) -> Iterator[dict[str, Scalar]]:
    if index == len(space.parameters):
        yield dict(values)
        return
    parameter = space.parameters[index]
    if not space.is_active(parameter, values):
        yield from _expand(space, values, index + 1)
        return
    choices = parameter.grid()
    if choices is None:
        raise ValueError(f"{parameter.name} has infinitely many values")
    for choice in choices:
        yield from _expand(space, {**values, parameter.name: choice}, index + 1)


def order_by_condition(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Return `parameters` with each after those that its conditions name, else in the given order.

    Raises ValueError naming the parameters whose conditions run in a circle.
    """
    known = {p.name for p in parameters}
    placed: dict[str, Parameter] = {}
    waiting = list(parameters)
    while waiting:
        ready = [p for p in waiting if all(n in placed for n in p.when if n in known)]
        if not ready:
            raise ValueError("conditions run in a circle: " + ", ".join(p.name for p in waiting))
        for parameter in ready[:1]:
            placed[parameter.name] = parameter
            waiting.remove(parameter)
    return tuple(placed.values())
