"""The tuning of a comparison's rows on page and terminal: what it cost, what it found, and the scores by value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from ablate.analysis.tuning_budget import tuning_budget, tuning_metric, tuning_trials_of
from ablate.objectives import is_share
from ablate.report.drawing import Figure, finished, inline_chart, rounded, safe_stem
from ablate.report.latex import PageTable
from ablate.report.numbers import compact, printable, quantity, spell_metric
from ablate.study import VARIANT, Study
from ablate.study.space import Choices

MOST_POINTS = 4000  # a figure draws at most this many tuning trials


def tuning_section(study: Study, trials: pl.DataFrame, figures: Mapping[str, Figure]) -> dict[str, Any] | None:
    """Return the template's values of the page's section on tuning, None for a comparison that is not tuned."""
    if study.tune is None:
        return None
    budget = tuning_budget(study, trials)
    table = PageTable(
        stem="tuning",
        caption="Tuning of each row",
        headings=headings(study),
        groups={
            printable(part["dataset"][0]): [row_cells(study, row) for row in part.iter_rows(named=True)]
            for part in budget.partition_by("dataset", maintain_order=True)
        },
        csv="tuning.csv",
    )
    return {"text": tuning_text(study, budget), "table": table, "figures": [*figures.values()]}


def tuning_text(study: Study, budget: pl.DataFrame) -> str:
    """Return what was tuned and what it cost, in words."""
    assert study.tune is not None
    names = ", ".join(study.tuned.names())
    if not budget.height:
        return f"Every row tunes {names} first; no tuning trial has begun."
    per_row = sorted(set(budget["trials"].to_list()))
    count = f"{per_row[0]}" if len(per_row) == 1 else f"{per_row[0]} to {per_row[-1]}"
    seconds = float(budget["seconds"].sum())
    seeds = f"{study.tune.replicates} seed{'s' * (study.tune.replicates != 1)}"
    return (
        f"Every row tuned {names} first: {count} trials on {seeds}, the same values for all. In all "
        f"{budget['trials'].sum():,} trials, {budget['epochs'].sum():,} epochs, {_duration(seconds)} of training. The "
        f"values with the best {spell_metric(tuning_metric(study))} were then trained on the comparison's own seeds."
    )


def headings(study: Study) -> list[str]:
    """Return the headings of the table of budgets."""
    tuned = [name.partition(".")[2] for name in study.tuned.names()]
    best = f"Best {spell_metric(tuning_metric(study))}"
    return ["Row", *(f"Best {name}" for name in tuned), best, "Complete", "Failed", "Epochs", "Seconds"]


def row_cells(study: Study, row: Mapping[str, Any]) -> list[str]:
    """Return the cells of one row under `headings`; a value at a border of its range is marked with an asterisk."""
    values, border = json.loads(row["best"]), row["border"].split(", ")
    best = [_value(values.get(name)) + "*" * (name in border) for name in study.tuned.names()]
    name = " · ".join(part for part in (row["variant"], row["configuration"]) if part)
    score = quantity(tuning_metric(study), row["score"])
    complete = f"{row['complete']} of {row['trials']}"
    return [printable(name), *best, score, complete, str(row["failed"]), f"{row['epochs']:,}", f"{row['seconds']:,.0f}"]


def tuning_figures(study: Study, trials: pl.DataFrame) -> dict[str, Figure]:
    """Return one figure per data set, a panel for each tuned setting: the score of each row's trials by value."""
    if study.tune is None:
        return {}
    own = tuning_trials_of(study, trials).filter(pl.col("state") == "COMPLETE").head(MOST_POINTS)
    found = {}
    for part in own.partition_by("dataset", maintain_order=True):
        dataset = part["dataset"][0]
        best = set(tuning_budget(study, part)["best_trial"].to_list())
        panels = tuple(_panel(study, name, part, best) for name in study.tuned.names() if name in part.columns)
        found[dataset] = Figure(
            stem=f"tuning-{safe_stem(dataset)}",
            title=f"Scores in the tuning on {printable(dataset)}",
            caption="Each point is a complete tuning trial, each line a row of the comparison; all rows tried the same "
            "values. Large points are each row's best.",
            panels=panels,
        )
    return found


def _panel(study: Study, name: str, trials: pl.DataFrame, best: set[int]) -> Figure:
    metric, spec, dataset = tuning_metric(study), study.tuned.ranges[name], trials["dataset"][0]
    factor = 100 if is_share(metric) else 1
    points = [
        {
            "row": printable(" ".join(part for part in (row[VARIANT], row["configuration"]) if part)),
            "value": printable(str(row[name])) if isinstance(spec, Choices) else rounded(float(row[name])),
            "score": rounded(factor * row[metric]),
            "best": row["trial"] in best,
            "trial": row["trial"],
        }
        for row in trials.iter_rows(named=True)
        if row[name] is not None and math.isfinite(row[metric] if row[metric] is not None else math.nan)
    ]
    scale = alt.Scale(type="log" if getattr(spec, "log", False) else "linear", nice=False, padding=8)
    x = alt.X("value:N", title=None) if isinstance(spec, Choices) else alt.X("value:Q", title=None, scale=scale)
    unit = " in %" if is_share(metric) else ""
    y = alt.Y("score:Q", title=f"{spell_metric(metric)}{unit}", scale=alt.Scale(zero=False))
    tip = [alt.Tooltip(f"{field}:N") for field in ("row", "value", "score", "trial")]
    layers = [inline_chart(points).mark_point(filled=True, size=18, opacity=0.5, color="role:faint").encode(x=x, y=y)]
    if not isinstance(spec, Choices):
        line = inline_chart(points).mark_line(strokeWidth=1, opacity=0.45, color="role:faint")
        layers.insert(0, line.encode(x=x, y=y, detail="row:N"))
    marked = inline_chart([point for point in points if point["best"]]).mark_point(filled=True, size=70, opacity=0.9)
    layers.append(marked.encode(x=x, y=y, color=alt.value("role:accent"), tooltip=tip))
    return Figure(
        stem=f"tuning-{safe_stem(dataset)}-{safe_stem(name)}",
        title=printable(name),
        caption=f"Scores on {printable(dataset)} by {printable(name)}.",
        spec=finished(alt.layer(*layers), height=240),
    )


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else printable(str(value))


def _duration(seconds: float) -> str:
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{compact(seconds)} seconds"
