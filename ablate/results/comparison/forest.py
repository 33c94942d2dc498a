"""The forest plot: per metric and column each variant's paired difference from the baseline, with the margin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from ablate.core.objectives import given_for, is_share
from ablate.results.comparison.design import columns
from ablate.results.rendering.drawing import Figure, finished, inline_chart, row_axes, safe_stem, scaled, tips
from ablate.results.rendering.numbers import better_end, capital, printable, spell_metric
from ablate.results.statistics.looks import ERROR, share_of
from ablate.study import Study

ROW_HEIGHT = 26  # pixels
Seeds = Mapping[tuple[str, str, str], Sequence[float]]  # by metric, column and variant: the difference of each seed


def forest_figures(study: Study, table: pl.DataFrame, seeds: Seeds) -> list[Figure]:
    """Return a figure for each metric that has a difference; `table` are rows of `verdicts`."""
    found = []
    for metric in table["metric"].unique(maintain_order=True):
        own = table.filter(pl.col("metric") == metric, pl.col("difference").is_not_nan())
        panels = tuple(_panel(study, part, seeds) for part in own.partition_by("column", maintain_order=True))
        if panels:
            found.append(_figure(study, metric, panels, look=own["look"][0]))
    return found


def _figure(study: Study, metric: str, panels: tuple[Figure, ...], *, look: int) -> Figure:
    level = 1 - 2 * ERROR * share_of(look)
    margin = given_for(study.compared.margin, metric)
    band = [] if margin is None else [("band", "margin")]
    better = better_end(metric, study.objectives, ("left", "right"))
    unit = " in points" if is_share(metric) else ""
    star = f", scaled {study.scale:g}*" if study.scale != 1 else ""
    baseline = printable(study.compared.baseline)
    return Figure(
        stem=f"difference-{safe_stem(metric)}",
        title=f"{capital(spell_metric(metric))}: difference from {baseline}{unit}{star}",
        caption=f"Each panel has its own scale.{better and f' Better is {better}.'}",
        panels=panels,
        key=(
            ("dot", f"mean difference, variant − {baseline}, paired by seed"),
            ("across", "95% t interval"),
            ("broad", f"interval for the margin ({level:.1%})"),
            ("upright", "single seed"),
            ("zero", "no difference"),
            *band,
        ),
    )


def _panel(study: Study, rows: pl.DataFrame, seeds: Seeds) -> Figure:
    """Return one column: a row for each variant."""
    metric, column = rows["metric"][0], rows["column"][0]
    margin = given_for(study.compared.margin, metric)
    points = [_point(row) for row in rows.iter_rows(named=True)]
    ticks = [
        {"variant": printable(variant), **scaled(metric, value=value)}
        for variant in rows["variant"]
        for value in seeds.get((metric, column, variant), ())
        if math.isfinite(value)
    ]
    unit = "difference in points" if is_share(metric) else f"difference in {spell_metric(metric)}"
    chart = alt.layer(*_layers(points, ticks, scaled(metric, margin=margin)["margin"], unit))
    return Figure(
        stem=f"difference-{safe_stem(metric)}-{safe_stem(column)}-{[*columns(study)].index(column)}",
        title=printable(column) if len(columns(study)) > 1 else "",
        caption=f"Difference in {spell_metric(metric)} of each variant from the baseline on {printable(column)}.",
        spec=finished(chart, height=ROW_HEIGHT * len(points)),
    )


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("difference", "low", "high", "margin_low", "margin_high")
    drawn = scaled(row["metric"], **{name: row[name] for name in names})
    return {"variant": printable(row["variant"]), "verdict": row["verdict"], "seeds": row["n"], **drawn}


def _layers(points: list[dict[str, Any]], ticks: list[dict[str, Any]], margin: float | None, unit: str) -> list[Any]:
    order = [point["variant"] for point in points]
    y, x = row_axes("variant", order, label=170, zero=True, title=unit)

    tip = tips("variant", "verdict", "difference", "low", "high", "seeds")
    spans = [point for point in points if point["low"] is not None]
    bands = [] if margin is None else [{"from": -margin, "to": margin}]
    band = inline_chart(bands).mark_rect(color="role:accent", opacity=0.13)
    zero = inline_chart([{"at": 0}]).mark_rule(color="role:faint", strokeWidth=1.2)
    each = inline_chart(ticks).mark_tick(orient="vertical", size=9, thickness=1.2, color="role:accent", opacity=0.55)
    thin = inline_chart(spans).mark_rule(strokeWidth=1.5, color="role:accent")
    broad = inline_chart(spans).mark_rule(strokeWidth=6, opacity=0.35, color="role:accent")
    dots = inline_chart(points).mark_point(filled=True, size=70, opacity=1, color="role:accent")
    return [
        *([band.encode(x=x("from"), x2="to:Q")] if bands else []),
        zero.encode(x=x("at")),
        each.encode(x=x("value"), y=y),
        thin.encode(x=x("low"), x2="high:Q", y=y),
        broad.encode(x=x("margin_low"), x2="margin_high:Q", y=y),
        dots.encode(x=x("difference"), y=y, tooltip=tip),
    ]
