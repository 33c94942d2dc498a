"""The table of a front: every declared objective and constraint, and what is known; in a terminal below the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import polars as pl
from rich.console import Group, RenderableType

from ablate.base.plain_text import settings_text
from ablate.core.objectives import SIZE_METRICS
from ablate.results.front.cautions import cautions
from ablate.results.front.confirmation_text import confirmation_text, on_front_text, protocol_text
from ablate.results.front.curve_words import fit_lines
from ablate.results.front.findings import Findings
from ablate.results.front.fitted import search_fits
from ablate.results.front.sentences import difference_text
from ablate.results.front.tables import (
    MOST_ROWS,
    declared_metrics,
    differing,
    front_table,
    model_settings,
    network,
    note_text,
    objective_value,
    other_objectives,
    other_settings,
    quality_name,
    shared_settings,
)
from ablate.results.rendering.grid import MOST_LINES, Column, Grid, Paragraph, Row
from ablate.results.rendering.numbers import (
    DASH,
    capital,
    compact,
    count,
    evenly,
    format_signed,
    quantity,
    ratio,
    reach,
    spell_metric,
)
from ablate.results.trials.results import Results
from ablate.study import Study

FEWEST_LINES = 6  # of the table of one of many data sets in a terminal
KNOWN: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "params": ("Parameters", count),
    "flops": ("FLOPs", compact),
    "q": ("Q", ratio),
}


def front_grid(found: Findings) -> Grid:
    """Return the front of a data set as a table, the user's settings below it if they are not on it."""
    study, rows = found.results.study, found.rows
    name, shared = quality_name(study), shared_settings(study, rows)
    by = differing(rows, model_settings(study))
    training = differing(rows, [each for each in other_settings(study) if each not in shared])
    several = len({row["replicates"] for row in rows}) > 1
    many = len(by) < len([name for name in model_settings(study) if name not in shared])
    columns = [
        Column(
            heading="Settings",
            cell=lambda row: network(study, dict(row), shared, by) + " (yours)" * row["yours"],
            short=(lambda row: f"trial {row['trial']}" + " (yours)" * row["yours"]) if many else None,
        ),
        Column(heading="Trial", cell=lambda row: str(row["trial"]), wide=many),
        Column(
            heading=capital(f"{'test' if found.tested else 'validation'} {name.replace('_', ' ')}"),
            cell=lambda row: quantity(name, row[name]) + _reach(name, row),
        ),
        *_objectives(study),
        Column(
            heading="To the best",
            cell=lambda row: _difference(study, row),
            short=lambda row: _difference(study, row, short=True),
        ),
        Column(heading="P(front)" if other_objectives(study) else "P(best)", cell=lambda row: _chance(row)),
        Column(heading="Seeds", cell=lambda row: str(row["replicates"]) if several else "", wide=True),
        *_known(study, rows),
        Column(heading="Training", cell=lambda row: settings_text(row, training), wide=True),
    ]
    return Grid(
        caption=f"{'Front' if other_objectives(study) else 'Best'}{found.named('of')}",
        frame=pl.DataFrame(_shown(rows), infer_schema_length=None),
        columns=columns,
        csv="front.csv",
        total=len(rows),
        lines=max(MOST_LINES // len(study.labels), FEWEST_LINES),
    )


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a front that a table has: the best, the user's settings, and others spread along the front."""
    if len(rows) <= MOST_ROWS:
        return rows
    named = [row for row in rows if row["verdict"] == "best" or row["yours"]]
    spread = evenly([row for row in rows if row not in named], MOST_ROWS - len(named))
    return [row for row in rows if row in named or row in spread]


def _objectives(study: Study) -> Iterator[Column]:
    """Yield a column for each further objective, and for each metric that a constraint bounds."""
    for metric in declared_metrics(study)[1:]:
        yield Column(heading=capital(spell_metric(metric)), cell=partial(_value, metric))


def _value(metric: str, row: Row) -> str:
    return quantity(metric, objective_value(metric, row))


def _known(study: Study, rows: list[dict[str, Any]]) -> Iterator[Column]:
    """Yield the sizes that are known and differ, beside those that are objectives or bounded."""
    declared = {*declared_metrics(study)}
    for metric, (heading, text) in KNOWN.items():
        if metric not in declared and len({row.get(metric) for row in rows}) > 1:
            wide = metric != "params" or bool(declared & {*SIZE_METRICS})
            yield Column(heading=heading, cell=lambda row, m=metric, t=text: t(row.get(m)), wide=wide)  # type: ignore[misc]


def _reach(name: str, row: Row) -> str:
    return reach(name, row[name], row[f"{name}_low"], row[f"{name}_high"], row["replicates"])


def _difference(study: Study, row: Row, *, short: bool = False) -> str:
    """Return `−0.55 (−4.65 to +2.55), not distinguished`, `short` without the interval, or the verdict alone."""
    if row["difference"] is None:
        return DASH
    text = format_signed(quality_name(study), row["difference"]) if short else difference_text(study, row, unit="")
    return "best" if row["verdict"] == "best" else f"{text}, {row['verdict']}"


def _chance(row: Row) -> str:
    """Return P(front); below .6 it is too low after a search, so it is a lower bound."""
    chance = row["front_probability"]
    return DASH if chance is None else f"{'≥ ' if chance < 0.6 else ''}{chance:.2f}"


def front_lines(results: Results) -> RenderableType:
    """Return per data set its answer, its warnings and its front; intervals need the reports table."""
    datasets = front_table(results)["dataset"].unique(maintain_order=True).to_list()
    known = [*datasets, *(label for label in results.study.labels if label not in datasets)]
    return Group(*_parts(results, known), *fit_lines(search_fits(results).values()))


def _parts(results: Results, datasets: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the protocol if validation is the test split, then per data set its answer, warnings and table."""
    study, several = results.study, len(results.study.labels) > 1
    if study.protocol == "paper":
        yield from (Paragraph(protocol_text(study)), Paragraph(""))
    for found in (Findings(results, dataset) for dataset in datasets):
        on = f"{found.dataset}: " if several else ""
        yield Paragraph(f"{on}{found.answer_text}")
        if not found.front.height:
            continue
        for warning in cautions(found):
            yield Paragraph(f"Warning ({warning.code}): {warning.sentence}")
        words = confirmation_text(results, found.dataset)
        others = ""
        if found.tested:
            others = on_front_text(study, found.pooled.trials, found.dataset, found.front.height)
        facts = [capital(f"{words}{others}"), note_text(study, found.rows)]
        yield Paragraph("")
        yield Paragraph(f"{'. '.join(filter(None, facts))}.")
        yield front_grid(found)
        yield Paragraph("")
