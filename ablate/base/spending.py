"""The share of an error rate that each of several looks at growing results may spend."""

from __future__ import annotations


def spend(error: float, look: int, *, expected: float = 1.0) -> float:
    """Return the part of `error` that look number `look` (from 1) may spend.

    The parts are error·c / ((c + k - 1)(c + k)) with c = `expected`. They sum to `error` over any number of looks, so
    by the union bound the chance of a false decision at any look is at most `error`, however the looks depend on each
    other. Up to about c looks have equal parts: below 1, the first look has most of the error; at 1, half of it.
    """
    return error * expected / ((expected + look - 1) * (expected + look))
