"""Learning curves of trials by epoch, as a Vega-Lite specification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from ablate.core.objectives import mean, quality_objective
from ablate.results.front.findings import Findings
from ablate.results.front.tables import network, quality_name
from ablate.results.rendering.drawing import (
    SERIES,
    Figure,
    axis_title,
    by_series,
    finished,
    inline_chart,
    safe_stem,
    scaled,
    tips,
)
from ablate.results.rendering.numbers import better_end, evenly, printable, spell_metric
from ablate.study import Study

MOST_TICKS = 10
MOST_CURVES = 150  # maximum number of learning curves per data set


def curves_figure(found: Findings) -> Figure | None:
    """Return the validation quality of trials by epoch, evenly thinned if there are too many."""
    study = found.results.study
    objective = quality_objective(study.objectives)
    if objective.metric not in found.pooled.reports.columns:
        return None
    lines, ends, dropped = learning_curves(found, objective.metric)
    if not lines:
        return None
    name = quality_name(study)
    ticks = alt.Axis(values=whole_ticks([point["epoch"] for point in lines]), format="d")
    x = alt.X("epoch:Q", title=study.unit, axis=ticks, scale=alt.Scale(nice=False))
    title = axis_title(name, spell_metric(objective.metric))
    y = alt.Y("quality:Q", title=title, scale=alt.Scale(zero=False))
    color = by_series(alt.Color, lines)
    tip = tips("settings", "trial", "epoch", "quality")
    line = inline_chart(lines).mark_line(strokeWidth=1.3, strokeJoin="round")
    stopped = inline_chart(ends).mark_point(shape="cross", angle=45, size=45, filled=True)
    dots = inline_chart(lines).mark_circle(size=60)
    opacity = alt.condition(f"datum.series == '{best_series(study)}'", alt.value(0.95), alt.value(0.3))
    layers = [
        line.encode(x=x, y=y, color=color, detail="trial:N", opacity=opacity),
        dots.encode(x=x, y=y, color=color, opacity=alt.value(0), tooltip=tip),
        stopped.encode(x=x, y=y, color=color, opacity=alt.value(0.8), tooltip=tip),
    ]
    more = f" {dropped} more curves are left out to keep the page light; reports.parquet has all." if dropped else ""
    return Figure(
        stem=f"curves-{safe_stem(found.dataset)}",
        title=f"Learning curves{found.named('on')}",
        caption=f"Mean over replicates of the {spell_metric(objective.metric)} by {study.unit}. Better is "
        f"{better_end(objective.metric, study.objectives, ('down', 'up'))}.{more}",
        spec=finished(alt.layer(*layers)),
        key=(("cross", "end of a trial that was stopped early"),) if ends else (),
    )


def best_series(study: Study) -> str:
    """Return what the curves of the best trials are called in the legend."""
    return "on the front" if len(study.objectives) > 1 else "the best"


def whole_ticks(epochs: Sequence[int]) -> list[int]:
    """Return at most MOST_TICKS whole epochs for an axis: the multiples of 1, 2 or 5 times a power of ten."""
    low, high = min(epochs), max(epochs)
    steps = (factor * 10**power for power in range(len(str(high)) + 1) for factor in (1, 2, 5))
    step = next(step for step in steps if (high - low) // step < MOST_TICKS)
    return list(range(-(-low // step) * step, high + 1, step))


def learning_curves(found: Findings, metric: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return the points of the drawn curves, the ends of those stopped early, and how many curves were dropped."""
    trials = {row["trial"]: row for row in found.pooled.trials.iter_rows(named=True)}
    means = found.pooled.reports.group_by("trial", "epoch").agg(pl.col(metric)).sort("trial", "epoch")
    means = means.with_columns(pl.Series(metric, map(mean, means[metric]), pl.Float64()))
    means = means.filter(pl.col(metric).is_finite())
    on_front = set(found.front["trial"].to_list()) | set(found.front["source"].drop_nulls().to_list())
    numbers = [n for n in means["trial"].unique(maintain_order=True) if n in trials]
    first = [n for n in numbers if n in on_front]
    kept = set(first) | set(evenly([n for n in numbers if n not in on_front], max(MOST_CURVES - len(first), 0)))
    lines, ends = [], []
    for row in means.filter(pl.col("trial").is_in(list(kept))).iter_rows(named=True):
        trial = trials[row["trial"]]
        series = "confirmation run" if trial["stage"] == "confirm" else "search trial"
        series = best_series(found.results.study) if trial["trial"] in on_front else series
        values = {"trial": row["trial"], "epoch": row["epoch"], **scaled(metric, quality=row[metric])}
        lines.append({**values, "series": series, "settings": printable(network(found.results.study, trial))})
        if trial["state"] == "PRUNED" and row["epoch"] == trial["epochs"]:
            ends.append(lines[-1])
    lines.sort(key=lambda point: SERIES.index(point["series"]))
    return lines, ends, len(numbers) - len(kept)
