"""The tuning of a comparison's rows on the page: its cost, the winners, curves, the expected best of n tries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from ablate.base.plain_text import counted
from ablate.core.objectives import is_share
from ablate.results.comparison.tuning_budget import tuning_budget
from ablate.results.comparison.tuning_scores import ROW, expected_best, tuning_curve, tuning_metric, tuning_scores
from ablate.results.rendering.drawing import Figure, evenly, finished, inline_chart, rounded, safe_stem, tips
from ablate.results.rendering.latex import PageTable
from ablate.results.rendering.numbers import DASH, printable, quantity, spell_metric, spell_seconds, unit_text
from ablate.results.trials.results import Results, once
from ablate.study import VARIANT, Study
from ablate.study.space import Choices
from ablate.study.tuning_seeds import tuning_seeds

MOST_ROWS = 30  # rows of the comparison that a figure draws; tuning_curve.csv and tuning_tries.csv have all
MOST_WINNERS = 3  # winning values in a cell
PANEL_HEIGHT, MOST_TICKS = 150, 8  # pixels; numbers of tries on an axis


@once
def tuning_tables(results: Results) -> dict[str, pl.DataFrame]:
    """Return the tables of a tuned comparison by file name, none of one that is not tuned."""
    study = results.study
    if study.tune is None:
        return {}
    scores = tuning_scores(results)
    return {
        "tuning.csv": tuning_budget(results),
        "tuning_curve.csv": tuning_curve(study, scores),
        "tuning_tries.csv": expected_best(study, scores),
    }


def tuning_section(
    study: Study, tables: Mapping[str, pl.DataFrame], figures: Mapping[str, Figure]
) -> dict[str, Any] | None:
    """Return the template's values of the page's section on tuning, None for a comparison that is not tuned."""
    if study.tune is None:
        return None
    budget = tables["tuning.csv"]
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
    stems = map(figure_stem, budget["dataset"].unique(maintain_order=True))
    drawn = [figures[stem] for stem in stems if stem in figures]
    return {"text": tuning_text(study, budget), "table": table, "figures": drawn}


def tuning_text(study: Study, budget: pl.DataFrame) -> str:
    """Return what was tuned and what it cost, in words."""
    assert study.tune is not None
    names = ", ".join(study.tuned.names())
    if not budget.height:
        return f"Every row tunes {names} first; no tuning trial has begun."
    tried = sorted({row["runs"] // row["seeds"] for row in budget.iter_rows(named=True)})
    count = f"{tried[0]}" if len(tried) == 1 else f"{tried[0]} to {tried[-1]}"
    seconds, number = float(budget["seconds"].sum()), tuning_seeds(study)
    seeds = counted(number, "seed")
    own = number == study.replicates
    turn = "its own tuning seed alone" if own else "one of these seeds, in turn" if number > 1 else "this seed"
    so = (
        " So each seed repeats tuning and training: differences and verdicts are of the part and its tuning. Spread by "
        "choice is the part of the seeds' standard deviation that comes from other winners on other seeds."
    ) * own
    metric = spell_metric(tuning_metric(study))
    return (
        f"Every row tuned {names} first: {count} values on {seeds}, the same values for all. In all "
        f"{budget['runs'].sum():,} runs, {budget['epochs'].sum():,} epochs, {spell_seconds(seconds)} of training. Each "
        f"seed of a row was then trained with the values of the best {metric} on {turn}.{so}"
    )


def headings(study: Study) -> list[str]:
    """Return the headings of the table of budgets."""
    tuned = [name.partition(".")[2] for name in study.tuned.names()]
    first = ["Row", *(f"Winning {name} (seeds)" for name in tuned), f"Best {spell_metric(tuning_metric(study))}"]
    return [*first, "Spread by choice", "Complete", "Failed", "Epochs", "Seconds"]


def row_cells(study: Study, row: Mapping[str, Any]) -> list[str]:
    """Return the cells of one row under `headings`; a setting whose best is often at a border has an asterisk."""
    winners, border = json.loads(row["winners"]), row["border"].split(", ")
    best = [_winners(winners, name) + "*" * (name in border) for name in study.tuned.names()]
    name = " · ".join(part for part in (row["variant"], row["configuration"]) if part)
    metric = tuning_metric(study)
    score = quantity(metric, row["score"])
    spread = DASH if row["choice_sd"] is None else unit_text(metric, row["choice_sd"])
    complete = f"{row['complete']} of {row['runs']}"
    cost = [str(row["failed"]), f"{row['epochs']:,}", f"{row['seconds']:,.0f}"]
    return [printable(name), *best, score, spread, complete, *cost]


def _winners(winners: list[dict[str, Any]], name: str) -> str:
    """Return the values of a setting that won, each with the number of its seeds, the most frequent first."""
    counts: Counter[str] = Counter()
    for winner in winners:
        counts[_value(winner.get(name))] += winner["seeds"]
    listed = [f"{value} ({count})" for value, count in counts.most_common(MOST_WINNERS)]
    return ", ".join(listed) + (f" and {len(counts) - MOST_WINNERS} more" * (len(counts) > MOST_WINNERS)) or "–"


def figure_stem(dataset: str) -> str:
    """Return the file stem of the figure of a data set."""
    return f"tuning-{safe_stem(dataset)}"


def tuning_figures(study: Study, tables: Mapping[str, pl.DataFrame]) -> list[Figure]:
    """Return one figure per data set: of each row the score by each tuned setting and the expected best of n tries."""
    if study.tune is None:
        return []
    found = []
    for part in tables["tuning_curve.csv"].partition_by("dataset", maintain_order=True):
        dataset, panels = part["dataset"][0], []
        rows = part.partition_by(ROW, maintain_order=True)
        for curve in rows[:MOST_ROWS]:
            tries = tables["tuning_tries.csv"].join(curve.select(ROW).unique(), on=ROW, maintain_order="left")
            panels += [_curve(study, name, curve) for name in study.tuned.names() if name in curve.columns]
            panels += [_tries(study, tries)] if tries.height else []
        cut = f" The first {MOST_ROWS} of {len(rows)} rows; the CSV files have all." if len(rows) > MOST_ROWS else ""
        figure = Figure(
            stem=figure_stem(dataset),
            title=f"Scores in the tuning on {printable(dataset)}",
            caption="By value: mean over the tuning seeds, bars of one standard deviation; a larger point won on more "
            "seeds. All rows tried the same values. By number of tries: the best score that this number of tries "
            f"is expected to find on one seed, with a 95% bootstrap band.{cut}",
            panels=tuple(panels),
        )
        found.append(figure)
    return found


def _curve(study: Study, name: str, rows: pl.DataFrame) -> Figure:
    """Return the panel of one row of the comparison: its mean score by the value of one tuned setting."""
    spec, factor = study.tuned.ranges[name], _factor(study)
    points = [
        {
            "value": printable(str(row[name])) if isinstance(spec, Choices) else rounded(float(row[name])),
            "mean": rounded(factor * row["mean"]),
            "low": rounded(factor * (row["mean"] - (row["sd"] or 0.0))),
            "high": rounded(factor * (row["mean"] + (row["sd"] or 0.0))),
            "runs": row["runs"],
            "wins": row["wins"],
        }
        for row in rows.iter_rows(named=True)
        if row[name] is not None and row["mean"] is not None
    ]
    scale = alt.Scale(type="log" if getattr(spec, "log", False) else "linear", nice=False, padding=8)
    x = alt.X("value:N", title=None) if isinstance(spec, Choices) else alt.X("value:Q", title=None, scale=scale)
    tip = tips("value", "mean", "runs", "wins")
    most = max(1, *rows["wins"].to_list())
    size = alt.Size("wins:Q", legend=None, scale=alt.Scale(domain=[0, most], range=[14, 90]))
    chart = inline_chart(points)
    layers = [
        chart.mark_rule(color="role:faint", opacity=0.7).encode(x=x, y=_axis(study, "low"), y2="high:Q"),
        chart.mark_point(filled=True, opacity=0.9, color="role:accent").encode(
            x=x, y=_axis(study, "mean"), size=size, tooltip=tip
        ),
    ]
    if not isinstance(spec, Choices) and len(study.tuned.ranges) == 1:
        layers.insert(0, chart.mark_line(strokeWidth=1, color="role:faint").encode(x=x, y=_axis(study, "mean")))
    return _panel(study, rows, name, printable(name), layers)


def _tries(study: Study, rows: pl.DataFrame) -> Figure:
    """Return the panel of one row of the comparison: the expected best of n tries with its band."""
    factor = _factor(study)
    points = [
        {"tries": row["tries"], **{end: rounded(factor * row[end]) for end in ("expected", "low", "high")}}
        for row in rows.iter_rows(named=True)
    ]
    axis = alt.Axis(values=evenly([point["tries"] for point in points], MOST_TICKS), format="d")
    chart, x = inline_chart(points), alt.X("tries:Q", title=None, axis=axis)
    tip = tips("tries", "expected", "low", "high")
    layers = [
        chart.mark_area(opacity=0.25, color="role:accent").encode(x=x, y=_axis(study, "low"), y2="high:Q"),
        chart.mark_line(strokeWidth=1.5, color="role:accent", point={"color": "role:accent", "size": 16}).encode(
            x=x, y=_axis(study, "expected"), tooltip=tip
        ),
    ]
    return _panel(study, rows, "tries", "expected best of n tries", layers)


def _axis(study: Study, field: str) -> alt.Y:
    unit = " in %" if _factor(study) == 100 else ""
    title = f"{spell_metric(tuning_metric(study))}{unit}"
    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))


def _factor(study: Study) -> int:
    return 100 if is_share(tuning_metric(study)) else 1


def _panel(study: Study, rows: pl.DataFrame, name: str, title: str, layers: list[Any]) -> Figure:
    first = rows.row(0, named=True)
    row = " · ".join(part for part in (first[VARIANT], first["configuration"]) if part)
    stem = "-".join(safe_stem(part) for part in (first["dataset"], row, name))
    return Figure(
        stem=f"tuning-{stem}",
        title=f"{printable(row)}: {title}",
        caption=f"Scores of {printable(row)} on {printable(first['dataset'])}: {title}.",
        spec=finished(alt.layer(*layers), height=PANEL_HEIGHT),
    )


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else printable(str(value))
