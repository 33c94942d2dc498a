"""The search space: a range for each setting by dotted name, and the conditions under which it is searched."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ablate.config import FROZEN

Scalar = str | int | float | bool | None
COUNTED = 1_000_000  # a space with more conditional combinations than this counts as infinite
When = Annotated[
    dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(lambda v: v if isinstance(v, list | tuple) else (v,))]],
    Field(description="Exists only where these parameters have one of these values."),
]


class Range(BaseModel):
    """The values that a setting may take, as the study file writes them and the sampler chooses among them.

    `when` maps the names of other settings with choices or whole numbers to the values under which this one is
    searched; elsewhere the default applies.
    """

    model_config = ConfigDict(**FROZEN, populate_by_name=True)
    when: When = Field(default_factory=dict)

    @model_validator(mode="after")
    def _sound(self) -> Self:
        faults = self.faults()
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @abstractmethod
    def faults(self) -> list[str]:
        """Return what is wrong with the range, one rule per fault."""

    @abstractmethod
    def grid(self) -> Sequence[Scalar] | None:
        """Return every value in order, or None if there are infinitely many or more than COUNTED real steps."""

    @abstractmethod
    def contains(self, value: Any) -> bool:
        """Return whether this range contains `value`."""

    @abstractmethod
    def read(self, value: Any) -> Scalar:
        """Return the value of this range that `value` means; raise ValueError that names the range."""


def _interval_faults(bounds: tuple[float, float], *, log: bool, step: float | None) -> list[str]:
    low, high = bounds
    faults = []
    if low > high:
        faults.append(f"low must not exceed high, got [{low:g}, {high:g}]")
    if log and low <= 0:
        faults.append(f"a log scale needs low > 0, got {low:g}")
    if log and step is not None:
        faults.append("log and step exclude each other")
    if step is not None and step <= 0:
        faults.append(f"step must be a positive number, got {step}")
    return faults


def _is_between(bounds: tuple[float, float], value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = bounds
    slack = 1e-9 * max(abs(low), abs(high), 1e-300)
    return low - slack <= value <= high + slack


def _step_text(step: float | None) -> str:
    return "" if step is None else f" in steps of {step:g}"


class FloatRange(Range):
    """`{float: [low, high], log: true}`: a real number between two bounds."""

    bounds: tuple[float, float] = Field(alias="float", description="Lowest and highest value.")
    log: bool = Field(default=False, description="Draw on a log scale.")
    step: float | None = Field(default=None, description="Distance between values, counted from the lowest.")

    def faults(self) -> list[str]:
        return _interval_faults(self.bounds, log=self.log, step=self.step)

    def grid(self) -> Sequence[Scalar] | None:
        low, _ = self.bounds
        count = self.count()
        if count is None or count > COUNTED:
            return None
        return (low,) if self.step is None else tuple(low + i * self.step for i in range(count))

    def count(self) -> int | None:
        """Return the number of values, or None if there are infinitely many."""
        low, high = self.bounds
        if low == high:
            return 1
        return None if self.step is None else math.floor((high - low) / self.step + 1e-9) + 1

    def contains(self, value: Any) -> bool:
        return _is_between(self.bounds, value)

    def read(self, value: Any) -> Scalar:
        (low, high), step = self.bounds, self.step
        if _is_between(self.bounds, value):
            if step is None:
                return float(min(max(value, low), high))
            place = round((value - low) / step)
            if abs(low + place * step - value) <= 1e-9 * step and place < (self.count() or 1):
                return float(low + place * step)
        raise ValueError(f"must be a number from {low:g} to {high:g}{_step_text(step)}")


class IntRange(Range):
    """`{int: [low, high], step: 2}`: a whole number between two bounds."""

    bounds: tuple[int, int] = Field(alias="int", description="Lowest and highest value.")
    log: bool = Field(default=False, description="Draw on a log scale.")
    step: int | None = Field(default=None, description="Distance between values, counted from the lowest.")

    def faults(self) -> list[str]:
        return _interval_faults(self.bounds, log=self.log, step=self.step)

    def grid(self) -> Sequence[Scalar]:
        low, high = self.bounds
        return range(low, high + 1, self.step or 1)

    def count(self) -> int:
        """Return the number of values."""
        low, high = self.bounds
        return (high - low) // (self.step or 1) + 1

    def contains(self, value: Any) -> bool:
        return _is_between(self.bounds, value)

    def read(self, value: Any) -> Scalar:
        low, high = self.bounds
        if _is_between(self.bounds, value) and value == int(value) and int(value) in self.grid():
            return int(value)
        raise ValueError(f"must be a whole number from {low} to {high}{_step_text(self.step)}")


class Choices(Range):
    """`{choices: [a, b]}`: one of the listed values."""

    choices: tuple[Scalar, ...] = Field(description="The values to choose from.")

    def faults(self) -> list[str]:
        if not self.choices:
            return ["choices must not be empty"]
        seen: list[Scalar] = []
        for choice in self.choices:
            if any(_is_same(choice, other) for other in seen):
                return [f"choice {choice!r} is given twice"]
            seen.append(choice)
        return []

    def grid(self) -> Sequence[Scalar]:
        return self.choices

    def contains(self, value: Any) -> bool:
        return any(_is_same(value, choice) for choice in self.choices)

    def read(self, value: Any) -> Scalar:
        tests = (_is_same, _is_equal_number, lambda one, two: str(one) == str(two))
        for same in tests:
            for choice in self.choices:
                if same(value, choice):
                    return choice
        raise ValueError(f"must be one of {', '.join(map(str, self.choices))}")

    def index(self, value: Any) -> int:
        """Return the position of `value`, which is one of the choices."""
        return next(i for i, choice in enumerate(self.choices) if _is_same(value, choice))


def _is_same(one: Any, two: Any) -> bool:
    """Return whether two choices are equal and of one type: `1`, `True` and `1.0` are three choices."""
    return bool(one == two) and type(one) is type(two)


def _is_equal_number(one: Any, two: Any) -> bool:
    return not isinstance(one, bool) and not isinstance(two, bool) and bool(one == two)


@dataclass(frozen=True, kw_only=True)
class Space:
    """The searched settings of a study by dotted name, each after those that its conditions name."""

    ranges: Mapping[str, Range] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Return the settings' names in order."""
        return tuple(self.ranges)

    def is_active(self, name: str, values: Mapping[str, Any]) -> bool:
        """Return whether setting `name` is searched under the `values` chosen before it."""
        return all(other in values and values[other] in allowed for other, allowed in self.ranges[name].when.items())

    def cardinality(self) -> int | None:
        """Return the number of distinct configurations, or None if there are too many to count."""
        if any(spec.grid() is None for spec in self.ranges.values()):
            return None
        named = {name for spec in self.ranges.values() for name in spec.when}
        tied = Space(ranges={name: spec for name, spec in self.ranges.items() if spec.when or name in named})
        free = math.prod(len(spec.grid() or ()) for name, spec in self.ranges.items() if name not in tied.ranges)
        count = sum(1 for _ in itertools.islice(tied.grid(), COUNTED + 1))
        return free * count if count <= COUNTED else None

    def grid(self) -> Iterator[dict[str, Scalar]]:
        """Yield every configuration of a finite space; the last setting varies fastest."""
        yield from _expand(self, {}, self.names())

    def contains(self, values: Mapping[str, Any]) -> bool:
        """Return whether `values` is one configuration of this space: the active settings, each in its range."""
        active = {name for name in self.ranges if self.is_active(name, values)}
        return active == set(values) and all(self.ranges[name].contains(values[name]) for name in active)


def _expand(space: Space, values: dict[str, Scalar], names: Sequence[str]) -> Iterator[dict[str, Scalar]]:
    if not names:
        yield dict(values)
        return
    name, rest = names[0], names[1:]
    if not space.is_active(name, values):
        yield from _expand(space, values, rest)
        return
    choices = space.ranges[name].grid()
    if choices is None:
        raise ValueError(f"{name} has infinitely many values")
    for choice in choices:
        yield from _expand(space, {**values, name: choice}, rest)


def order_by_condition(ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Return `ranges` with each after those that its conditions name, otherwise in the given order.

    Raises ValueError naming the settings whose conditions are circular.
    """
    placed: dict[str, Range] = {}
    waiting = dict(ranges)
    while waiting:
        ready = [name for name, spec in waiting.items() if all(n in placed for n in spec.when if n in ranges)]
        if not ready:
            raise ValueError("conditions run in a circle: " + ", ".join(waiting))
        placed[ready[0]] = waiting.pop(ready[0])
    return placed
