"""The figure of quality against size, as a Vega-Lite specification; learning curves are in `learning`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from ablate.base.plain_text import counted
from ablate.core.objectives import is_share, quality_objective
from ablate.results.front.confirmation import open_text
from ablate.results.front.findings import Findings
from ablate.results.front.front import confirmed, metric_at
from ablate.results.front.learning import curves_figure
from ablate.results.front.summary import size_metric
from ablate.results.front.tables import counted_rows, network, quality_name, replicate_values
from ablate.results.rendering.drawing import (
    SHAPES,
    Figure,
    evenly,
    finished,
    inline_chart,
    legend,
    rounded,
    safe_stem,
    series_scale,
    tips,
)
from ablate.results.rendering.numbers import better_end, printable, says_little, spell_metric
from ablate.study import Study

MOST_POINTS = 3000  # dominated trials drawn in the front figure
BELOW = "triangle-down"


def figures(study: Study, found: Findings) -> list[Figure]:
    """Return the figures for which a data set has data: its front and its learning curves."""
    drawn = (front_figure(study, found), curves_figure(study, found))
    return [figure for figure in drawn if figure is not None]


def front_figure(study: Study, found: Findings) -> Figure | None:
    """Return quality against size on a log axis: faint trials, the front with intervals, and the fitted curve."""
    points, dropped = trial_points(study, found)
    rows = front_points(study, found)
    if not points and not rows:
        return None
    name, size = quality_name(study), size_metric(study)
    low, high = quality_range(name, points, rows)
    outside = [point for point in points if not low <= point["quality"] <= high]
    inside = [point for point in points if low <= point["quality"] <= high]
    ticks = round_sizes([point["size"] for point in points + rows])
    x = alt.X(
        "size:Q",
        title=f"{spell_metric(size)} (log scale)",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(format="~s", values=ticks, labelOverlap="greedy", labelSeparation=8),
    )
    title = name.replace("_", " ") + (" in %" if is_share(name) else "")
    y = alt.Y("quality:Q", title=title, scale=alt.Scale(domain=[low, high], nice=False, zero=False))
    color = alt.Color("series:N", title=None, scale=series_scale(rows, points), legend=legend())
    shape = alt.Shape("series:N", title=None, scale=series_scale(rows, points, of=SHAPES), legend=legend())
    tip = tips("network", "trial", "series", "size", "quality")
    faint = inline_chart(inside).mark_point(size=36, strokeWidth=1.4)
    at_edge = [{**point, "edge": low if point["quality"] < low else high} for point in outside]
    edge = inline_chart(at_edge).mark_point(shape=BELOW, size=26, filled=True, yOffset=-5)
    layers = [
        *_band_layer(study, found, x, y),
        faint.encode(x=x, y=y, color=color, shape=shape, opacity=alt.value(0.6), tooltip=tip),
        edge.encode(x=x, y=alt.Y("edge:Q"), color=color, opacity=alt.value(0.45), tooltip=tip),
    ]
    if found.fit.identifiable:
        layers.append(_fit_layer(found, name, x, y))
    layers += _front_layers(study, rows, replicate_points(study, found), x, y, color)
    return Figure(
        stem=f"front-{safe_stem(found.dataset)}",
        title=f"{name.replace('_', ' ').capitalize()} against {spell_metric(size)} on {found.dataset}",
        caption=_front_caption(found, dropped),
        spec=finished(alt.layer(*layers)),
        tested=found.tested,
        key=tuple(_front_key(found, rows, outside)),
    )


def round_sizes(sizes: list[float]) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten within the sizes, or only the powers over more than three decades."""
    low, high = (math.log10(max(size, 1)) for size in (min(sizes), max(sizes)))
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    grid = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    return [size for size in grid if 0.8 * 10**low <= size <= 1.25 * 10**high] or [10**low]


def trial_points(study: Study, found: Findings) -> tuple[list[dict[str, Any]], int]:
    """Return the drawable trials off the front, and how many were dropped to limit the size of the page."""
    objective, size = quality_objective(study.objectives), size_metric(study)
    on_front = set(found.front["trial"].to_list())
    points = []
    for row in found.pooled.trials.filter(pl.col("state").is_in(["COMPLETE", "PRUNED"])).iter_rows(named=True):
        value, cost = row.get(metric_at(objective.metric, row["stage"])), row.get(size)
        if row["trial"] in on_front or value is None or not math.isfinite(value) or not cost or cost <= 0:
            continue
        series = "stopped early" if row["state"] == "PRUNED" else "search trial"
        series = "confirmation run" if row["stage"] == "confirm" else series
        points.append(_point(study, row, float(value), float(cost), series))
    kept = evenly(points, MOST_POINTS)
    return kept, len(points) - len(kept)


def front_points(study: Study, found: Findings) -> list[dict[str, Any]]:
    """Return the front's rows as points with intervals, cheapest first, without rows that have no size."""
    name, size = quality_name(study), size_metric(study)
    factor = 100 if is_share(name) else 1
    points = []
    for row in found.front.iter_rows(named=True):
        if not row.get(size):
            continue
        point = _point(study, row, float(row[name]), float(row[size]), "on the front")
        ends = row[f"{name}_low"], row[f"{name}_high"]
        known = None not in ends and not says_little(name, *ends)
        point |= dict(zip(("low", "high"), (rounded(factor * v) if known else None for v in ends), strict=True))
        point["replicates"] = row["replicates"]
        points.append(point)
    return sorted(points, key=lambda point: float(point["size"]))


def quality_range(name: str, points: list[dict[str, Any]], rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the drawn range of the quality axis.

    It covers the front with its intervals and the middle nine tenths of the complete trials. Stopped and bad trials
    would flatten the figure, so they are drawn at its edge.
    """
    ends = [p[k] for p in rows for k in ("quality", "low", "high") if p.get(k) is not None]
    complete = [p["quality"] for p in points if p["series"] != "stopped early"]
    values = complete or [p["quality"] for p in points]
    if values:
        ends += [float(q) for q in np.quantile(values, (0.1, 1.0) if is_share(name) else (0.0, 0.9))]
    low, high = min(ends), max(ends)
    pad = 0.07 * (high - low) or max(abs(high) * 0.05, 0.01)
    if is_share(name):
        return max(low - pad, 0.0), min(high + pad, 100.0 + pad / 2)
    return low - pad, high + pad


def _point(study: Study, row: Mapping[str, Any], value: float, cost: float, series: str) -> dict[str, Any]:
    factor = 100 if is_share(quality_name(study)) else 1
    return {
        "trial": row["trial"],
        "network": printable(network(study, dict(row))),
        "size": cost,
        "quality": rounded(factor * value),
        "series": series,
    }


def _band_layer(study: Study, found: Findings, x: alt.X, y: alt.Y) -> list[Any]:
    """Return the band of the qualities that a quarter to three quarters of the seeds attain at a size or below."""
    sizes = {objective.metric for objective in study.objectives}
    if found.assessed is None or size_metric(study) not in sizes or not found.assessed.attained:
        return []
    factor = 100 if is_share(quality_name(study)) else 1
    values = [
        {"size": cost, "quality": rounded(factor * a), "other": rounded(factor * b)}
        for cost, a, b in found.assessed.attained
    ]
    band = inline_chart(values).mark_area(interpolate="step-after", color="role:accent", opacity=0.14, clip=True)
    return [band.encode(x=x, y=y, y2="other:Q")]


def _front_layers(
    study: Study, rows: list[dict[str, Any]], runs: list[dict[str, Any]], x: alt.X, y: alt.Y, color: alt.Color
) -> list[Any]:
    spans = [row for row in rows if row["low"] is not None]
    tip = tips("network", "trial", "size", "quality", "low", "high", "replicates")
    layers = []
    if len(study.objectives) == 2:
        step = inline_chart(rows).mark_line(
            interpolate="step-after", strokeWidth=1.2, color="role:accent", opacity=0.55
        )
        layers.append(step.encode(x=x, y=y))
    ticks = inline_chart(runs).mark_tick(
        orient="horizontal", size=9, thickness=1.2, color="role:accent", opacity=0.5, clip=True
    )
    layers.append(ticks.encode(x=x, y=y))
    span = inline_chart(spans).mark_rule(strokeWidth=1.6, color="role:accent", clip=True)
    layers.append(span.encode(x=x, y=alt.Y("low:Q"), y2="high:Q"))
    dots = inline_chart(rows).mark_point(filled=True, size=80, opacity=1)
    layers.append(dots.encode(x=x, y=y, color=color, tooltip=tip))
    return layers


def _fit_layer(found: Findings, name: str, x: alt.X, y: alt.Y) -> Any:
    sizes = np.geomspace(found.fit.smallest, found.fit.largest, 80)
    errors = found.fit.predict(sizes)
    quality = 100 * (1 - errors) if is_share(name) else errors
    values = [{"size": rounded(s), "quality": rounded(q)} for s, q in zip(sizes, quality, strict=True)]
    line = inline_chart(values).mark_line(strokeDash=[6, 4], strokeWidth=1.6, color="role:second")
    return line.encode(x=x, y=y)


def _front_key(found: Findings, rows: list[dict[str, Any]], outside: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the meaning of each mark that the legend of the front lacks."""
    if len(found.results.study.objectives) == 2 and rows:
        yield "line", "best quality at each size or below"
    if any(row["low"] is not None for row in rows):
        yield "interval", "95% interval"
    if found.tested:
        yield "tick", "single fresh seed"
    if found.assessed is not None and found.assessed.attained:
        yield "band", "best network of each size or below in the middle half of the seeds"
    if found.fit.identifiable:
        yield "dashed", "fit to the front"
    if outside:
        yield "triangle", counted(len(outside), "trial") + " beyond the drawn range"


def _front_caption(found: Findings, dropped: int) -> str:
    study = found.results.study
    ends = (
        better_end(quality_objective(study.objectives).metric, study.objectives, ("down", "up")),
        better_end(size_metric(study), study.objectives, ("left", "right")),
    )
    parts = [f"Better is {' and '.join(filter(None, ends))}."]
    if found.provisional:
        parts.append(f"Provisional: {open_text(found.confirmations)}.")
    if found.tested:
        parts.append(
            "Front and confirmation runs are means on the test split; search trials are single validation numbers and "
            "look better than they are."
        )
    else:
        parts.append("All points are search-stage validation numbers: nothing here is confirmed.")
    if dropped:
        parts.append(f"{dropped} dominated trials are left out to keep the page light (trials.csv has all).")
    return " ".join(parts)


def replicate_points(study: Study, found: Findings) -> list[dict[str, Any]]:
    """Return every replicate of the front and of each confirmed network as one point."""
    last = counted_rows(found.pooled.reports)
    name, size = quality_name(study), size_metric(study)
    factor = 100 if is_share(name) else 1
    metric = metric_at(quality_objective(study.objectives).metric, found.stage)
    points = []
    for row in (confirmed(found.pooled.trials) if found.tested else found.front).iter_rows(named=True):
        if not row.get(size):
            continue
        values = replicate_values(last, found.dataset, row["trial"], metric)
        points += [{"size": row[size], "quality": rounded(factor * v)} for v in values if len(values) > 1]
    return points
