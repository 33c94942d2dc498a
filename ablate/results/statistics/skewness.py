"""Seeds that a t test does not bear: rows that are skewed to one side, and seeds that collapse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from ablate.results.statistics.intervals import outlying

LEAN, FEW_LEAN = 1.8, {1: 2.1, 3: 2.1}  # standard errors of mean skewness beyond which rows are skewed; by few rows
Gains = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Doubts:
    """Which claims on a row need a second test: that its mean is above a bound (`gain`), or below one (`loss`).

    None: a t test is enough. Otherwise the smallest standard deviation that the second test may assume.
    """

    gain: float | None = None
    loss: float | None = None


def doubts(rows: Sequence[Gains], collapsed: Sequence[bool]) -> list[Doubts]:
    """Return what is in doubt of each row of one metric, from its gains [n] by seed and whether a seed collapsed.

    If seeds have a tail of losses, most samples miss it: their mean is too high, their spread too small, and t tests
    find gains too easily. A tail of gains does the same to losses.
    """
    found, limit = lean(rows), FEW_LEAN.get(len(rows), LEAN)
    spread = math.sqrt(float(np.mean([row.var(ddof=1) for row in rows]))) if rows else 0.0
    gain, loss = (spread if sign * found > limit else None for sign in (-1, 1))
    return [Doubts(gain=0.0 if gain is None and fell else gain, loss=loss) for fell in collapsed]


def lean(rows: Sequence[Gains]) -> float:
    """Return the mean skewness of rows [n] in standard errors of normal rows; negative if the tail is of losses.

    Only rows with the most seeds and some spread count, and one row alone cannot decide: the lowest and the highest
    skewness are left out, of two rows the one farther from 0. The standard error of one row is that of normal samples
    (Cramér 1946); two rows whose seeds correlate by r share r³ of it (they have one baseline).
    """
    n = max(map(len, rows), default=0)
    usable = [row - row.mean() for row in rows if len(row) == n and np.ptp(row) > 0]
    if n < 3 or not usable:
        return 0.0
    scaled = np.array([row / np.linalg.norm(row) for row in usable])
    skewness = sorted(((scaled**3).sum(axis=1) * math.sqrt(n)).tolist())
    if len(skewness) > 1:
        skewness = sorted([*skewness, 0.0] if len(skewness) == 2 else skewness)[1:-1]
    shared = max(float(((scaled @ scaled.T) ** 3).mean()), 1 / len(usable))
    return float(np.mean(skewness)) / math.sqrt(6 * (n - 2) / ((n + 1) * (n + 3)) * shared)


def second_p(t: float, n: int, ratio: float) -> float:
    """Return the p-value that a claim in doubt has at least, from its t statistic of n seeds.

    It is the larger one of Cantelli's inequality, which knows no law, and of a t test with a standard deviation that is
    `ratio` times as large.
    """
    return max(1 / (1 + t * t), float(scipy.special.stdtr(n - 1, -t / ratio))) if t > 0 else 1.0


def collapsed_seeds(gains: Gains, margin: float | None, rows: int) -> list[int]:
    """Return the places of seeds that collapsed in a row [n] of gains, one of `rows`: at most half of them.

    They are the k worst, where the best one of them is outlying beside the others (`outlying`) and worse than their
    mean by more than the margin; k is the largest number for which this holds, so that two hide no more than one does.
    One row is judged as strictly as one of two, because several k are tried.
    """
    order = np.argsort(gains, kind="stable")
    worst_first = gains[order].tolist()
    for count in range(len(gains) // 2, 0, -1):
        last, rest = worst_first[count - 1], worst_first[count:]
        if last < np.mean(rest) - (margin or 0.0) * (1 + 1e-9) and 0 in outlying("", [last, *rest], rows=max(rows, 2)):
            return sorted(order[:count].tolist())
    return []
