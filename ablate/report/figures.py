"""The page's figures as Vega-Lite specifications (altair), and the same as PNG files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import vl_convert

from ablate.analysis import metric_at, quality_objective
from ablate.report.findings import Findings, size_metric
from ablate.report.numbers import is_share, printable, spoken
from ablate.report.tables import last_reports, network, quality_name, replicate_values
from ablate.study import Study

MOST_POINTS = 3000  # dominated trials drawn in the front figure
MOST_CURVES = 150  # learning curves drawn per data set
PNG_WIDTH, HEIGHT, PNG_SCALE = 760, 380, 2
SERIES = ("search trial", "stopped early", "confirmation run", "on the front")

# One palette per colour scheme; figures name roles, and whoever draws them fills in the colours.
PALETTES: dict[str, dict[str, str]] = {
    "light": {
        "role:ink": "#23262b",
        "role:muted": "#5d646f",
        "role:grid": "#e6e8ec",
        "role:faint": "#8b93a1",
        "role:accent": "#0b62c4",
        "role:second": "#b4541a",
        "role:paper": "#ffffff",
    },
    "dark": {
        "role:ink": "#e8eaed",
        "role:muted": "#a3abb8",
        "role:grid": "#2f353e",
        "role:faint": "#7d8695",
        "role:accent": "#6cb0ff",
        "role:second": "#f0a26b",
        "role:paper": "#16191e",
    },
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: a file stem, a title, a caption in plain words, and its specification with colour roles."""

    stem: str
    title: str
    caption: str
    spec: dict[str, Any]


def figures(study: Study, found: Findings) -> list[Figure]:
    """Return the figures that one data set has data for: its front, its learning curves."""
    drawn = (front_figure(study, found), curves_figure(study, found))
    return [figure for figure in drawn if figure is not None]


def front_figure(study: Study, found: Findings) -> Figure | None:
    """Return quality against size on a log axis: every trial faint, the front with intervals, the fitted curve."""
    points, dropped = trial_points(study, found)
    rows = front_points(study, found)
    if not points and not rows:
        return None
    name, size = quality_name(study), size_metric(study)
    low, high, below = quality_range(name, points, rows)
    x = alt.X("size:Q", title=f"{spoken(size)} (log scale)", scale=alt.Scale(type="log", nice=False, padding=16),
              axis=alt.Axis(format="~s", tickCount=6))  # fmt: skip
    title = name.replace("_", " ") + (" in %" if is_share(name) else "")
    y = alt.Y("quality:Q", title=title, scale=alt.Scale(domain=[low, high], nice=False, zero=False))
    color = alt.Color("series:N", title=None, scale=_series_scale(rows, points), legend=_legend())
    layers = [_faint_layer(points, x, y, color)]
    if found.fit.identifiable and size != "wall_seconds":
        layers.append(_fit_layer(found, name, x, y))
    layers += _front_layers(study, rows, replicate_points(study, found), x, y, color)
    return Figure(
        stem=f"front-{safe_stem(found.dataset)}",
        title=f"{name.replace('_', ' ').capitalize()} against {spoken(size)} on {found.dataset}",
        caption=_front_caption(found, below, dropped),
        spec=_finish(alt.layer(*layers)),
    )


def trial_points(study: Study, found: Findings) -> tuple[list[dict[str, Any]], int]:
    """Return the drawable trials that are not on the front, and how many were left out to keep the page small."""
    objective, size = quality_objective(study.objectives), size_metric(study)
    on_front = set(found.front["trial"].to_list())
    points = []
    for row in found.trials.filter(pl.col("state").is_in(["COMPLETE", "PRUNED"])).iter_rows(named=True):
        value, cost = row.get(metric_at(objective.metric, row["stage"])), row.get(size)
        if row["trial"] in on_front or value is None or not math.isfinite(value) or not cost or cost <= 0:
            continue
        series = "stopped early" if row["state"] == "PRUNED" else "search trial"
        series = "confirmation run" if row["stage"] == "confirm" else series
        points.append(_point(study, row, float(value), float(cost), series))
    kept = evenly(points, MOST_POINTS)
    return kept, len(points) - len(kept)


def front_points(study: Study, found: Findings) -> list[dict[str, Any]]:
    """Return the front's rows as points with intervals, cheapest first, without those that have no size."""
    name, size = quality_name(study), size_metric(study)
    factor = 100 if is_share(name) else 1
    points = []
    for row in found.front.iter_rows(named=True):
        if not row.get(size):
            continue
        point = _point(study, row, float(row[name]), float(row[size]), "on the front")
        for end in ("low", "high"):
            value = row[f"{name}_{end}"]
            point[end] = None if value is None else _rounded(factor * value)
        point["replicates"] = row["replicates"]
        points.append(point)
    return sorted(points, key=lambda point: float(point["size"]))


def quality_range(name: str, points: list[dict[str, Any]], rows: list[dict[str, Any]]) -> tuple[float, float, int]:
    """Return the drawn range of the quality axis and how many faint points lie outside it.

    The axis follows the front and the middle four fifths of the trials, so that a few bad trials do not flatten it.
    """
    ends = [p[k] for p in rows for k in ("quality", "low", "high") if p.get(k) is not None]
    values = [p["quality"] for p in points]
    if values:
        ends += [float(q) for q in np.quantile(values, (0.1, 0.9))]
    low, high = min(ends), max(ends)
    pad = 0.06 * (high - low) or max(abs(high) * 0.05, 0.01)
    low, high = low - pad, high + pad
    if is_share(name):
        low, high = max(low, 0.0), min(high, 100.0) if max(ends) < 100 else 100.0 + pad / 2
    return low, high, sum(not low <= value <= high for value in values)


def curves_figure(study: Study, found: Findings) -> Figure | None:
    """Return the validation quality of trials by epoch, thinned evenly where there are many."""
    objective = quality_objective(study.objectives)
    if objective.metric not in found.reports.columns or not found.reports.height:
        return None
    lines, ends, dropped = learning_curves(study, found, objective.metric)
    if not lines:
        return None
    name = quality_name(study)
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(nice=False))
    title = spoken(objective.metric) + (" in %" if is_share(name) else "")
    y = alt.Y("quality:Q", title=title, scale=alt.Scale(zero=False))
    color = alt.Color("series:N", title=None, scale=_series_scale(lines), legend=_legend())
    tip = [alt.Tooltip(f"{field}:N") for field in ("network", "trial", "epoch", "quality")]
    line = _chart(lines).mark_line(strokeWidth=1.4, strokeJoin="round")
    stopped = _chart(ends).mark_point(shape="cross", angle=45, size=45, filled=True)
    dots = _chart(lines).mark_circle(size=14)
    opacity = alt.condition("datum.series == 'on the front'", alt.value(0.95), alt.value(0.45))
    layers = [
        line.encode(x=x, y=y, color=color, detail="trial:N", opacity=opacity),
        dots.encode(x=x, y=y, color=color, opacity=opacity, tooltip=tip),
        stopped.encode(x=x, y=y, color=color, opacity=alt.value(0.8), tooltip=tip),
    ]
    more = f" {dropped} more curves are left out to keep the page light; reports.parquet has all." if dropped else ""
    return Figure(
        stem=f"curves-{safe_stem(found.dataset)}",
        title=f"Learning curves on {found.dataset}",
        caption=f"Mean over replicates of the {spoken(objective.metric)} by epoch. A cross ends a trial that was "
        f"stopped early.{more}",
        spec=_finish(alt.layer(*layers)),
    )


def learning_curves(
    study: Study, found: Findings, metric: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return the points of the curves drawn, the ends of those stopped early, and how many curves were left out."""
    trials = {row["trial"]: row for row in found.trials.iter_rows(named=True)}
    means = found.reports.group_by("trial", "epoch").agg(pl.col(metric).mean()).sort("trial", "epoch")
    means = means.filter(pl.col(metric).is_finite())
    on_front = set(found.front["trial"].to_list()) | set(found.front["source"].drop_nulls().to_list())
    numbers = [n for n in means["trial"].unique(maintain_order=True) if n in trials]
    first = [n for n in numbers if n in on_front]
    kept = set(first) | set(evenly([n for n in numbers if n not in on_front], max(MOST_CURVES - len(first), 0)))
    factor = 100 if is_share(metric) else 1
    lines, ends = [], []
    for row in means.filter(pl.col("trial").is_in(list(kept))).iter_rows(named=True):
        trial = trials[row["trial"]]
        series = _curve_series(trial, on_front)
        values = {"trial": row["trial"], "epoch": row["epoch"], "quality": _rounded(factor * row[metric])}
        lines.append({**values, "series": series, "network": printable(network(study, trial))})
        if trial["state"] == "PRUNED" and row["epoch"] == trial["epochs"]:
            ends.append(lines[-1])
    return lines, ends, len(numbers) - len(kept)


def evenly(items: list[Any], most: int) -> list[Any]:
    """Return at most `most` items, spread evenly over the list, in order."""
    if len(items) <= most:
        return items
    return [items[i] for i in np.linspace(0, len(items) - 1, most).round().astype(int)] if most else []


def painted(spec: Any, palette: Mapping[str, str]) -> Any:
    """Return a copy of a specification with its colour roles filled in; data is left as it is."""
    if isinstance(spec, dict):
        return {k: v if k in ("values", "datasets") else painted(v, palette) for k, v in spec.items()}
    if isinstance(spec, list):
        return [painted(item, palette) for item in spec]
    return palette.get(spec, spec) if isinstance(spec, str) else spec


def write_png(figure: Figure, folder: Path) -> Path:
    """Write a figure in light colours on white, twice its size in pixels."""
    spec = painted({**figure.spec, "width": PNG_WIDTH, "background": "role:paper"}, PALETTES["light"])
    path = folder / f"{figure.stem}.png"
    path.write_bytes(vl_convert.vegalite_to_png(spec, scale=PNG_SCALE))
    return path


def safe_stem(name: str) -> str:
    """Return a name as part of a file name: letters, digits, '-' and '_' alone."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name) or "_"


def _point(study: Study, row: Mapping[str, Any], value: float, cost: float, series: str) -> dict[str, Any]:
    factor = 100 if is_share(quality_name(study)) else 1
    return {
        "trial": row["trial"],
        "network": printable(network(study, dict(row))),
        "size": cost,
        "quality": _rounded(factor * value),
        "series": series,
    }


def _chart(values: list[dict[str, Any]]) -> Any:
    inline: Any = alt.Data
    return alt.Chart(inline(values=values))


def _faint_layer(points: list[dict[str, Any]], x: alt.X, y: alt.Y, color: alt.Color) -> Any:
    chart = _chart(points).mark_point(size=34, strokeWidth=1.3, clip=True)
    shape = alt.Shape(
        "series:N", legend=None, scale=alt.Scale(domain=list(SERIES), range=["circle", "cross", "diamond", "circle"])
    )
    tip = [alt.Tooltip(f"{field}:N") for field in ("network", "trial", "series", "size", "quality")]
    return chart.encode(x=x, y=y, color=color, shape=shape, opacity=alt.value(0.5), tooltip=tip)


def _front_layers(
    study: Study, rows: list[dict[str, Any]], runs: list[dict[str, Any]], x: alt.X, y: alt.Y, color: alt.Color
) -> list[Any]:
    spans = [row for row in rows if row["low"] is not None]
    tip = [alt.Tooltip(f"{f}:N") for f in ("network", "trial", "size", "quality", "low", "high", "replicates")]
    layers = []
    if len(study.objectives) == 2:
        step = _chart(rows).mark_line(interpolate="step-after", strokeWidth=1.2, color="role:accent", opacity=0.55)
        layers.append(step.encode(x=x, y=y))
    ticks = _chart(runs).mark_tick(size=9, thickness=1.2, color="role:accent", opacity=0.5, clip=True)
    layers.append(ticks.encode(x=x, y=y))
    span = _chart(spans).mark_rule(strokeWidth=1.6, color="role:accent", clip=True)
    layers.append(span.encode(x=x, y=alt.Y("low:Q"), y2="high:Q"))
    dots = _chart(rows).mark_point(filled=True, size=80, opacity=1)
    layers.append(dots.encode(x=x, y=y, color=color, tooltip=tip))
    return layers


def _fit_layer(found: Findings, name: str, x: alt.X, y: alt.Y) -> Any:
    sizes = np.geomspace(found.fit.smallest, found.fit.largest, 80)
    errors = found.fit.predict(sizes)
    quality = 100 * (1 - errors) if is_share(name) else errors
    values = [{"size": _rounded(s), "quality": _rounded(q)} for s, q in zip(sizes, quality, strict=True)]
    line = _chart(values).mark_line(strokeDash=[6, 4], strokeWidth=1.6, color="role:second")
    return line.encode(x=x, y=y)


def _series_scale(*points: Iterable[Mapping[str, Any]]) -> alt.Scale:
    present = {point["series"] for group in points for point in group}
    colors = dict(zip(SERIES, ("role:faint", "role:faint", "role:second", "role:accent"), strict=True))
    domain = [series for series in SERIES if series in present]
    return alt.Scale(domain=domain, range=[colors[series] for series in domain])


def _legend() -> alt.Legend:
    return alt.Legend(orient="top", direction="horizontal", symbolOpacity=1, columns=2, labelLimit=260)


def _curve_series(trial: Mapping[str, Any], on_front: set[int]) -> str:
    if trial["trial"] in on_front:
        return "on the front"
    if trial["stage"] == "confirm":
        return "confirmation run"
    return "stopped early" if trial["state"] == "PRUNED" else "search trial"


def _front_caption(found: Findings, below: int, dropped: int) -> str:
    parts = ["Filled points are the front; the line is the best quality to be had up to each size."]
    if found.confirmed:
        parts.append(
            "Front and confirmation runs are means on the test split with 95% t intervals over fresh seeds; "
            "the faint search trials are single validation numbers and look better than they are."
        )
    else:
        parts.append("All points are search-stage validation numbers: nothing here is confirmed.")
    if found.fit.identifiable:
        parts.append("The dashed curve is the fit to the front.")
    if below:
        parts.append(f"{below} trial{'s' * (below != 1)} outside the drawn range (trials.csv has all).")
    if dropped:
        parts.append(f"{dropped} dominated trials are left out to keep the page light (trials.csv has all).")
    return " ".join(parts)


def _finish(chart: Any) -> dict[str, Any]:
    text = {"labelColor": "role:muted", "titleColor": "role:muted", "titleFontWeight": "normal"}
    fonts = {"labelFontSize": 12, "titleFontSize": 12.5, "titlePadding": 10}
    lines = {"gridColor": "role:grid", "domainColor": "role:faint", "tickColor": "role:faint"}
    spec: dict[str, Any] = chart.properties(width="container", height=HEIGHT).to_dict()
    spec["config"] = {
        "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {**text, **fonts, **lines},
        "legend": {"labelColor": "role:ink", "labelFontSize": 12.5, "symbolStrokeWidth": 1.6},
    }
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def replicate_points(study: Study, found: Findings) -> list[dict[str, Any]]:
    """Return every replicate of the confirmed front as one point."""
    last = last_reports(found.reports)
    name, size = quality_name(study), size_metric(study)
    factor = 100 if is_share(name) else 1
    metric = metric_at(quality_objective(study.objectives).metric, found.stage)
    points = []
    for row in found.front.iter_rows(named=True):
        values = replicate_values(last, found.dataset, row["trial"], metric)
        points += [{"size": row[size], "quality": _rounded(factor * v)} for v in values if len(values) > 1]
    return points
