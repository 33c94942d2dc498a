"""The main figure of a search: the two objectives, or the history of one; learning curves are in `learning`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from ablate.base.plain_text import counted
from ablate.core.objectives import is_maximized, is_share, is_size, quality_objective
from ablate.results.front.findings import Findings
from ablate.results.front.fitted import Fit
from ablate.results.front.front import confirmed, metric_at
from ablate.results.front.learning import curves_figure
from ablate.results.front.tables import (
    best_so_far,
    counted_rows,
    is_logarithmic,
    network,
    other_objectives,
    place_of,
    quality_name,
    replicate_values,
)
from ablate.results.rendering.drawing import (
    SHAPES,
    Figure,
    axis_title,
    by_series,
    finished,
    inline_chart,
    rounded,
    safe_stem,
    scaled,
    tips,
)
from ablate.results.rendering.numbers import (
    better_end,
    capital,
    evenly,
    printable,
    round_numbers,
    says_little,
    spell_metric,
)
from ablate.study import Study
from ablate.study.sections import Objective

MOST_POINTS = 3000  # dominated trials drawn in the front figure
BELOW = "triangle-down"


def figures(found: Findings) -> list[Figure]:
    """Return the figures for which a data set has data: its front, or its history, and its learning curves."""
    first = front_figure(found) if other_objectives(found.results.study) else history_figure(found)
    return [figure for figure in (first, curves_figure(found)) if figure is not None]


def front_figure(found: Findings) -> Figure | None:
    """Return the quality against the second objective: faint trials, the front with intervals, and the fitted curve."""
    study, (points, dropped), rows = found.results.study, trial_points(found), front_points(found)
    if not points and not rows:
        return None
    name, other = quality_name(study), other_objectives(study)[0]
    low, high = quality_range(name, points, rows)
    outside = [point for point in points if not low <= point["quality"] <= high]
    inside = [point for point in points if low <= point["quality"] <= high]
    fit = found.fit if found.fit.size == other.metric and not found.fit.reason else None
    x = _cost_axis(other, [*(() if fit is None else fit.reach), *(point["size"] for point in points + rows)])
    title = axis_title(name, name.replace("_", " "))
    y = alt.Y("quality:Q", title=title, scale=alt.Scale(domain=[low, high], nice=False, zero=False))
    color, shape = by_series(alt.Color, rows, points), by_series(alt.Shape, rows, points, of=SHAPES)
    tip = tips("settings", "trial", "series", "size", "quality")
    faint = inline_chart(inside).mark_point(size=36, strokeWidth=1.4)
    at_edge = [{**point, "edge": low if point["quality"] < low else high} for point in outside]
    edge = inline_chart(at_edge).mark_point(shape=BELOW, size=26, filled=True, yOffset=-5)
    layers = [
        *([] if fit is None else _fit_layers(fit, x, y)),
        faint.encode(x=x, y=y, color=color, shape=shape, opacity=alt.value(0.6), tooltip=tip),
        edge.encode(x=x, y=alt.Y("edge:Q"), color=color, opacity=alt.value(0.45), tooltip=tip),
    ]
    layers += _front_layers(study, rows, replicate_points(found), x, y, color)
    return Figure(
        stem=f"front-{safe_stem(found.dataset)}",
        title=f"{capital(name.replace('_', ' '))} against {spell_metric(other.metric)}{found.named('on')}",
        caption=_front_caption(found, dropped),
        spec=finished(alt.layer(*layers)),
        tested=found.tested,
        key=tuple(_front_key(found, rows, outside, fit)),
    )


def history_figure(found: Findings) -> Figure | None:
    """Return the quality of each search trial in the order of the trials, with the best so far."""
    study = found.results.study
    objective, name = quality_objective(study.objectives), quality_name(study)
    _, bests = best_so_far(study, found.listed, found.dataset)
    if not bests:
        return None
    done = found.listed.filter(pl.col("stage") == "search", pl.col("state").is_in(["COMPLETE", "PRUNED"])).sort("trial")
    points = [
        _point(study, row, float(row[objective.metric]), float(row["trial"]), _series(row["state"]))
        for row in done.drop_nulls(objective.metric).filter(pl.col(objective.metric).is_finite()).iter_rows(named=True)
    ]
    steps = [{"size": number, **scaled(name, quality=value)} for number, value in bests]
    steps.append({**steps[-1], "size": points[-1]["size"]})
    low, high = quality_range(name, points, [{"quality": step["quality"]} for step in steps])
    x = alt.X("size:Q", title="trial", axis=alt.Axis(format="d", tickMinStep=1), scale=alt.Scale(nice=False, padding=8))
    title = axis_title(name, spell_metric(objective.metric))
    y = alt.Y("quality:Q", title=title, scale=alt.Scale(domain=[low, high], nice=False, zero=False, clamp=True))
    color, shape = by_series(alt.Color, points), by_series(alt.Shape, points, of=SHAPES)
    tip = tips("settings", "trial", "series", "quality")
    line = inline_chart(steps).mark_line(interpolate="step-after", strokeWidth=1.8, color="role:accent")
    dots = inline_chart(evenly(points, MOST_POINTS)).mark_point(size=36, strokeWidth=1.4)
    chart = alt.layer(
        dots.encode(x=x, y=y, color=color, shape=shape, opacity=alt.value(0.6), tooltip=tip), line.encode(x=x, y=y)
    )
    better = better_end(objective.metric, study.objectives, ("down", "up"))
    return Figure(
        stem=f"history-{safe_stem(found.dataset)}",
        title=f"{capital(spell_metric(objective.metric))} of each trial{found.named('on')}",
        caption=f"Better is {better}. Trials beyond the drawn range are at its edge.",
        spec=finished(chart),
        key=(("line", f"best complete trial so far{' that keeps the constraints' * bool(study.constraints)}"),),
    )


def _cost_axis(objective: Objective, values: list[float]) -> alt.X:
    words = spell_metric(objective.metric)
    if not is_logarithmic(objective):
        scale = alt.Scale(nice=False, zero=False, padding=16)
        return alt.X("size:Q", title=axis_title(objective.metric, words), scale=scale)
    return alt.X(
        "size:Q",
        title=f"{words} (log scale)",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(format="~s", values=round_sizes(values), labelOverlap="greedy", labelSeparation=8),
    )


def round_sizes(sizes: list[float]) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten within the sizes, or only the powers over more than three decades."""
    low, high = (max(size, 1) for size in (min(sizes), max(sizes)))
    return round_numbers(0.8 * low, 1.25 * high, (1, 2, 5) if high <= 1000 * low else (1,)) or [low]


def trial_points(found: Findings) -> tuple[list[dict[str, Any]], int]:
    """Return the drawable trials off the front, and how many were dropped to limit the size of the page."""
    study = found.results.study
    objective, other = quality_objective(study.objectives), other_objectives(study)[0]
    on_front = set(found.front["trial"].to_list())
    points = []
    for row in found.pooled.trials.filter(pl.col("state").is_in(["COMPLETE", "PRUNED"])).iter_rows(named=True):
        value, cost = row.get(metric_at(objective.metric, row["stage"])), place_of(other, row)
        if row["trial"] in on_front or value is None or not math.isfinite(value) or cost is None:
            continue
        series = "confirmation run" if row["stage"] == "confirm" else _series(row["state"])
        points.append(_point(study, row, float(value), cost, series))
    kept = evenly(points, MOST_POINTS)
    return kept, len(points) - len(kept)


def front_points(found: Findings) -> list[dict[str, Any]]:
    """Return the front's rows as points with intervals, cheapest first, without rows that have no place."""
    study = found.results.study
    name, other = quality_name(study), other_objectives(study)[0]
    points = []
    for row in found.front.iter_rows(named=True):
        if (cost := place_of(other, row)) is None:
            continue
        point = _point(study, row, float(row[name]), cost, "on the front")
        ends = row[f"{name}_low"], row[f"{name}_high"]
        known = None not in ends and not says_little(name, *ends)
        point |= scaled(name, **dict(zip(("low", "high"), ends if known else (None, None), strict=True)))
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


def _series(state: str) -> str:
    return "stopped early" if state == "PRUNED" else "search trial"


def _point(study: Study, row: Mapping[str, Any], value: float, cost: float, series: str) -> dict[str, Any]:
    return {
        "trial": row["trial"],
        "settings": printable(network(study, dict(row))),
        "size": cost,
        **scaled(quality_name(study), quality=value),
        "series": series,
    }


def _front_layers(
    study: Study, rows: list[dict[str, Any]], runs: list[dict[str, Any]], x: alt.X, y: alt.Y, color: alt.Color
) -> list[Any]:
    spans = [row for row in rows if row["low"] is not None]
    tip = tips("settings", "trial", "size", "quality", "low", "high", "replicates")
    layers = []
    if _has_steps(study):
        steps = [{**one, "next": two["size"]} for one, two in itertools.pairwise(rows)]  # no riser hides an interval
        level = inline_chart(steps).mark_rule(strokeWidth=1.2, color="role:accent", opacity=0.55)
        layers.append(level.encode(x=x, x2="next:Q", y=y))
    ticks = inline_chart(runs).mark_tick(
        orient="horizontal", size=9, thickness=1.2, color="role:accent", opacity=0.5, clip=True
    )
    layers.append(ticks.encode(x=x, y=y))
    span = inline_chart(spans).mark_rule(strokeWidth=1.6, color="role:accent", clip=True)
    layers.append(span.encode(x=x, y=alt.Y("low:Q"), y2="high:Q"))
    dots = inline_chart(rows).mark_point(filled=True, size=80, opacity=1)
    layers.append(dots.encode(x=x, y=y, color=color, tooltip=tip))
    return layers


def _has_steps(study: Study) -> bool:
    """Return whether the best quality at each cost or below is a line: of two objectives, the other minimized."""
    return len(study.objectives) == 2 and not is_maximized(other_objectives(study)[0])


def _fit_layers(fit: Fit, x: alt.X, y: alt.Y) -> list[Any]:
    """Return the curve with its band, a paler band and a dashed line beyond the data, and a tooltip along it."""
    curve, layers = fit.curve, []
    steps = ((fit.reach[0], curve.smallest), (curve.smallest, curve.largest), (curve.largest, fit.reach[1]))
    for low, high in (step for step in steps if step[0] < step[1]):
        inside = low == curve.smallest
        values = [_fit_point(fit, size) for size in np.geomspace(low, high, 40 if inside else 12).tolist()]
        drawn = inline_chart(values).encode(x=x, y=y, tooltip=tips("size", "quality", "interval"))
        color = {"color": "role:second", "clip": True}
        layers.append(drawn.mark_area(opacity=0.14 if inside else 0.07, **color).encode(y="low:Q", y2="high:Q"))
        layers.append(drawn.mark_line(strokeDash=[1, 0] if inside else [6, 4], strokeWidth=1.6, **color))
    return layers


def _fit_point(fit: Fit, size: float) -> dict[str, Any]:
    found = scaled(fit.metric, **dict(zip(("quality", "low", "high"), fit.quality_ends(size), strict=True)))
    return {"size": rounded(size), **found, "interval": f"{found['low']:.4g} to {found['high']:.4g}"}


def _front_key(
    found: Findings, rows: list[dict[str, Any]], outside: list[dict[str, Any]], fit: Fit | None
) -> Iterator[tuple[str, str]]:
    """Yield the meaning of each mark that the legend of the front lacks."""
    if _has_steps(found.results.study) and len(rows) > 1:
        metric = other_objectives(found.results.study)[0].metric
        yield "line", f"best at each {'size' if is_size(metric) else spell_metric(metric)} or below"
    if any(row["low"] is not None for row in rows):
        yield "interval", "95% interval"
    if found.tested:
        yield "tick", "single fresh seed"
    if fit is not None:
        yield "dashed", "error against size, dashed where nothing was measured"
        over = " and ".join(fit.over)
        yield "spread", f"95% band of a {fit.noun} of that size{f', other {over}' if over else ''}"
    if outside:
        yield "triangle", counted(len(outside), "trial") + " beyond the drawn range"


def _front_caption(found: Findings, dropped: int) -> str:
    study = found.results.study
    ends = (
        better_end(quality_objective(study.objectives).metric, study.objectives, ("down", "up")),
        better_end(other_objectives(study)[0].metric, study.objectives, ("left", "right")),
    )
    parts = [f"Better is {' and '.join(filter(None, ends))}."]
    if found.tested:
        parts.append(
            "Front and confirmation runs are means on the test split; search trials are single validation numbers and "
            "look better than they are."
        )
    if dropped:
        parts.append(f"{dropped} dominated trials are left out to keep the page light (trials.csv has all).")
    return " ".join(parts)


def replicate_points(found: Findings) -> list[dict[str, Any]]:
    """Return every replicate of the front and of each confirmed network as one point."""
    study, last = found.results.study, counted_rows(found.pooled.reports)
    name, other = quality_name(study), other_objectives(study)[0]
    metric = metric_at(quality_objective(study.objectives).metric, found.stage)
    points = []
    for row in (confirmed(found.pooled.trials) if found.tested else found.front).iter_rows(named=True):
        if (cost := place_of(other, row)) is None:
            continue
        values = replicate_values(last, found.dataset, row["trial"], metric)
        points += [{"size": cost, **scaled(name, quality=v)} for v in values if len(values) > 1]
    return points
