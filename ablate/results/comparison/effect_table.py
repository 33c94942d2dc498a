"""Effects and interactions of a comparison's parts: the page's section, its figures, and the terminal's table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ablate.results.comparison.design import design_lines
from ablate.results.comparison.effects import (
    ADD_ONE_IN,
    AVERAGE,
    EQUAL_SIZE,
    INTERACTION,
    LEAVE_ONE_OUT,
    SHAPLEY,
    effects,
    has_effects,
)
from ablate.results.rendering.latex import PageTable
from ablate.results.rendering.numbers import (
    DASH,
    equal_seeds,
    format_signed,
    interval_text,
    printable,
    reach,
    spell_metric,
)
from ablate.results.trials.results import Results
from ablate.study import Study

if TYPE_CHECKING:
    from ablate.results.rendering.drawing import Figure

PER_PART = {  # kind: heading on the page, in a terminal
    LEAVE_ONE_OUT: ("Left out of the complete network", "left out"),
    ADD_ONE_IN: ("Added to the bare network", "added"),
    AVERAGE: ("On average over the design", "average"),
    SHAPLEY: ("Shapley value", "Shapley"),
    EQUAL_SIZE: ("At equal size, against its twin", "equal size"),
}
INTERACTIONS_SHOWN = 10  # in a terminal
KINDS_SHOWN = 4  # in a terminal of 80 columns; the Shapley values are then left out
Row = Mapping[str, Any]

_MEANING = {
    LEAVE_ONE_OUT: "Left out: the complete network minus the one without the part; of another form: that form minus "
    "the complete network.",
    ADD_ONE_IN: "Added: the network with this part alone minus the bare one. A part that gains more when it is added "
    "than it costs to leave out is redundant: another part does the same.",
    AVERAGE: "Average: the difference that a part makes, averaged over all combinations of the others (least squares "
    "with a block for each data set and seed). Its interval and that of interactions assume that an effect is the same "
    "in every seed and data set but for noise; those of the other columns do not.",
    SHAPLEY: "Shapley: the gain of a part, averaged over all orders of adding the parts. The values of all parts add "
    "up to the complete network minus the bare one.",
    EQUAL_SIZE: "Equal size: the twin, which has the part and is narrowed to as many parameters, minus the network "
    "without the part. What remains is the part and not the capacity.",
    INTERACTION: "Interaction: how much the effect of one part grows where the other one is there (a difference of "
    "differences); below zero, the two do the same in part. p is adjusted over all terms (Holm).",
}


def effects_section(study: Study, found: pl.DataFrame, drawn: Mapping[str, Figure]) -> dict[str, Any] | None:
    """Return the values of effects.html.j2, or None if the study has no effects beside leaving out.

    `drawn` are the page's figures by file stem.
    """
    if not has_effects(study):
        return None
    return {
        "design": design_lines(study),
        "meaning": [text for kind, text in _MEANING.items() if kind in set(found["kind"])],
        "metrics": [_metric(found, metric, drawn) for metric in found["metric"].unique(maintain_order=True)],
    }


def figure_stem(metric: str) -> str:
    """Return the file stem of the figure of a metric, whose name has only letters, digits and `_`."""
    return f"effects-{metric}"


def _metric(found: pl.DataFrame, metric: str, drawn: Mapping[str, Figure]) -> dict[str, Any]:
    own = found.filter(pl.col("metric") == metric)
    kinds = [kind for kind in PER_PART if kind in set(own["kind"])]
    fitted = own.filter(pl.col("kind") == INTERACTION)
    title = spell_metric(metric)
    parts = PageTable(
        stem=figure_stem(metric),
        caption=f"Effects of the parts on {title}",
        headings=["Part", *(PER_PART[kind][0] for kind in kinds)],
        groups={
            printable(str(c)): [
                [printable(_term(row)), *(_with_interval(row[kind]) if kind in row else DASH for kind in kinds)]
                for row in rows
            ]
            for c, rows in _by_part(own)
        },
        csv="effects.csv",
    )
    interactions = PageTable(
        stem=f"interactions-{metric}",
        caption=f"Interactions by {title}",
        headings=["Interaction", "Estimate", "95% interval", "p", "p (Holm)"],
        groups={
            printable(str(column)): [_interaction_cells(row) for row in part.iter_rows(named=True)]
            for (column,), part in fitted.group_by("column", maintain_order=True)
        },
        csv="effects.csv",
    )
    tables = [table for table in (parts, interactions) if table.groups]
    return {"figure": drawn.get(figure_stem(metric)), "title": title, "tables": tables}


def _by_part(own: pl.DataFrame) -> Iterator[tuple[str, list[dict[str, Row]]]]:
    """Yield for each column the effects of each part, by kind."""
    for (column,), rows in own.filter(pl.col("kind").is_in(list(PER_PART))).group_by("column", maintain_order=True):
        parts = rows.partition_by("term", maintain_order=True)
        yield str(column), [{row["kind"]: row for row in part.iter_rows(named=True)} for part in parts]


def _with_interval(row: Row) -> str:
    """Return `+2.31 (1.90 to 2.72)`, in points for a share."""
    text, span = _estimate(row), _span(row)
    return text if span == DASH or text == DASH else f"{text} ({span})"


def _interaction_cells(row: Row) -> list[str]:
    return [
        printable(row["term"]),
        _estimate(row),
        _span(row),
        _p(row["p"]),
        _p(row["p_holm"]),
    ]


def _estimate(row: Row) -> str:
    value = row["estimate"]
    if value is not None and math.isnan(value):
        return "diverged"
    return format_signed(row["metric"], value) + ("*" if row["scaled"] and value is not None else "")


def _span(row: Row) -> str:
    return interval_text(row["metric"], row["low"], row["high"], row["n"] or 0).replace("-", "−")


def _p(value: float | None) -> str:
    if value is None:
        return DASH
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def effect_lines(results: Results) -> list[RenderableType]:
    """Return the effects of the first metric for a terminal, at most 80 columns wide; empty if there are none."""
    study = results.study
    if not has_effects(study):
        return []
    found = effects(results).filter(pl.col("metric") == study.compared.metrics[0])
    there = [kind for kind in PER_PART if kind in set(found["kind"])]
    kinds = there if len(there) <= KINDS_SHOWN else [kind for kind in there if kind != SHAPLEY]
    table = _table(["part", *(PER_PART[kind][1] for kind in kinds)])
    several = found["column"].n_unique() > 1
    for column, rows in _by_part(found):
        if several:
            table.add_row(Text(printable(column), style="bold"))
        for row in rows:
            table.add_row(*map(Text, (printable(_term(row)), *(_brief(row.get(kind)) for kind in kinds))))
    lines: list[RenderableType] = [Text("\nEffects of the parts: with the part minus without it"), Text(), table]
    lines += [Text("The Shapley values are on the page.")] if kinds != there else []
    fitted = found.filter(pl.col("kind") == INTERACTION)
    return [*lines, *(_interaction_lines(fitted, several=several) if fitted.height else [])]


def _interaction_lines(fitted: pl.DataFrame, *, several: bool) -> list[RenderableType]:
    table = _table(["interaction", "estimate", "p (Holm)"])
    largest = fitted.sort(pl.col("estimate").abs(), descending=True, nulls_last=True, maintain_order=True)
    for row in largest.head(INTERACTIONS_SHOWN).iter_rows(named=True):
        name = f"{row['column']} {row['term']}" if several else row["term"]
        table.add_row(*map(Text, (printable(name), _short(row), _p(row["p_holm"]))))
    more = fitted.height - INTERACTIONS_SHOWN
    return [Text(), table, *([Text(f"{more} more interactions are on the page.")] if more > 0 else [])]


def _table(headings: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for index, text in enumerate(headings):
        table.add_column(text, justify="right" if index else "left", no_wrap=bool(index), overflow="fold")
    return table


def _term(row: Mapping[str, Row]) -> str:
    return str(next(iter(row.values()))["term"])


def _brief(row: Row | None) -> str:
    """Return `_short` for a narrow column, without the words for an interval that has no width."""
    return _estimate(row) if row is not None and equal_seeds(row["low"], row["high"]) else _short(row)


def _short(row: Row | None) -> str:
    """Return `+2.31 ± 0.41`, in points for a share."""
    if row is None or row["estimate"] is None or math.isnan(row["estimate"]):
        return DASH if row is None else _estimate(row)
    return _estimate(row) + reach(row["metric"], row["estimate"], row["low"], row["high"], row["n"])
