"""The answer and the front of every data set for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ablate.results.front.cautions import cautions, shrinkage_text, splits_text
from ablate.results.front.confirmation import confirmation_text, on_front_text, protocol_text
from ablate.results.front.findings import Findings
from ablate.results.front.summary import compared_cells
from ablate.results.front.tables import (
    MOST_ROWS,
    cost_cells,
    differing,
    front_cells,
    front_table,
    model_settings,
    more_text,
    own_costs,
    quality_name,
    shared_settings,
    shared_text,
    without_unknown_sizes,
)
from ablate.results.front.uncertainty import intervals_text
from ablate.results.rendering.numbers import DASH, printable, reach, spell_metric
from ablate.results.trials.results import Results

LINES = 2  # that a network's name may take before intervals are put below their means
NO_LIMIT = 10_000  # columns


def front_lines(results: Results) -> RenderableType:
    """Return per data set its answer, its warnings and its front as a rich table; intervals need the reports table."""
    datasets = front_table(results)["dataset"].unique(maintain_order=True).to_list()
    return Group(*_parts(results, [*datasets, *(label for label in results.study.labels if label not in datasets)]))


def _parts(results: Results, datasets: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the protocol if validation is the test split, then per data set its answer, warnings and table."""
    study = results.study
    if study.protocol == "paper":
        yield Text(f"{protocol_text(study)}\n")
    for found in (Findings(results, dataset) for dataset in datasets):
        if not found.front.height:
            yield Text(f"No front yet on {found.dataset}: {found.no_front}.")
            continue
        yield Text(printable(found.summary[0]))
        for warning in cautions(found):
            yield Text(printable(f"Warning ({warning.code}): {warning.sentence}"))
        facts = splits_text(found), shrinkage_text(found)
        if any(facts):
            yield Text(" ".join(text for text in facts if text))
        seeds = found.front["replicates"].unique().sort().to_list()
        means = f"Means over {' to '.join(map(str, seeds[:1] + seeds[1:][-1:]))} seeds" if found.assessed else ""
        said = means, intervals_text(study, found.front), shared_text(study, found.rows)
        if any(said):
            yield Text(printable(f"{'. '.join(filter(None, said))}."))
        yield Text("")
        yield _Front(found)
        if more := more_text(found.front.height, "front.csv"):
            yield Text(f"{more}\n")


@dataclass(frozen=True)
class _Front:
    """The front of a data set as a table; where its lines are too long for the terminal, names keep the room."""

    found: Findings

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        table = self._table(narrow=False)
        left = options.max_width - console.measure(table, options=options.update(width=NO_LIMIT)).maximum
        longest = max(cell_len(cells[0]) for cells in self._cells(narrow=False))
        yield table if left + longest >= longest / LINES else self._table(narrow=True)

    def _table(self, *, narrow: bool) -> Table:
        found = self.found
        study, dataset = found.results.study, found.dataset
        words = confirmation_text(found.results, dataset)
        others = on_front_text(found.pooled.trials, dataset, found.front.height) if found.tested else ""
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, expand=narrow)
        table.title, table.title_justify = Text(f"Front of {dataset}: {words}{others}"), "left"
        quality = f"{'test' if found.tested else 'validation'} {quality_name(study).replace('_', ' ')}"
        costs = [spell_metric(name) for name in own_costs(study)]
        headings = ["parameters", *costs, quality, "to the best", "P (front)", "trial"]
        if found.assessed is None:
            headings = ["parameters", "FLOPs", "Q", *costs, quality, "n", "trial"]
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
        study, rows = self.found.results.study, self.found.rows
        name, shared = quality_name(study), shared_settings(study, rows)
        by = differing(rows, model_settings(study))
        for row in rows[:MOST_ROWS]:
            label, params, flops, q, mean, _, n, trial = front_cells(study, row, shared, by)
            measured = f"{mean}{reach(name, row[name], row[f'{name}_low'], row[f'{name}_high'], row['replicates'])}"
            if self.found.assessed is None:
                yield [label, params, flops, q, *cost_cells(study, row), measured, n, trial]
                continue
            difference, verdict, chance = compared_cells(study, row)
            if narrow:
                measured, difference = measured.replace(" ±", "\n±"), difference.replace(" (", "\n(")
                measured = measured.replace(" (", "\n(").replace(" seeds are too", " seeds:\ntoo")
            below = f"{difference}\n{verdict}"
            yield [
                label,
                params,
                *cost_cells(study, row),
                measured,
                verdict if difference == DASH else below,
                chance,
                trial,
            ]
