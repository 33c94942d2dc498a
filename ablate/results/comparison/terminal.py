"""A comparison in a terminal: a sentence for each row, what is next and what limits it, then the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from ablate.results.comparison.comparison_warnings import comparison_warnings
from ablate.results.comparison.rows import comparison, first_metric, verdicts
from ablate.results.comparison.table import contrasts_grid, rows_grid
from ablate.results.comparison.verdicts import NextStep, next_step
from ablate.results.comparison.words import (
    missing_text,
    next_text,
    scale_text,
    sentences,
    shared_text,
    warning_text,
)
from ablate.results.front.confirmation import protocol_text
from ablate.results.rendering.numbers import printable
from ablate.results.trials.results import Results
from ablate.results.trials.study_warnings import StudyWarning
from ablate.study import Study


def comparison_lines(results: Results) -> RenderableType:
    """Return the first metric of a comparison for a terminal, at least 80 columns wide."""
    study, metric = results.study, first_metric(results.study)
    protocol = [protocol_text(study)] if study.protocol == "paper" else []
    above = map(Text, [*protocol, *filter(None, [scale_text(study), missing_text(study)])])
    judged = verdicts(results).filter(pl.col("metric") == metric)
    step = next_step(results, judged)
    return Group(*above, verdict_lines(study, judged, metric, comparison_warnings(results), step), Text(),
                 table_lines(results, metric))  # fmt: skip


def verdict_lines(
    study: Study, table: pl.DataFrame, metric: str, warnings: Sequence[StudyWarning], step: NextStep | None
) -> RenderableType:
    """Return the rows of `verdicts` of a metric for a terminal: what they share, sentences, the next step, warnings."""
    hint = next_text(study, metric, step)
    return Group(
        *([Text(shared_text(study, table))] if table.height else []),
        *map(Text, _sentences(table)),
        *([Text(hint)] if hint else []),
        *(Text(warning_text(each), style="yellow") for each in warnings),
    )


def table_lines(results: Results, metric: str) -> RenderableType:
    """Return the tables of a metric for a terminal, with their footnotes."""
    table, source = comparison(results), results.study.compared.source
    grid, notes = rows_grid(results.study, table, metric)
    further = contrasts_grid(table, metric)
    published = bool(grid.frame["published"].is_not_null().any())
    below = [*notes, *([f"Published figures: {printable(source)}"] if source and published else [])]
    lines: list[RenderableType] = [grid, *map(Text, below)]
    if further is not None:
        lines += [Text(), Text(f"{further.caption}:"), further]
    return Group(*lines)


def _sentences(table: pl.DataFrame) -> Iterator[str]:
    several, before = table["column"].n_unique() > 1, ""
    for column, name, text in sentences(table):
        if several and column != before:
            yield f"{column}:"
        before = column
        yield f"{'  ' * several}{name}: {text}"
