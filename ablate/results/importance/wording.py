"""What matters in a search: the importance of each searched setting, as numbers, a table, sentences and bars."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import altair as alt
import polars as pl

from ablate.base.plain_text import short_name
from ablate.core.objectives import is_cost, is_size
from ablate.results.front.findings import Findings
from ablate.results.front.front import metric_values
from ablate.results.importance.importance import Importance, Importances, importances
from ablate.results.rendering.drawing import Figure, finished, inline_chart, rounded, safe_stem, tips
from ablate.results.rendering.grid import Column, Grid, Row
from ablate.results.rendering.numbers import DASH, capital, printable, spell_metric
from ablate.results.trials.tables import searched_values
from ablate.study import Study

CSV = "importance.csv"
UNTOLD = "not told from chance"
BAR = 26  # pixels
COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(("dataset", "objective", "setting"), pl.String()),
    **dict.fromkeys(("importance", "first_order", "p"), pl.Float64()),
    **dict.fromkeys(("active", "trials"), pl.Int64()),
}
CHOSEN = "The {} sampler chose these trials: where it tried little, the order of the settings may be wrong."
EVEN = ("random", "qmc", "grid")  # samplers that do not look at results


def search_importances(found: Findings) -> tuple[Importances, ...]:
    """Return the importances of a data set's searched settings, one for each measured objective in the file's order."""
    study, dataset = found.results.study, found.dataset
    space = study.space_for(dataset)
    rows = found.listed.filter(pl.col("stage") == "search", pl.col("state").is_in(["COMPLETE", "PRUNED"]))
    settings = searched_values(rows, space)
    return tuple(
        importances(
            objective.metric,
            forecasts(rows, found.pooled.reports, dataset, objective.metric),
            settings,
            space,
            study_seed=study.seed,
            dataset=dataset,
        )
        for objective in study.objectives
        if not is_size(objective.metric)
    )


def forecasts(rows: pl.DataFrame, reports: pl.DataFrame, dataset: str, metric: str) -> list[float]:
    """Return a metric of complete trials, and a forecast of those that were stopped early, NaN where there is none.

    The forecast adds to a trial's last value what the complete trials gained from that epoch on, in the median. A
    metric that is not reported, such as wall_seconds, is what the trial has.
    """
    values: list[float] = metric_values(rows, metric).tolist()
    if is_cost(metric) or metric not in reports.columns:
        return values
    mean = reports.filter(pl.col("dataset") == dataset).group_by("trial", "epoch").agg(pl.col(metric).mean())
    curves: dict[int, dict[int, float]] = {}
    for trial, epoch, value in mean.drop_nulls().iter_rows():
        curves.setdefault(trial, {})[epoch] = value
    places = list(zip(rows["trial"], rows["state"], values, strict=True))
    done = [(curves.get(trial, {}), value) for trial, state, value in places if state == "COMPLETE"]
    gains: dict[int, float] = {}

    def forecast(trial: int) -> float:
        epoch = max(curves.get(trial, ()), default=None)
        if epoch is None:
            return math.nan
        if epoch not in gains:
            found = [value - curve[epoch] for curve, value in done if epoch in curve and math.isfinite(value)]
            gains[epoch] = median(found) if found else math.nan
        return curves[trial][epoch] + gains[epoch]

    return [value if state == "COMPLETE" else forecast(trial) for trial, state, value in places]


def importance_table(found: Mapping[str, Sequence[Importances]]) -> pl.DataFrame:
    """Return one row per data set, objective and setting, the most important first (columns: docs/report.md)."""
    rows = [
        (dataset, each.metric, row.parameter, row.total, row.first, row.p, row.active, each.trials)
        for dataset, objectives in found.items()
        for each in objectives
        for row in each.rows
    ]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def setting_labels(names: Sequence[str]) -> dict[str, str]:
    """Return each setting's short name in words, or the dotted name where two have the same."""
    short = Counter(short_name(name) for name in names)
    return {name: printable(short_name(name) if short[short_name(name)] == 1 else name) for name in names}


def what_matters(found: Findings) -> dict[str, Any]:
    """Return the template's values of the section: figure, table, sentences; and the importances themselves."""
    study, objectives = found.results.study, search_importances(found)
    labels = setting_labels(study.space_for(found.dataset).names())
    return {
        "importances": objectives,
        "sentences": _sentences(study, found, objectives),
        "table": _page_table(found, objectives, labels),
        "figure": importance_figure(found, objectives, labels),
    }


def _page_table(found: Findings, objectives: Sequence[Importances], labels: Mapping[str, str]) -> Grid | None:
    known = [each for each in objectives if each.rows]
    if not known:
        return None
    by_name = [{row.parameter: row for row in each.rows} for each in known]
    columns = [Column(heading="Setting", cell=lambda row: labels[row["setting"]])]
    for each, own in zip(known, by_name, strict=True):
        columns.append(Column(heading=capital(spell_metric(each.metric)), cell=partial(_share, own, "total")))
        columns.append(Column(heading="Alone", cell=partial(_share, own, "first")))
    columns.append(Column(heading="Searched in", cell=partial(_active, by_name, known)))
    order = list(dict.fromkeys(name for each in known for name in each.order))
    caption = f"Importance of the settings{found.named('of')}"
    return Grid(caption=caption, frame=pl.DataFrame({"setting": order}), columns=columns, csv=CSV)


def _share(own: Mapping[str, Importance], kind: str, row: Row) -> str:
    found = own.get(row["setting"])
    if found is None or not found.is_told:
        return UNTOLD if found is not None and kind == "total" else DASH
    return share_text(getattr(found, kind))


def _active(by_name: Sequence[Mapping[str, Importance]], known: Sequence[Importances], row: Row) -> str:
    """Return in how many of the trials that a forest learnt from a setting was searched."""
    name, places = row["setting"], zip(by_name, known, strict=True)
    active, trials = next((own[name].active, each.trials) for own, each in places if name in own)
    return f"all {trials:,}" if active == trials else f"{active:,} of {trials:,}"


def _sentences(study: Study, found: Findings, objectives: Sequence[Importances]) -> list[str]:
    """Return what the numbers rest on: the trials, and who chose them."""
    sentences = []
    search = found.listed.filter(pl.col("stage") == "search")
    learnt = [each for each in objectives if each.rows]
    for each in learnt[:1]:
        states = Counter(search["state"].to_list())
        stopped = min(states["PRUNED"], each.trials - states["COMPLETE"])
        names = " and ".join(spell_metric(each.metric) for each in learnt)
        text = f"{capital(names)}: learnt from {each.trials:,} search trials"
        text += f", {stopped:,} of them forecast because they were stopped early" if stopped > 0 else ""
        sentences.append(f"{text}.")
        if study.sampler.name not in EVEN:
            sentences.append(CHOSEN.format(printable(study.sampler.name)))
    return sentences


def importance_figure(found: Findings, objectives: Sequence[Importances], labels: Mapping[str, str]) -> Figure | None:
    """Return the importances as bars, one panel for each objective, settings in one order."""
    known = [each for each in objectives if each.rows]
    if not known:
        return None
    order = [labels[name] for name in dict.fromkeys(name for each in known for name in each.order)]
    panels = tuple(_bars(found.dataset, each, order, labels) for each in known)
    return Figure(
        stem=f"importance-{safe_stem(found.dataset)}",
        title=f"Importance of the settings{found.named('of')}",
        caption="The share is of the variance over the space. A setting without a bar is not told from chance.",
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
            "alone": share_text(row.first) if row.is_told else DASH,
            "said": share_text(row.total) if row.is_told else UNTOLD,
            "active": row.active,
        }
        for row in found.rows
    ]
    axis = alt.Axis(labelLimit=150, ticks=False, domain=False, labelColor="role:ink", labelPadding=8)
    y = alt.Y("setting:N", sort=list(order), title=None, scale=alt.Scale(domain=list(order)), axis=axis)
    scale, ticks = alt.Scale(domain=[0, 100]), alt.Axis(tickCount=5, grid=True)
    tip = tips("setting", "said", "alone", "active")
    bars = inline_chart(values).mark_bar(color="role:accent", opacity=0.45, height=12)
    name = spell_metric(found.metric)
    return Figure(
        stem=f"importance-{safe_stem(dataset)}-{safe_stem(found.metric)}",
        title=capital(name),
        caption=f"Importance of the settings for {name}.",
        spec=finished(
            bars.encode(x=alt.X("share:Q", title="share of variance in %", scale=scale, axis=ticks), y=y, tooltip=tip),
            height=BAR * len(order),
        ),
    )
