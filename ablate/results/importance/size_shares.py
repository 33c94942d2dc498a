"""How much each setting decides a size: shares of the variance of its log10 over the whole space, without training.

A driver counts the networks of the space once, at the end of a search, and notes the shares in the ledger. Of all
networks the shares are exact; of draws, totals are estimated with a standard error. A setting under a condition is
drawn everywhere and enters where its condition holds, so that all settings are independent (Sobol').
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ablate.ledger import EventRecord
from ablate.results.importance.importance import Importance, Importances

SIZE_SHARES = "size_shares"  # the event
UNCOUNTED = "the networks of the space are not counted yet; ablate search does it at its end"
Values = NDArray[np.float64]
Pair = tuple[float | None, float]  # first-order and total share


def cell_shares(values: Values, weights: Sequence[Values]) -> list[Pair]:
    """Return the first-order and total share of each axis of `values`, one number for each combination of levels.

    `weights` are the probabilities of each axis's levels. NaN is a combination that does not exist; its probability is
    spread over the others. An axis that changes no value has exactly (0, 0).
    """
    there = np.isfinite(values)
    chance = np.where(there, math.prod(np.ix_(*weights), start=np.ones(values.shape)), 0.0)
    chance /= chance.sum()
    filled = np.where(there, values, 0.0)
    mean = float((chance * filled).sum())
    variance = float((chance * (filled - mean) ** 2).sum())
    found: list[Pair] = []
    for axis in range(values.ndim):
        low = np.where(there, values, np.inf).min(axis=axis)
        if variance == 0 or (np.where(there, values, -np.inf).max(axis=axis) <= low).all():
            found.append((0.0, 0.0))
            continue
        own = _means(chance, filled, tuple(i for i in range(values.ndim) if i != axis))
        others = _means(chance, filled, (axis,))
        first = float((chance * (own - mean) ** 2).sum()) / variance
        found.append((first, float((chance * (filled - others) ** 2).sum()) / variance))
    return found


def _means(chance: Values, values: Values, axes: tuple[int, ...]) -> Values:
    mass = chance.sum(axis=axes, keepdims=True)
    sums = (chance * values).sum(axis=axes, keepdims=True)
    means: Values = np.divide(sums, mass, out=np.zeros_like(sums), where=mass > 0)
    return means


def drawn_shares(values: Values, mixed: Values) -> tuple[list[Pair], float]:
    """Return the total share of each setting from draws, without the first-order one, and the largest standard error.

    `values` [rounds, draws] are of draws of the space, `mixed` [settings, rounds, draws] of the same with one setting
    drawn again (Jansen, Computer Physics Communications 1999). The error is the jackknife's over rounds.
    """
    squares = ((values - mixed) ** 2).mean(axis=-1) / 2
    every = np.concatenate([values[None], mixed])
    if every.min() == every.max():
        return [(None, 0.0)] * len(mixed), 0.0
    rounds = range(len(values))
    without = np.array([np.delete(squares, i, 1).mean(axis=1) / np.delete(every, i, 1).var() for i in rounds])
    error = np.sqrt((len(values) - 1) * without.var(axis=0)).max()
    return [(None, min(float(total), 1.0)) for total in squares.mean(axis=1) / every.var()], float(error)


def noted_importances(metric: str, events: Iterable[EventRecord], dataset: str) -> Importances:
    """Return the importances for a size that a driver has noted, the largest total first, or why there are none."""
    noted = next((each.payload for each in events if (each.kind, each.dataset) == (SIZE_SHARES, dataset)), None)
    if noted is None:
        return Importances(metric=metric, rows=(), reason=UNCOUNTED)
    shares = noted["shares"].get(metric, {})
    rows = [Importance(parameter=name, first=first, total=total) for name, (first, total) in shares.items()]
    return Importances(
        metric=metric,
        rows=tuple(sorted(rows, key=lambda row: (-row.total, row.parameter))),
        reason=noted["reason"] if not rows else "",
        networks=noted["networks"],
        error=noted["error"],
    )
