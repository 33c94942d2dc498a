"""Curves that the server draws: paths of an SVG that fills its box, and the texts of its axes around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ablate.core.objectives import mean
from ablate.ledger import ReportRecord
from ablate.results.rendering.numbers import quantity, round_numbers

Points = Sequence[tuple[float, float]]
CUT = 20  # the largest and the smallest twentieth of the values are drawn at the edge


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A title, curves (style, path in a square of 100), and the texts of both axes with their places in percent."""

    title: str
    curves: Sequence[tuple[str, str]]
    across: Sequence[tuple[float, str]]
    upright: Sequence[tuple[float, str]]


def curve(reports: Sequence[ReportRecord], metric: str) -> Points:
    """Return the mean of a metric over seeds for each epoch of a trial, without values that are not finite."""
    epochs = sorted({report.epoch for report in reports})
    means = [(float(e), mean(r.metrics.get(metric) for r in reports if r.epoch == e)) for e in epochs]
    return [point for point in means if math.isfinite(point[1])]


def plot(title: str, metric: str, curves: Sequence[tuple[str, Points]]) -> Plot | None:
    """Return curves of a metric by style, None without any point; `dots` have no line, and `best` has steps."""
    found = [(style, points) for style, points in curves if points]
    if not found:
        return None
    xs = [x for _, points in found for x, _ in points]
    ys = sorted(y for _, points in found for _, y in points)
    ends = [ys[len(ys) // CUT], ys[-1 - len(ys) // CUT], *(points[-1][1] for _, points in found)]
    return Plot(
        title=title,
        curves=[
            (style, _path(style, [(_place(x, xs), 100 - _place(y, ends)) for x, y in points]))
            for style, points in found
        ],
        across=[(_place(x, xs), f"{x:,.0f}") for x in _ticks(xs) if x == round(x)],
        upright=[(_place(y, ends), quantity(metric, y)) for y in _ticks(ends)],
    )


def _path(style: str, places: Points) -> str:
    if style == "dots":
        return "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
    form = "H{:.1f}V{:.1f}" if style == "best" else "L{:.1f} {:.1f}"
    return "M{:.1f} {:.1f}h0".format(*places[0]) + "".join(form.format(*place) for place in places[1:])


def _place(value: float, values: Sequence[float]) -> float:
    low, high = min(values), max(values)
    return 100 * (min(max(value, low), high) - low) / (high - low) if low < high else 50.0


def _ticks(values: Sequence[float]) -> list[float]:
    """Return at most five round numbers between the ends of some values."""
    low, span = min(values), max(values) - min(values)
    step = next((each for each in round_numbers(span / 10, span) if span / each <= 4), span) if span else 1.0
    return [place * step for place in range(math.ceil(low / step), math.floor((low + span) / step) + 1)] or [low]
