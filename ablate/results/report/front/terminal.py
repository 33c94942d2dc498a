"""The answer and the front of every data set for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ablate.results.analysis import confirmations, pooled
from ablate.results.analysis.assessment import Assessment, assessments
from ablate.results.report.confirmation import confirmation_text, on_front_text, protocol_text, withheld_text
from ablate.results.report.front.cautions import cautions, shrinkage_text, splits_text
from ablate.results.report.front.summary import compared_cells, summary
from ablate.results.report.front.uncertainty import intervals_text
from ablate.results.report.numbers import DASH, printable, reach
from ablate.results.report.racing import racing_text
from ablate.results.report.tables import (
    front_cells,
    front_table,
    quality_name,
    shared_settings,
    shared_text,
    without_unknown_sizes,
)
from ablate.study import Study

LINES = 2  # that a network's name may take before intervals are put below their means
NO_LIMIT = 10_000  # columns


def front_lines(
    study: Study, trials: pl.DataFrame, reports: pl.DataFrame | None = None, notes: Sequence[Any] = ()
) -> RenderableType:
    """Return per data set its answer, its warnings and its front as a rich table; intervals need the reports table."""
    assessed = assessments(study, trials, reports, notes) if reports is not None else {}
    table = front_table(study, trials, reports, assessed=assessed)
    if not table.height:
        return Text("No front yet: no complete trial has a value of every objective.")
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
        facts = splits_text(study, trials, dataset, tested=tested), shrinkage_text(study, together, dataset)
        if any(facts):
            yield Text(" ".join(text for text in facts if text))
        said = [_seeds_text(rows)] if dataset in assessed else []
        said += [text] if (text := intervals_text(study, rows)) else []
        said += [text] if (text := shared_text(study, rows.rows(named=True))) else []
        if said:
            yield Text(printable(f"{'. '.join(said)}."))
        yield Text("")
        yield _Front(study, rows, together, notes, compared=dataset in assessed)
        if race := racing_text(dataset, notes):
            yield Text(f"{race}\n")


class _Front:
    """The front of a data set as a table; where its lines are too long for the terminal, names keep the room."""

    def __init__(
        self, study: Study, rows: pl.DataFrame, trials: pl.DataFrame, notes: Sequence[Any], *, compared: bool
    ) -> None:
        self._study, self._rows, self._trials, self._notes, self._compared = study, rows, trials, notes, compared

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        table = self._table(narrow=False)
        left = options.max_width - console.measure(table, options=options.update(width=NO_LIMIT)).maximum
        longest = max(cell_len(cells[0]) for cells in self._cells(narrow=False))
        yield table if left + longest >= longest / LINES else self._table(narrow=True)

    def _table(self, *, narrow: bool) -> Table:
        rows = self._rows
        dataset, split = rows["dataset"][0], rows["split"][0]
        words = confirmation_text(self._study, self._trials, dataset, split, self._notes)
        others = on_front_text(self._trials, dataset, rows.height) if split == "test" else ""
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, expand=narrow)
        table.title, table.title_justify = Text(f"Front of {dataset}: {words}{others}"), "left"
        quality = f"{split} {quality_name(self._study).replace('_', ' ')}"
        headings = ["parameters", quality, "to the best", "P (front)", "trial"]
        if not self._compared:
            headings = ["parameters", "FLOPs", "Q", quality, "n", "trial"]
        headings, lines = without_unknown_sizes(["network", *headings], [*self._cells(narrow=narrow)])
        for heading in headings:
            shown = heading.replace(" ", "\n") if narrow and heading != "to the best" else heading
            if heading == "network":
                table.add_column(heading, ratio=1)
            else:
                table.add_column(shown, justify="right", no_wrap=heading in ("parameters", "to the best", "trial"))
        for cells in lines:
            table.add_row(*map(Text, cells))
        return table

    def _cells(self, *, narrow: bool) -> Iterator[list[str]]:
        """Yield the cells of each row; the verdict is below the difference, and so is the interval if it is narrow."""
        study, name = self._study, quality_name(self._study)
        shared = shared_settings(study, self._rows.rows(named=True))
        for row in self._rows.iter_rows(named=True):
            label, params, flops, q, mean, _, n, trial = front_cells(study, row, shared)
            measured = f"{mean}{reach(name, row[name], row[f'{name}_low'], row[f'{name}_high'], row['replicates'])}"
            if not self._compared:
                yield [label, params, flops, q, measured, n, trial]
                continue
            difference, verdict, chance = compared_cells(study, row)
            if narrow:
                measured, difference = measured.replace(" ±", "\n±"), difference.replace(" (", "\n(")
            below = f"{difference}\n{verdict}"
            yield [label, params, measured, verdict if difference == DASH else below, chance, trial]


def _seeds_text(rows: pl.DataFrame) -> str:
    """Return how many seeds each mean is over, for a table without a column of it."""
    seeds = rows["replicates"].unique().sort().to_list()
    return f"Means over {' to '.join(map(str, seeds[:1] + seeds[1:][-1:]))} seeds"
