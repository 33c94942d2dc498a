"""The front of every data set as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ablate.analysis import pooled
from ablate.report.confirmation import confirmation_text, failed_text, on_front_text, protocol_text
from ablate.report.numbers import reach
from ablate.report.racing import racing_text
from ablate.report.tables import front_cells, front_table, quality_name
from ablate.study import Study


def front_lines(
    study: Study, trials: pl.DataFrame, reports: pl.DataFrame | None = None, notes: Sequence[Any] = ()
) -> RenderableType:
    """Return the front as rich tables for a terminal, one per data set; intervals need the reports table."""
    if reports is not None:
        trials, reports = pooled(trials, reports)
    table = front_table(study, trials, reports)
    if not table.height:
        return Text("No front yet: no trial is complete.")
    return Group(*_parts(study, table, trials, notes))


def _parts(study: Study, table: pl.DataFrame, trials: pl.DataFrame, notes: Sequence[Any]) -> Iterator[RenderableType]:
    """Yield the protocol if validation is the test split, then per data set its table and its failures."""
    if study.protocol == "paper":
        yield Text(f"{protocol_text(study)}\n")
    for rows in table.partition_by("dataset", maintain_order=True):
        yield _front(study, rows, trials, notes)
        if race := racing_text(rows["dataset"][0], notes):
            yield Text(f"{race}\n")
        if failed := failed_text(study, trials, rows["dataset"][0]):
            yield Text(f"{failed}\n")


def _front(study: Study, rows: pl.DataFrame, trials: pl.DataFrame, notes: Sequence[Any]) -> Table:
    dataset, split = rows["dataset"][0], rows["split"][0]
    name = quality_name(study)
    words = confirmation_text(study, trials, dataset, split, notes)
    others = on_front_text(trials, dataset, rows.height) if split == "test" else ""
    title = f"Front of {dataset}: {words}{others}"
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    quality = f"{split} {name.replace('_', ' ')}"
    for heading in ("network", "parameters", "FLOPs", "Q", quality, "n", "trial"):
        table.add_column(heading, justify="left" if heading == "network" else "right", no_wrap=heading == "parameters")
    for row in rows.iter_rows(named=True):
        label, params, flops, q, mean, _, n, trial = front_cells(study, row)
        half = reach(name, row[name], row[f"{name}_low"], row[f"{name}_high"], row["replicates"])
        table.add_row(*(Text(cell) for cell in (label, params, flops, q, f"{mean}{half}", n, trial)))
    return table
