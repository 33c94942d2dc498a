"""The hypervolume that a candidate of known cost and uncertain loss is expected to add to a front."""

from __future__ import annotations

import itertools

import numpy as np
import scipy
from numpy.typing import NDArray

from ablate.core.objectives import nondominated_losses

Array = NDArray[np.float64]
CELLS = 10_000  # of the grid of a front, at most; of a longer front, points at even distances by loss are taken
ROWS = 256  # candidates at once
LARGEST = 700.0  # logarithm of a number that does not overflow


def expected_gain(
    costs: Array, mean: Array, deviation: Array, *, front: Array, losses: Array, reference: Array
) -> Array:
    """Return the expected gain [n] of candidates with costs [n, m] whose loss is exp(z), z ~ N(mean, deviation^2).

    `front` [K, m] has the costs of the points on the front, `losses` [K] their losses, and `reference` [m + 1] the
    costs and the loss that bound the volume; losses are above 0. Between the costs of the front is a grid of cells. In
    each, the least loss of a point that costs no more is the height that a candidate must stay below. So the gain is

        sum over heights h of  volume(h, costs) * E[max(0, h - exp(z))],

    exact because the loss alone is uncertain (with one cost a staircase). Without a cost it is expected improvement.
    """
    kept = (front < reference[:-1]).all(axis=1) & (losses < reference[-1])
    front, losses = front[kept], losses[kept]
    if len(front):  # dominated points change no height
        standing = np.array(nondominated_losses(np.column_stack([front, losses])))
        front, losses = front[standing], losses[standing]
    front, losses = _thinned(front, losses)
    edges = [np.append(np.unique(column), end) for column, end in zip(front.T, reference, strict=False)]
    edges = [np.concatenate([[-np.inf], each]) for each in edges]
    heights, level = np.unique(_heights(front, losses, edges, reference[-1]), return_inverse=True)
    order = level.argsort(kind="stable")
    starts = np.searchsorted(level[order], np.arange(len(heights)))
    gains = np.empty(len(costs))
    for first in range(0, len(costs), ROWS):
        part = slice(first, first + ROWS)
        cells = np.ones((len(mean[part]), 1))
        for own, cost in zip(edges, costs[part].T, strict=True):
            widths = np.maximum(own[1:] - np.maximum(own[:-1], cost[:, None]), 0.0)
            cells = (cells[:, :, None] * widths[:, None, :]).reshape(len(cells), -1)
        volumes = np.add.reduceat(cells[:, order], starts, axis=1)
        gains[part] = (volumes * _shortfall(heights, mean[part, None], deviation[part, None])).sum(axis=1)
    return gains


def _shortfall(heights: Array, mean: Array, deviation: Array) -> Array:
    """Return E[max(0, h - exp(z))] of z ~ N(mean, deviation^2), [n, heights]."""
    u = (np.log(heights) - mean) / deviation
    paid = np.exp(np.minimum(mean + deviation**2 / 2, LARGEST)) * scipy.special.ndtr(u - deviation)
    found: Array = heights * scipy.special.ndtr(u) - paid
    return found


def _heights(front: Array, losses: Array, edges: list[Array], most: float) -> Array:
    """Return the height of each cell, the last cost varying fastest: the least loss of a point that costs no more."""
    lower = list(itertools.product(*(own[:-1] for own in edges)))
    corners = np.array(lower).reshape(len(lower), len(edges))
    below = (front[None, :, :] <= corners[:, None, :]).all(axis=2)
    found: Array = np.where(below, losses, most).min(axis=1, initial=most)
    return found


def _thinned(front: Array, losses: Array) -> tuple[Array, Array]:
    """Return a front with so few points that their grid has at most CELLS cells, evenly by loss with both ends."""
    most = max(int(CELLS ** (1 / max(front.shape[1], 1))) - 1, 2)
    if len(front) <= most:
        return front, losses
    chosen = losses.argsort(kind="stable")[np.linspace(0, len(losses) - 1, most).round().astype(int)]
    return front[chosen], losses[chosen]
