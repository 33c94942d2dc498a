"""The figure of a comparison: per metric one panel for each column, as Vega-Lite specifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from ablate.core.objectives import is_share
from ablate.results.comparison.comparison import CONSTANTS
from ablate.results.comparison.data_sets import sampled_columns
from ablate.results.rendering.drawing import Figure, finished, inline_chart, rounded, row_axes, safe_stem, tips
from ablate.results.rendering.numbers import better_end, printable, spell_metric
from ablate.study import Study

ROW_HEIGHT = 26  # pixels of one variant


def comparison_figures(study: Study, table: pl.DataFrame, seeds: pl.DataFrame) -> list[Figure]:
    """Return the figure of each metric that has seeds: mean, interval, every seed and the published figure."""
    found = []
    for metric in (name for name in table["metric"].unique(maintain_order=True) if name not in CONSTANTS):
        own = table.filter(pl.col("metric") == metric)
        of_seeds = seeds.filter(pl.col("metric") == metric)
        parts = own.partition_by("column", maintain_order=True)
        panels = [panel(study, part, of_seeds.filter(pl.col("column") == part["column"][0])) for part in parts]
        drawn = tuple(figure for figure in panels if figure is not None)
        if drawn:
            found.append(_figure(study, metric, drawn))
    return found


def panel(study: Study, cells: pl.DataFrame, seeds: pl.DataFrame) -> Figure | None:
    """Return one column as a panel: a row per variant, with a separate scale."""
    metric, column = cells["metric"][0], cells["column"][0]
    factor = 100 if is_share(metric) else 1
    points = [_point(row, factor) for row in cells.iter_rows(named=True)]
    points = [point for point in points if point["ours"] is not None or point["published"] is not None]
    if not points:
        return None
    ticks = [
        {"variant": printable(variant), "value": rounded(factor * value)}
        for variant, value in seeds.drop_nans("value").select("variant", "value").iter_rows()
    ]
    baseline = [p for p in points if p["variant"] == printable(study.compared.baseline) and p["ours"] is not None]
    return Figure(
        stem=f"compare-{safe_stem(metric)}-{safe_stem(column)}-{column_number(study, column)}",
        title=printable(column),
        caption=f"{spell_metric(metric).capitalize()} of each variant on {printable(column)}.",
        spec=finished(alt.layer(*_layers(points, ticks, baseline)), height=ROW_HEIGHT * len(points)),
    )


def column_number(study: Study, column: str) -> int:
    """Return the number of the column, which makes the file stem unique: two names may give the same stem."""
    return [*(study.compared.columns or study.datasets), *sampled_columns(study)].index(column)


def _point(row: Mapping[str, Any], factor: int) -> dict[str, Any]:
    """Return a cell for drawing; NaN becomes null, because a figure cannot show NaN."""
    point = {name: row[name] for name in ("ours", "low", "high", "published")}
    drawn = {k: None if v is None or v != v else rounded(factor * v) for k, v in point.items()}
    return {"variant": printable(row["variant"]), "seeds": row["n"], **drawn}


def _layers(points: list[dict[str, Any]], ticks: list[dict[str, Any]], baseline: list[dict[str, Any]]) -> list[Any]:
    order = [point["variant"] for point in points]
    y, x = row_axes("variant", order, label=170, zero=False)

    ours = [point for point in points if point["ours"] is not None]
    spans = [point for point in ours if point["low"] is not None]
    published = [point for point in points if point["published"] is not None]
    tip = tips("variant", "ours", "low", "high", "seeds", "published")
    line = inline_chart(baseline).mark_rule(strokeDash=[4, 4], color="role:faint", strokeWidth=1.2)
    each = inline_chart(ticks).mark_tick(orient="vertical", size=9, thickness=1.2, color="role:accent", opacity=0.55)
    span = inline_chart(spans).mark_rule(strokeWidth=2, color="role:accent")
    dots = inline_chart(ours).mark_point(filled=True, size=70, opacity=1, color="role:accent")
    paper = inline_chart(published).mark_point(shape="diamond", size=110, strokeWidth=1.8, color="role:second")
    return [
        line.encode(x=x("ours")),
        each.encode(x=x("value"), y=y),
        span.encode(x=x("low"), x2="high:Q", y=y),
        dots.encode(x=x("ours"), y=y, tooltip=tip),
        paper.encode(x=x("published"), y=y, tooltip=tip, opacity=alt.value(1)),
    ]


def _figure(study: Study, metric: str, panels: tuple[Figure, ...]) -> Figure:
    unit = " in %" if is_share(metric) else ""
    star = f", scaled {study.scale:g}*" if study.scale != 1 else ""
    published = [("diamond", "published figure")] if metric in study.compared.published else []
    better = better_end(metric, study.objectives, ("left", "right"))
    return Figure(
        stem=f"compare-{safe_stem(metric)}",
        title=f"Means, intervals and seeds{unit}{star}",
        caption=f"Each panel has its own scale.{better and f' Better is {better}.'}",
        panels=panels,
        key=(
            ("dot", "our mean"),
            ("across", "95% t interval over seeds"),
            ("upright", "single seed"),
            *published,
            ("baseline", f"{printable(study.compared.baseline)}, the baseline"),
        ),
    )
