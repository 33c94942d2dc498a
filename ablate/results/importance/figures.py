"""The figures of what matters in a search: importances as bars, slices, and parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from ablate.core.objectives import is_cost, is_maximized, ranked
from ablate.results.front.axes import Axis, objective_axis, setting_axis
from ablate.results.front.front import column_of, front, metric_values
from ablate.results.importance.importance import Importances
from ablate.results.rendering.drawing import (
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
from ablate.results.rendering.numbers import DASH, better_end, capital, spell_metric
from ablate.results.trials.tables import searched_values
from ablate.study import Study

MOST_POINTS = 400  # trials in a slice
MOST_LINES = 150  # trials in the parallel coordinates
UNTOLD = "not told from chance"
UNSEARCHED, BELOW = "not searched", -0.1  # text and position of a setting that a trial does not have
BAR, SLICE_HEIGHT = 26, 190  # pixels


def matter_figures(
    study: Study, dataset: str, rows: pl.DataFrame, objectives: Sequence[Importances], labels: Mapping[str, str]
) -> list[Figure]:
    """Return the figures for which the complete search trials `rows` of a data set suffice."""
    drawn = [importance_figure(dataset, objectives, labels)]
    if rows.height > 1 and labels:
        for each in study.objectives:
            if not is_cost(each.metric):
                order = next((found.order for found in objectives if found.metric == each.metric), ())
                drawn.append(slices_figure(study, dataset, rows, each.metric, order, labels))
        drawn.append(parallel_figure(study, dataset, rows, labels))
    return [figure for figure in drawn if figure is not None]


def importance_figure(dataset: str, objectives: Sequence[Importances], labels: Mapping[str, str]) -> Figure | None:
    """Return the importances as bars, one panel for each objective, settings in one order."""
    known = [each for each in objectives if each.rows]
    if not known:
        return None
    order = [labels[name] for name in dict.fromkeys(name for each in known for name in each.order)]
    panels = tuple(_bars(dataset, each, order, labels) for each in known)
    return Figure(
        stem=f"importance-{safe_stem(dataset)}",
        title=f"Importance of the settings of {dataset}",
        caption="The share is of the variance over the space. A setting without a bar is not told from chance or, for "
        "a size, never changes it.",
        panels=panels,
        key=(("bar", "share of the variance, alone and together with others"),),
    )


def share_text(share: float) -> str:
    """Return a share in per cent, below one half as such: a setting that is listed has an influence."""
    return f"{100 * share:.0f}%" if share >= 0.005 else "<1%"


def _bars(dataset: str, found: Importances, order: Sequence[str], labels: Mapping[str, str]) -> Figure:
    values = [
        {
            "setting": labels[row.parameter],
            "share": rounded(100 * row.total) if row.is_told else 0,
            "alone": share_text(row.first) if row.is_told and row.first is not None else DASH,
            "said": share_text(row.total) if row.is_told else UNTOLD,
            "active": DASH if row.active is None else row.active,
        }
        for row in found.rows
    ]
    axis = alt.Axis(labelLimit=150, ticks=False, domain=False, labelColor="role:ink", labelPadding=8)
    y = alt.Y("setting:N", sort=list(order), title=None, scale=alt.Scale(domain=list(order)), axis=axis)
    scale, ticks = alt.Scale(domain=[0, 100]), alt.Axis(tickCount=5, grid=True)
    tip = tips("setting", "said", "alone", "active")
    bars = inline_chart(values).mark_bar(color="role:accent", opacity=0.45, height=12)
    text = inline_chart([each for each in values if each["said"] == UNTOLD]).mark_text(
        align="left", dx=4, fontSize=10.5, color="role:muted"
    )
    name = spell_metric(found.metric)
    return Figure(
        stem=f"importance-{safe_stem(dataset)}-{safe_stem(found.metric)}",
        title=capital(name),
        caption=f"Importance of the settings for {name}.",
        spec=finished(
            alt.layer(
                bars.encode(
                    x=alt.X("share:Q", title="share of variance in %", scale=scale, axis=ticks), y=y, tooltip=tip
                ),
                text.encode(x=alt.X("share:Q", scale=scale), y=y, text="said:N"),
            ),
            height=BAR * len(order),
        ),
    )


def slices_figure(
    study: Study, dataset: str, rows: pl.DataFrame, metric: str, order: Sequence[str], labels: Mapping[str, str]
) -> Figure | None:
    """Return an objective against each searched setting, the most important first."""
    kept, dropped, front_trials = drawn_trials(study, rows, metric, MOST_POINTS)
    if not kept.height:
        return None
    ranges = study.space_for(dataset).ranges
    quality = objective_axis(study, metric, metric_values(kept, metric).tolist())
    values = searched_values(kept, study.space_for(dataset))
    panels = []
    for name in [*order, *(name for name in labels if name not in order)]:
        axis = setting_axis(ranges[name], labels[name])
        points = [
            {
                "trial": trial,
                "value": axis.shown(own[name]),
                "quality": quality.shown(value),
                "series": "on the front" if trial in front_trials else "search trial",
                "offset": rounded(trial * 0.618034 % 1),
            }
            for trial, own, value in zip(kept["trial"], values, metric_values(kept, metric).tolist(), strict=True)
            if name in own
        ]
        if len({str(point["value"]) for point in points}) > 1:
            points.sort(key=lambda point: point["series"] == "on the front")
            panels.append(_slice(dataset, metric, name, axis, quality, points))
    if not panels:
        return None
    return Figure(
        stem=f"slices-{safe_stem(dataset)}-{safe_stem(metric)}",
        title=f"{capital(quality.title)} against each setting on {dataset}",
        caption=f"Every point is a complete search trial{_drawn_text(kept.height, dropped)}. Better is "
        f"{better_end(metric, study.objectives, ('down', 'up'))}. Trials beyond the drawn range are at its edge. The "
        "other settings vary too, so a panel does not isolate its setting.",
        panels=tuple(panels),
        key=(("dot", "on the front of the search"), ("ring", "other search trial")),
    )


def _slice(dataset: str, metric: str, name: str, axis: Axis, quality: Axis, points: list[dict[str, Any]]) -> Figure:
    y_scale = alt.Scale(domain=list(quality.ends), clamp=True, nice=False, type="log" if quality.log else "linear")
    y = alt.Y("quality:Q", title=quality.title, scale=y_scale, axis=alt.Axis(tickCount=4))
    color = alt.Color("series:N", title=None, scale=series_scale(points), legend=None)
    fill = alt.condition("datum.series == 'on the front'", alt.value(1), alt.value(0))
    tip = tips("trial", "value", "quality")
    encoding: dict[str, Any] = {"y": y, "color": color, "fill": color, "fillOpacity": fill, "tooltip": tip}
    if axis.spec is not None:
        names = list(axis.texts)
        encoding["x"] = alt.X(
            "value:N", title=None, sort=names, scale=alt.Scale(domain=names), axis=alt.Axis(labelAngle=0)
        )
        encoding["xOffset"] = alt.XOffset("offset:Q", scale=alt.Scale(domain=[-1, 2]))
    else:
        scale = alt.Scale(type="log" if axis.log else "linear", domain=list(axis.ends), nice=False, padding=8)
        ticks = alt.Axis(
            tickCount=4, grid=False, format="~s" if axis.ends[1] >= 10_000 else "~g", labelOverlap="greedy"
        )
        encoding["x"] = alt.X("value:Q", title=None, scale=scale, axis=ticks)
    chart = inline_chart(points).mark_point(size=26, strokeWidth=1.2, opacity=0.75)
    return Figure(
        stem=f"slices-{safe_stem(dataset)}-{safe_stem(metric)}-{safe_stem(name)}",
        title=axis.title,
        caption=f"{capital(quality.title)} against {axis.title}.",
        spec=finished(alt.layer(chart.encode(**encoding)), height=SLICE_HEIGHT),
    )


def parallel_figure(study: Study, dataset: str, rows: pl.DataFrame, labels: Mapping[str, str]) -> Figure | None:
    """Return each trial as a line through its settings and its objectives; the front's lines are drawn above."""
    metric = next((o.metric for o in study.objectives if not is_cost(o.metric)), study.objectives[0].metric)
    kept, dropped, front_trials = drawn_trials(study, rows, metric, MOST_LINES)
    if not kept.height:
        return None
    space = study.space_for(dataset)
    settings = {name: setting_axis(space.ranges[name], labels[name]) for name in labels}
    columns = {o.metric: metric_values(kept, o.metric).tolist() for o in study.objectives}
    measured = {name: objective_axis(study, name, values) for name, values in columns.items()}
    axes = settings | measured
    points: list[dict[str, Any]] = []
    for place, (trial, own) in enumerate(zip(kept["trial"], searched_values(kept, space), strict=True)):
        series = "on the front" if trial in front_trials else "search trial"
        cells = own | {name: columns[name][place] for name in measured}
        for name, axis in axes.items():
            there = name in cells and cells[name] == cells[name]
            text, position = (axis.text(cells[name]), axis.position(cells[name])) if there else (UNSEARCHED, BELOW)
            point = {"trial": trial, "axis": axis.title, "value": text, "position": rounded(position)}
            points.append({**point, "series": series})
    points.sort(key=lambda point: point["series"] == "on the front")
    ends = [{"axis": a.title, "position": place, "label": text} for a in axes.values() for place, text in a.labels()]
    unused = any(point["value"] == UNSEARCHED for point in points)
    better = ", ".join(f"{measured[o.metric].title} {'up' if is_maximized(o) else 'down'}" for o in study.objectives)
    last = " Settings that a trial does not have are below the axis." if unused else ""
    return Figure(
        stem=f"parallel-{safe_stem(dataset)}",
        title=f"Settings and objectives of each trial on {dataset}",
        caption=f"Every line is a complete search trial{_drawn_text(kept.height, dropped)}. Better: {better}. "
        f"Hover over a line to follow it.{last}",
        spec=finished(_lines(points, ends, [axis.title for axis in axes.values()])),
    )


def _lines(points: list[dict[str, Any]], ends: list[dict[str, Any]], order: list[str]) -> Any:
    labels = alt.Axis(
        labelAngle=-35, labelLimit=110, labelOverlap=False, grid=True, ticks=False, domain=False, labelColor="role:ink"
    )
    x = alt.X("axis:N", sort=order, title=None, scale=alt.Scale(type="point", domain=order, padding=0.3), axis=labels)
    y = alt.Y("position:Q", axis=None, scale=alt.Scale(domain=[-0.14, 1.06], nice=False))
    color = alt.Color("series:N", title=None, scale=series_scale(points), legend=legend())
    followed = alt.selection_point(name="followed", fields=["trial"], on="pointerover", clear="pointerout", empty=False)
    is_front = "datum.series == 'on the front'"
    width = alt.condition(followed, alt.value(3.5), alt.value(1.2))
    line = inline_chart(points).mark_line(strokeJoin="round").properties(name="lines")
    opacity = alt.condition(is_front, alt.value(0.9), alt.value(0.28))
    dots = inline_chart(points).mark_circle(size=45)
    tip = tips("trial", "axis", "value")
    text = inline_chart(ends).mark_text(align="left", dx=4, fontSize=10.5, color="role:muted")
    return alt.layer(
        line.encode(x=x, y=y, color=color, detail="trial:N", opacity=opacity, strokeWidth=width).add_params(followed),
        dots.encode(x=x, y=y, color=color, opacity=alt.value(0), tooltip=tip),
        text.encode(x=x, y=y, text="label:N"),
    )


def drawn_trials(study: Study, rows: pl.DataFrame, metric: str, most: int) -> tuple[pl.DataFrame, int, set[int]]:
    """Return the trials to draw, how many are left out, and which are on the search's front.

    Those on the front and the best on the metric are always kept; the others are thinned evenly.
    """
    objective = next(o for o in study.objectives if o.metric == metric)
    values = metric_values(rows, metric).tolist()
    there = [i for i, value in enumerate(values) if math.isfinite(value)]
    on_front = (
        set(front(rows, study.objectives, constraints=study.constraints)["trial"].to_list()) if rows.height else set()
    )
    trials = rows["trial"].to_list()
    order = ranked([objective], study.constraints, rows["state"].to_list(), column_of(rows, "search"))
    best = next((i for i in order if i in there), None)
    first = [i for i in there if trials[i] in on_front or i == best]
    others = evenly([i for i in there if i not in set(first)], max(most - len(first), 0))
    kept = sorted({*first, *others})
    return rows[kept], len(there) - len(kept), on_front


def _drawn_text(drawn: int, dropped: int) -> str:
    return f" ({drawn:,} of {drawn + dropped:,} are drawn, the front and the best among them)" if dropped else ""
