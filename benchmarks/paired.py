"""Means over repetitions, and paired differences with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ablate.results.statistics.intervals import t_interval


def interval(values: ArrayLike) -> tuple[float, float, float]:
    """Return the mean of `values` [n] and its 95% t interval, which is NaN for one value."""
    found = t_interval(np.asarray(values, dtype=np.float64).tolist())
    return found.mean, found.low, found.high


def compared(
    found: Mapping[str, Sequence[Sequence[float]]], measures: Sequence[str], differences: Mapping[str, str]
) -> list[dict[str, object]]:
    """Return a row per searcher: the mean of each measure, and what `ablate` has more of some, paired.

    `found` has by searcher the measures of each repetition; `differences` names the columns of differences, by measure.
    """
    rows: list[dict[str, object]] = []
    for name, values in found.items():
        row: dict[str, object] = {"searcher": name, "repetitions": len(values)}
        row |= {measure: f"{mean:.4f}" for measure, mean in zip(measures, np.mean(values, axis=0), strict=True)}
        for measure, column in differences.items():
            place = measures.index(measure)
            gains = np.array(found["ablate"])[:, place] - np.array(values)[:, place]
            names = (column, f"{column}_low", f"{column}_high")
            row |= {each: f"{cell:.4f}" for each, cell in zip(names, interval(gains), strict=True)}
        rows.append(row)
    return rows
