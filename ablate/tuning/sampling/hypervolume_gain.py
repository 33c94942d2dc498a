"""The hypervolume that a candidate with known and uncertain losses is expected to add to a front."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from ablate.core.objectives import nondominated_losses

Array = NDArray[np.float64]
CELLS = 10_000  # of the grid of a front, at most; of a longer front, points at even distances are taken
AT_ONCE = 256  # candidates
LARGEST = 700.0  # logarithm of a number that does not overflow


@dataclass(frozen=True)
class Expected:
    """A loss [n] of candidates: known, or with `deviation` exp(z) with z ~ N(mean, deviation^2)."""

    mean: Array
    deviation: Array | None = None

    def shortfall(self, heights: Array) -> Array:
        """Return E[max(0, h - y)], [n, heights]."""
        if self.deviation is None:
            known: Array = np.maximum(heights - self.mean[:, None], 0.0)
            return known
        mean, deviation = self.mean[:, None], self.deviation[:, None]
        with np.errstate(divide="ignore"):
            u = (np.log(np.maximum(heights, 0.0)) - mean) / deviation
        paid = np.exp(np.minimum(mean + deviation**2 / 2, LARGEST)) * scipy.special.ndtr(u - deviation)
        found: Array = np.maximum(heights * scipy.special.ndtr(u) - paid, 0.0)
        return found


def expected_gain(losses: Sequence[Expected], *, front: Array, reference: Array) -> Array:
    """Return the expected gain [n] of candidates over `front` [K, m], with independent losses by objective.

    `reference` [m] bounds the volume. The values of the front on all objectives but the last one make a grid of cells.
    In each, the least last loss of a point that is no worse on the others is the height that a candidate must stay
    below. With S(a) = E[max(0, a - y)], the gain is

        sum over cells of  prod over the other objectives of [S(upper edge) - S(lower edge)]  *  S_last(height),

    exact for any mixture of known and uncertain losses. With one objective it is expected improvement.
    """
    front = front[(front < reference).all(axis=1)]
    if len(front):  # dominated points change no height
        front = _thinned(front[np.array(nondominated_losses(front))])
    *others, last = losses
    edges = [np.append(np.unique(front[:, place]), reference[place]) for place in range(len(others))]
    heights, level = np.unique(_heights(front, edges, reference[-1]), return_inverse=True)
    order = level.argsort(kind="stable")
    starts = np.searchsorted(level[order], np.arange(len(heights)))
    gains = np.empty(len(last.mean))
    for first in range(0, len(gains), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        cells = np.ones((len(gains[part]), 1))
        for own, each in zip(edges, others, strict=True):
            widths = np.diff(_of(each, part).shortfall(own), axis=1, prepend=0.0)
            cells = (cells[:, :, None] * widths[:, None, :]).reshape(len(cells), -1)
        volumes = np.add.reduceat(cells[:, order], starts, axis=1)
        gains[part] = (volumes * _of(last, part).shortfall(heights)).sum(axis=1)
    return gains


def _of(each: Expected, part: slice) -> Expected:
    return Expected(each.mean[part], None if each.deviation is None else each.deviation[part])


def _heights(front: Array, edges: Sequence[Array], most: float) -> Array:
    """Return the height of each cell, the last edge varying fastest: the least last loss of a point that reaches it."""
    lower = [np.append(-math.inf, own[:-1]) for own in edges]
    combined = list(itertools.product(*lower))
    corners = np.array(combined).reshape(len(combined), len(edges))
    below = (front[None, :, :-1] <= corners[:, None, :]).all(axis=2)
    found: Array = np.where(below, front[:, -1], most).min(axis=1, initial=most)
    return found


def _thinned(front: Array) -> Array:
    """Return a front with so few points that their grid has at most CELLS cells, evenly by last loss with both ends."""
    most = max(int(CELLS ** (1 / max(front.shape[1] - 1, 1))) - 1, 2)
    if len(front) <= most:
        return front
    chosen = front[:, -1].argsort(kind="stable")[np.linspace(0, len(front) - 1, most).round().astype(int)]
    found: Array = front[chosen]
    return found
