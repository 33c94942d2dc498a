"""The values of settings: what can be one, when two are the same, and how they are written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

Scalar = str | int | float | bool | None


def refuse_null(value: Any) -> None:
    """Raise ValueError for a text with the character that ends one in C, so that no process takes it."""
    if isinstance(value, str) and "\0" in value:
        raise ValueError("this text holds the character \\0, which no command takes")


def plain_choices(given: Any) -> Any:
    """Refuse what is no list of texts, finite numbers, true, false and null, with what to write instead."""
    if not isinstance(given, list | tuple):
        raise ValueError("choices are a list, as in [a, b]")
    for choice in given:
        refuse_null(choice)
        if isinstance(choice, list | tuple | dict):
            text = json.dumps(choice, ensure_ascii=False, default=str).replace("'", "''")
            raise ValueError(f"a list or mapping is no choice: write '{text}', a text, and json.loads it in your code")
        if isinstance(choice, float) and not math.isfinite(choice):
            raise ValueError(f"choice {choice} is not a finite number; quote it if it is text")
    return given


def is_between(bounds: tuple[float, float], value: Any) -> bool:
    """Return whether a value is a number from the lower to the upper bound, but for rounding."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = bounds
    slack = 1e-9 * max(abs(low), abs(high), 1e-300)
    return low - slack <= value <= high + slack


def as_written(value: float) -> Decimal:
    """Return the shortest decimal of a number."""
    return Decimal(repr(value))


def is_same(one: Any, two: Any) -> bool:
    """Return whether two values or configurations are equal and of one type: `1`, `True`, `1.0` and `"1"` differ."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(is_same(value, two[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(is_same, one, two))
    return bool(one == two) and type(one) is type(two)


def texts_of(values: Iterable[Any]) -> list[str]:
    """Return each value as text: text as it is and others as JSON, or all as JSON where two would read the same."""
    exact = [json.dumps(value, ensure_ascii=False) for value in values]
    plain = [value if isinstance(value, str) else text for value, text in zip(values, exact, strict=True)]
    return plain if len(set(plain)) == len(set(exact)) else exact
