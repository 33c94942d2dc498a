"""The search space: a range for each setting by dotted name, and the conditions under which it is searched."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ablate.core.config import FROZEN
from ablate.study.values import Scalar, as_written, is_between, is_same, plain_choices, texts_of

COUNTED = 1_000_000  # a space with more conditional combinations than this counts as infinite
DIGITS = 4  # decimal digits of a range's width that a suggestion keeps
EXACT = 2**53  # a sampler keeps whole numbers up to this one exactly
When = Annotated[
    dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(lambda v: v if isinstance(v, list | tuple) else (v,))]],
    Field(description="Exists only where these parameters have one of these values."),
]


class Range(BaseModel):
    """The values that a setting may take, as the study file writes them and the sampler chooses among them.

    `when` maps the names of other settings with choices or whole numbers to the values under which this one is
    searched; elsewhere the trainable's own value applies.
    """

    model_config = ConfigDict(**FROZEN, populate_by_name=True)
    when: When = Field(default_factory=dict)
    default: Any = Field(default=None, description="The value of your settings, which are tried first.")

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

    def count(self) -> int | None:
        """Return the number of values, or None if there are infinitely many."""
        values = self.grid()
        return None if values is None else len(values)

    def contains(self, value: Any) -> bool:
        """Return whether this range contains `value`."""
        try:
            self.read(value)
        except ValueError:
            return False
        return True

    @abstractmethod
    def read(self, value: Any) -> Scalar:
        """Return the value of this range that `value` means; raise ValueError that names the range."""

    @property
    def has_default(self) -> bool:
        """Whether the file gives a default, which may be null."""
        return "default" in self.model_fields_set

    @property
    @abstractmethod
    def ends(self) -> tuple[Scalar, ...]:
        """The lowest and the highest value, or every choice."""

    def widens(self, other: Range) -> bool:
        """Return whether this range has all values of `other`, and keeps its scale, steps, condition and default."""
        ends = {"bounds", "choices", "default"}
        alike = type(self) is type(other) and self.model_dump(exclude=ends) == other.model_dump(exclude=ends)
        kept = not other.has_default or (self.has_default and is_same(self.default, other.default))
        return alike and kept and all(map(self.contains, other.ends))


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
    elif step is not None and Decimal(high) - Decimal(low) > EXACT * Decimal(step):
        faults.append(f"a range has at most {EXACT:,} steps: choose a larger step than {step:g}")
    if not math.isfinite(high - low):
        faults.append(f"high - low must be a finite number, got [{low:g}, {high:g}]")
    return faults


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
        count = self.count()
        return None if count is None or count > COUNTED else _Steps(self, count)

    def count(self) -> int | None:
        low, high = self.bounds
        if low == high:
            return 1
        return None if self.step is None else int(self._steps(high) + Decimal("1e-9")) + 1

    @property
    def ends(self) -> tuple[float, float]:
        low, high = self.bounds
        return low, high if self.step is None else self.at((self.count() or 1) - 1)

    def at(self, index: int) -> float:
        """Return a value of a range with steps, as a decimal: three steps of 0.1 from 0 are 0.3."""
        return float(as_written(self.bounds[0]) + index * as_written(self.step or 0.0))

    def rounded(self, value: float) -> float:
        """Return the nearest short decimal within the bounds; a grid of them divides the range 10,000 to 100,000 times.

        On a log scale the grid is relative to the value. A range with steps has its own.
        """
        low, high = self.bounds
        if low < high and self.step is None:
            width = value * min(math.log(high / low), 1.0) if self.log else high - low
            value = round(value, DIGITS - Decimal(width).adjusted())
        return min(max(value, low), high)

    def place(self, value: float) -> int:
        """Return how many steps `value` is above the lowest, rounded; the inverse of `at`."""
        return round(self._steps(value))

    def _steps(self, value: float) -> Decimal:
        assert self.step is not None
        return (as_written(value) - as_written(self.bounds[0])) / as_written(self.step)

    def read(self, value: Any) -> Scalar:
        (low, high), step = self.bounds, self.step
        if is_between(self.bounds, value):
            if step is None:
                return float(min(max(value, low), high))
            place = self.place(value)
            if abs(self.at(place) - value) <= 1e-9 * step and place < (self.count() or 1):
                return self.at(place)
        raise ValueError(f"must be a number from {low:g} to {high:g}{_step_text(step)}")


@dataclass(frozen=True)
class _Steps(Sequence[float]):
    """The values of a real range with steps, computed when they are read."""

    spec: FloatRange
    number: int

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: Any) -> Any:
        places = range(self.number)[index]
        return self.spec.at(places) if isinstance(places, int) else [self[each] for each in places]


class IntRange(Range):
    """`{int: [low, high], step: 2}`: a whole number between two bounds."""

    bounds: tuple[int, int] = Field(alias="int", description="Lowest and highest value.")
    log: bool = Field(default=False, description="Draw on a log scale.")
    step: int | None = Field(default=None, description="Distance between values, counted from the lowest.")

    def faults(self) -> list[str]:
        if max(map(abs, self.bounds)) > EXACT:
            return [f"whole numbers are searched from {-EXACT} to {EXACT}, where each is exact: narrow the range"]
        return _interval_faults(self.bounds, log=self.log, step=self.step)

    def grid(self) -> range:
        low, high = self.bounds
        return range(low, high + 1, self.step or 1)

    @property
    def ends(self) -> tuple[int, int]:
        return self.bounds[0], self.grid()[-1]

    def read(self, value: Any) -> Scalar:
        low, high = self.bounds
        if is_between(self.bounds, value) and value == int(value) and int(value) in self.grid():
            return int(value)
        raise ValueError(f"must be a whole number from {low} to {high}{_step_text(self.step)}")


class Choices(Range):
    """`{choices: [a, b]}`: one of the listed values."""

    choices: Annotated[tuple[Scalar, ...], BeforeValidator(plain_choices)] = Field(
        description="The values to choose from."
    )

    def faults(self) -> list[str]:
        if not self.choices:
            return ["choices must not be empty"]
        twice = next((choice for place, choice in enumerate(self.choices) if self.index(choice) < place), self)
        return [] if twice is self else [f"choice {twice!r} is given twice"]

    def grid(self) -> Sequence[Scalar]:
        return self.choices

    @property
    def ends(self) -> tuple[Scalar, ...]:
        return self.choices

    @cached_property
    def _places(self) -> dict[tuple[type, Scalar], int]:
        """The first position of each choice by type and value, as `is_same` compares them."""
        return {(type(choice), choice): place for place, choice in reversed([*enumerate(self.choices)])}

    def contains(self, value: Any) -> bool:
        return isinstance(value, Scalar) and (type(value), value) in self._places

    def read(self, value: Any) -> Scalar:
        if self.contains(value):
            return self.choices[self.index(value)]
        for choice in self.choices:
            if bool not in (type(value), type(choice)) and value == choice:
                return choice
        raise ValueError(f"must be one of {', '.join(texts_of(self.choices))}")

    def index(self, value: Any) -> int:
        """Return the position of `value`, which is one of the choices."""
        return self._places[type(value), value]


@dataclass(frozen=True, kw_only=True)
class Space:
    """The searched settings of a study by dotted name, each after those that its conditions name."""

    ranges: Mapping[str, Range] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Return the settings' names in order."""
        return tuple(self.ranges)

    def is_active(self, name: str, values: Mapping[str, Any]) -> bool:
        """Return whether setting `name` is searched under the `values` chosen before it."""
        return all(
            other in values and any(is_same(values[other], each) for each in allowed)
            for other, allowed in self.ranges[name].when.items()
        )

    def active(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of `values`, one for each setting, that are searched beside each other."""
        own: dict[str, Any] = {}
        for name in self.ranges:
            if self.is_active(name, own):
                own[name] = values[name]
        return own

    def filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return `given` with the defaults of those other settings that are then searched."""
        own: dict[str, Any] = {}
        for name, spec in self.ranges.items():
            if name in given:
                own[name] = spec.read(given[name]) if spec.contains(given[name]) else given[name]
            elif spec.has_default and spec.contains(spec.default) and self.is_active(name, own):
                own[name] = spec.read(spec.default)
        return own | {name: value for name, value in given.items() if name not in own}

    def cardinality(self) -> int | None:
        """Return the number of distinct configurations, or None if there are too many to count."""
        if any(spec.grid() is None for spec in self.ranges.values()):
            return None
        named = {name for spec in self.ranges.values() for name in spec.when}
        tied = Space(ranges={name: spec for name, spec in self.ranges.items() if spec.when or name in named})
        free = math.prod(spec.count() or 0 for name, spec in self.ranges.items() if name not in tied.ranges)
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
        placed[ready[0]] = _with_read_conditions(waiting.pop(ready[0]), placed)
    return placed


def _with_read_conditions(spec: Range, above: Mapping[str, Range]) -> Range:
    """Return `spec` with conditions on a range of numbers in that range's type: there 1 and 1.0 mean the same."""
    when = {
        name: tuple(
            above[name].read(value) if name in above and above[name].contains(value) else value for value in allowed
        )
        for name, allowed in spec.when.items()
    }
    return spec if is_same(when, spec.when) else spec.model_copy(update={"when": when})
