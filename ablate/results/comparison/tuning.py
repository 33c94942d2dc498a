"""The tuning of a comparison's rows on the page: its cost and the winners."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import polars as pl

from ablate.base.plain_text import counted
from ablate.results.comparison.tuning_budget import tuning_budget
from ablate.results.rendering.grid import Column, Grid, Row
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
    columns = [*_columns(study)]
    table = Grid(caption="Tuning of each row", frame=budget, columns=columns, csv=CSV, group="dataset")
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


def _columns(study: Study) -> Iterator[Column]:
    """Yield the columns of the table of budgets."""
    metric = study.tuning_objective.metric
    yield Column(heading="Row", cell=lambda row: " · ".join(filter(None, (row["variant"], row["configuration"]))))
    for name in study.tuned.names():
        yield Column(heading=f"Winning {name.partition('.')[2]} (seeds)", cell=partial(_winners, name))
    yield Column(heading=f"Best {spell_metric(metric)}", cell=lambda row: quantity(metric, row["score"]))
    yield Column(heading="Complete", cell=lambda row: f"{row['complete']} of {row['runs']}")
    for number in ("failed", "epochs", "seconds"):
        yield Column(heading=number.capitalize(), cell=lambda row, number=number: f"{row[number]:,.0f}")  # type: ignore[misc]


def _winners(name: str, row: Row) -> str:
    """Return the values of a setting that won, each with the number of its seeds, the most frequent first.

    A setting whose best is often at a border has an asterisk.
    """
    counts: Counter[str] = Counter()
    for winner in json.loads(row["winners"]):
        counts[_value(winner.get(name))] += winner["seeds"]
    listed = [f"{value} ({count})" for value, count in counts.most_common(MOST_WINNERS)]
    more = f" and {len(counts) - MOST_WINNERS} more" * (len(counts) > MOST_WINNERS)
    return (", ".join(listed) + more or "–") + "*" * (name in row["border"].split(", "))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else printable(str(value))
