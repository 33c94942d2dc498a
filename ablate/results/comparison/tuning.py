"""The tuning of a comparison's rows on the page: its cost and the winners."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl

from ablate.base.plain_text import counted
from ablate.results.comparison.tuning_budget import tuning_budget
from ablate.results.rendering.grid import PageTable
from ablate.results.rendering.numbers import printable, quantity, spell_metric, spell_seconds
from ablate.results.trials.results import Results
from ablate.study import Study
from ablate.study.tuning_seeds import tuning_seeds

CSV = "tuning.csv"
MOST_WINNERS = 3  # winning values in a cell


def tuning_section(results: Results) -> dict[str, Any] | None:
    """Return the template's values of the page's section on tuning, None for a comparison that is not tuned."""
    study = results.study
    if study.tune is None:
        return None
    budget = tuning_budget(results)
    table = PageTable(
        caption="Tuning of each row",
        headings=headings(study),
        groups={
            printable(part["dataset"][0]): [row_cells(study, row) for row in part.iter_rows(named=True)]
            for part in budget.partition_by("dataset", maintain_order=True)
        },
        csv=CSV,
    )
    return {"text": tuning_text(study, budget), "table": table}


def tuning_text(study: Study, budget: pl.DataFrame) -> str:
    """Return what was tuned and what it cost, in words."""
    names = ", ".join(study.tuned.names())
    if not budget.height:
        return f"Every row tunes {names} first; no tuning trial has begun."
    tried = sorted({row["runs"] // row["seeds"] for row in budget.iter_rows(named=True)})
    count = f"{tried[0]}" if len(tried) == 1 else f"{tried[0]} to {tried[-1]}"
    seconds, number = float(budget["seconds"].sum()), tuning_seeds(study)
    seeds = counted(number, "seed")
    own = number == study.replicates
    turn = "its own tuning seed alone" if own else "one of these seeds, in turn" if number > 1 else "this seed"
    so = (" So each seed repeats tuning and training: differences and verdicts are of the part and its tuning.") * own
    metric = spell_metric(study.tuning_objective.metric)
    return (
        f"Every row tuned {names} first: {count} values on {seeds}, the same values for all. In all "
        f"{budget['runs'].sum():,} runs, {budget['epochs'].sum():,} epochs, {spell_seconds(seconds)} of training. Each "
        f"seed of a row was then trained with the values of the best {metric} on {turn}.{so}"
    )


def headings(study: Study) -> list[str]:
    """Return the headings of the table of budgets."""
    tuned = [f"Winning {name.partition('.')[2]} (seeds)" for name in study.tuned.names()]
    best = f"Best {spell_metric(study.tuning_objective.metric)}"
    return ["Row", *tuned, best, "Complete", "Failed", "Epochs", "Seconds"]


def row_cells(study: Study, row: Mapping[str, Any]) -> list[str]:
    """Return the cells of one row under `headings`; a setting whose best is often at a border has an asterisk."""
    winners, border = json.loads(row["winners"]), row["border"].split(", ")
    best = [_winners(winners, name) + "*" * (name in border) for name in study.tuned.names()]
    name = " · ".join(part for part in (row["variant"], row["configuration"]) if part)
    score = quantity(study.tuning_objective.metric, row["score"])
    complete = f"{row['complete']} of {row['runs']}"
    cost = [str(row["failed"]), f"{row['epochs']:,}", f"{row['seconds']:,.0f}"]
    return [printable(name), *best, score, complete, *cost]


def _winners(winners: list[dict[str, Any]], name: str) -> str:
    """Return the values of a setting that won, each with the number of its seeds, the most frequent first."""
    counts: Counter[str] = Counter()
    for winner in winners:
        counts[_value(winner.get(name))] += winner["seeds"]
    listed = [f"{value} ({count})" for value, count in counts.most_common(MOST_WINNERS)]
    return ", ".join(listed) + (f" and {len(counts) - MOST_WINNERS} more" * (len(counts) > MOST_WINNERS)) or "–"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else printable(str(value))
