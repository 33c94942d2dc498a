"""The figure of effects: estimates and intervals of every part and interaction, a panel for each column."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from ablate.core.objectives import is_share
from ablate.results.comparison.effect_table import PER_PART, figure_stem
from ablate.results.comparison.effects import INTERACTION
from ablate.results.rendering.drawing import Figure, finished, inline_chart, rounded, row_axes, safe_stem, tips
from ablate.results.rendering.numbers import better_end, printable, spell_metric
from ablate.study import Study

ROW_HEIGHT = 20  # pixels of one effect


def effect_figures(study: Study, found: pl.DataFrame) -> list[Figure]:
    """Return the figure of each metric that has effects; `found` is the table of `comparison.effects`."""
    drawn = []
    known = found.filter(pl.col("estimate").is_not_null() & pl.col("estimate").is_not_nan())
    for metric in known["metric"].unique(maintain_order=True):
        own = known.filter(pl.col("metric") == metric)
        parts = own.partition_by("column", maintain_order=True)
        unit = " in points" if is_share(metric) else ""
        better = better_end(metric, study.objectives, ("left", "right"))
        drawn.append(
            Figure(
                stem=figure_stem(metric),
                title=f"Effects on {spell_metric(metric)}{unit}",
                caption=f"Each panel has its own scale.{better and f' Better is {better}.'}",
                key=(("dot", "estimate"), ("across", "95% interval"), ("baseline", "no effect")),
                panels=tuple(_panel(part, metric, index) for index, part in enumerate(parts)),
            )
        )
    return drawn


def _panel(rows: pl.DataFrame, metric: str, index: int) -> Figure:
    factor = 100 if is_share(metric) else 1
    points = [_point(row, factor) for row in _ordered(rows)]
    order = [point["effect"] for point in points]
    y, x = row_axes("effect", order, label=190, zero=True)

    tip = tips("effect", "estimate", "low", "high", "seeds")
    zero = inline_chart([{"zero": 0}]).mark_rule(strokeDash=[4, 4], color="role:faint", strokeWidth=1.2)
    spans = [point for point in points if point["low"] is not None]
    span = inline_chart(spans).mark_rule(strokeWidth=2, color="role:accent")
    dots = inline_chart(points).mark_point(filled=True, size=60, opacity=1, color="role:accent")
    layers = [
        zero.encode(x=x("zero")),
        span.encode(x=x("low"), x2="high:Q", y=y),
        dots.encode(x=x("estimate"), y=y, tooltip=tip),
    ]
    column = rows["column"][0]
    return Figure(
        stem=f"{figure_stem(metric)}-{safe_stem(column)}-{index}",
        title=printable(column),
        caption=f"Effects of parts and interactions on {spell_metric(metric)} on {printable(column)}.",
        spec=finished(alt.layer(*layers), height=ROW_HEIGHT * len(order)),
    )


def _ordered(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the effects part by part, then the interactions."""
    terms = rows["term"].unique(maintain_order=True).to_list()
    kinds = [*PER_PART, INTERACTION]

    def place(row: dict[str, Any]) -> tuple[bool, int, int]:
        return row["kind"] == INTERACTION, terms.index(row["term"]), kinds.index(row["kind"])

    return sorted(rows.rows(named=True), key=place)


def _label(row: dict[str, Any]) -> str:
    kind = row["kind"]
    return printable(row["term"] if kind == INTERACTION else f"{row['term']}, {PER_PART[kind][1]}")


def _point(row: dict[str, Any], factor: int) -> dict[str, Any]:
    drawn = {name: None if row[name] is None else rounded(factor * row[name]) for name in ("estimate", "low", "high")}
    return {"effect": _label(row), "seeds": row["n"], **drawn}
