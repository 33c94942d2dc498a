"""The answer and the front of every data set for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ablate.analysis import confirmations, pooled
from ablate.analysis.assessment import Assessment, assessments
from ablate.report.confirmation import confirmation_text, on_front_text, protocol_text, withheld_text
from ablate.report.front.cautions import cautions, shrinkage_text, splits_text
from ablate.report.front.summary import compared_cells, summary
from ablate.report.numbers import DASH, printable, reach
from ablate.report.racing import racing_text
from ablate.report.tables import front_cells, front_table, quality_name, shared_settings, shared_text
from ablate.study import Study


def front_lines(
    study: Study, trials: pl.DataFrame, reports: pl.DataFrame | None = None, notes: Sequence[Any] = ()
) -> RenderableType:
    """Return per data set its answer, its warnings and its front as a rich table; intervals need the reports table."""
    assessed = assessments(study, trials, reports, notes) if reports is not None else {}
    table = front_table(study, trials, reports, assessed=assessed)
    if not table.height:
        return Text("No front yet: no trial is complete.")
    return Group(*_parts(study, table, trials, reports, notes, assessed))


def _parts(
    study: Study,
    table: pl.DataFrame,
    trials: pl.DataFrame,
    reports: pl.DataFrame | None,
    notes: Sequence[Any],
    assessed: Mapping[str, Assessment],
) -> Iterator[RenderableType]:
    """Yield the protocol if validation is the test split, then per data set its answer, warnings and table."""
    if study.protocol == "paper":
        yield Text(f"{protocol_text(study)}\n")
    together = trials if reports is None else pooled(trials, reports)[0]
    for rows in table.partition_by("dataset", maintain_order=True):
        dataset, tested = rows["dataset"][0], rows["split"][0] == "test"
        known = confirmations(trials, dataset, notes)
        answer = withheld_text(study, known) or summary(study, dataset, rows, assessed.get(dataset))[0]
        yield Text(printable(answer))
        for warning in cautions(study, dataset, trials, rows, known):
            yield Text(printable(f"Warning ({warning.code}): {warning.text}."))
        facts = splits_text(study, trials, dataset, tested=tested), shrinkage_text(study, rows)
        if any(facts):
            yield Text(" ".join(text for text in facts if text))
        said = [_seeds_text(rows)] if dataset in assessed else []
        said += [text] if (text := shared_text(study, rows.rows(named=True))) else []
        if said:
            yield Text(printable(f"{'. '.join(said)}."))
        yield Text("")
        yield _front(study, rows, together, notes, compared=dataset in assessed)
        if race := racing_text(dataset, notes):
            yield Text(f"{race}\n")


def _front(study: Study, rows: pl.DataFrame, trials: pl.DataFrame, notes: Sequence[Any], *, compared: bool) -> Table:
    dataset, split = rows["dataset"][0], rows["split"][0]
    words = confirmation_text(study, trials, dataset, split, notes)
    others = on_front_text(trials, dataset, rows.height) if split == "test" else ""
    shared = shared_settings(study, rows.rows(named=True))
    title = Text(f"Front of {dataset}: {words}{others}")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    quality = f"{split} {quality_name(study).replace('_', ' ')}"
    headings = ["parameters", quality, "to the best", "P (front)", "trial"]
    if not compared:
        headings = ["parameters", "FLOPs", "Q", quality, "n", "trial"]
    table.add_column("network", overflow="fold", ratio=1)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=heading in ("parameters", "to the best", "trial"))
    for row in rows.iter_rows(named=True):
        table.add_row(*map(Text, _cells(study, row, shared, compared=compared)))
    return table


def _cells(study: Study, row: dict[str, Any], shared: Mapping[str, Any], *, compared: bool) -> list[str]:
    """Return the cells of one row; in a comparison the verdict is below the difference, to fit 80 columns."""
    name = quality_name(study)
    label, params, flops, q, mean, _, n, trial = front_cells(study, row, shared)
    measured = f"{mean}{reach(name, row[name], row[f'{name}_low'], row[f'{name}_high'], row['replicates'])}"
    if not compared:
        return [label, params, flops, q, measured, n, trial]
    difference, verdict, chance = compared_cells(study, row)
    return [label, params, measured, verdict if difference == DASH else f"{difference}\n{verdict}", chance, trial]


def _seeds_text(rows: pl.DataFrame) -> str:
    """Return how many seeds each mean is over, for a table without a column of it."""
    seeds = rows["replicates"].unique().sort().to_list()
    return f"Means over {' to '.join(map(str, seeds[:1] + seeds[1:][-1:]))} seeds"
