"""The tables of a comparison: its rows with their means, and contrasts; in a terminal below sentences and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl
from rich.console import Group, RenderableType

from ablate.core.objectives import SIZE_METRICS
from ablate.results.comparison.comparison_warnings import comparison_warnings
from ablate.results.comparison.design import JUDGED
from ablate.results.comparison.rows import BASELINE, CONSTANTS, comparison, first_metric, verdicts
from ablate.results.comparison.verdicts import NextStep, next_step
from ablate.results.comparison.words import (
    MOST_SENTENCES,
    missing_text,
    next_text,
    scale_text,
    sentences,
    shared_text,
    warning_text,
)
from ablate.results.front.confirmation_text import protocol_text
from ablate.results.rendering.grid import Column, Grid, Paragraph, Row
from ablate.results.rendering.numbers import (
    DASH,
    capital,
    compact,
    count,
    format_signed,
    interval_text,
    printable,
    quantity,
    reach,
    spell_metric,
)
from ablate.results.trials.results import Results
from ablate.results.trials.study_warnings import StudyWarning
from ablate.study import Study

CSV = "comparison.csv"
EXACT = 100_000_000  # counts at or above this are rounded
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(kw_only=True)
class Footnotes:
    """The footnotes of a table's cells: each text occurs once, numbered from 1."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str | None) -> str:
        """Return the superscript number of `text`, or an empty text for no text."""
        if not text:
            return ""
        text = printable(text)
        if text not in self.texts:
            self.texts.append(text)
        return str(self.texts.index(text) + 1).translate(SUPERSCRIPTS)

    def lines(self) -> list[str]:
        """Return the footnotes, each after its number."""
        return [f"{str(i).translate(SUPERSCRIPTS)} {text}" for i, text in enumerate(self.texts, 1)]


def rows_grid(study: Study, table: pl.DataFrame, metric: str, *, said: bool = True) -> tuple[Grid, list[str]]:
    """Return the rows of one metric of `comparison`, the baseline among them, and the footnotes of its cells.

    A row that neither runs in a column nor is published there is not shown. Remarks about differences are footnotes
    unless they are `said` in sentences.
    """
    own = table.filter(pl.col("metric") == metric, pl.col("kind").is_in([BASELINE, *JUDGED]))
    own = own.filter((pl.col("planned") > 0) | pl.col("published").is_not_null())
    notes = Footnotes()
    for row in own.iter_rows(named=True):
        notes.mark(row["note"])
        notes.mark(row["mean_remark"])
        notes.mark("" if said else row["remark"])
    several = own["seeds"].drop_nulls().n_unique() > 1
    many = own.filter(pl.col("kind") != BASELINE).height > MOST_SENTENCES
    columns = [
        Column(heading="Variant", cell=lambda row: row["variant"]),
        Column(heading="Params", cell=lambda row: DASH if metric in SIZE_METRICS else _size(row)),
        Column(heading="Published", cell=lambda row: quantity(metric, row["published"]) + notes.mark(row["note"])),
        Column(
            heading="Ours" if own["published"].is_not_null().any() else "Mean",
            cell=lambda row: _mean(row) + notes.mark(row["mean_remark"]),
        ),
        Column(
            heading=f"− {printable(study.compared.baseline)}",
            cell=lambda row: _difference(row) + notes.mark("" if said else row["remark"]),
            wide=not many,
        ),
        Column(heading="Other samples too", cell=_others),
        Column(heading="Adjusted p", cell=lambda row: p_text(row["p_adjusted"])),
        Column(heading="Verdict", cell=lambda row: row["verdict"] or DASH, wide=True),
        Column(heading="Seeds", cell=lambda row: str(row["seeds"] or DASH) if several else ""),
        Column(heading="Complete", cell=_complete),
    ]
    grid = Grid(
        caption=capital(spell_metric(metric)),
        frame=own,
        columns=columns,
        csv=CSV,
        group="column",
    )
    return grid, notes.lines()


def contrasts_grid(table: pl.DataFrame, metric: str) -> Grid | None:
    """Return what each part adds alone, its pairs and twins, for one metric; None if the study has none."""
    own = table.filter(pl.col("metric") == metric, ~pl.col("kind").is_in([BASELINE, *JUDGED]))
    if not own.height:
        return None
    columns = [
        Column(heading="Contrast", cell=lambda row: f"{row['kind']}: {row['variant']}"),
        Column(heading="Difference", cell=_difference),
        Column(heading="Adjusted p", cell=lambda row: p_text(row["p_adjusted"])),
    ]
    return Grid(
        caption=f"Parts alone, in pairs and at equal size, by {spell_metric(metric)}",
        frame=own,
        columns=columns,
        csv=CSV,
        group="column",
    )


def p_text(p: float | None) -> str:
    """Return a p-value in three digits, or `<.001`."""
    return DASH if p is None else "<.001" if p < 0.001 else f"{p:.3f}"


def _size(row: Row) -> str:
    params = row["params"]
    text = compact(params) if params is not None and params >= EXACT else count(params)
    return text + "*" * (row["scaled"] and text != DASH)


def _mean(row: Row) -> str:
    """Return `90.12% ± 0.31`, the mean with the wider side of its interval."""
    metric, mean = row["metric"], row["mean"]
    if mean is None or math.isnan(mean):
        return DASH if mean is None else "diverged"
    star = "*" * row["scaled"]
    half = "" if metric in CONSTANTS else reach(metric, mean, row["mean_low"], row["mean_high"], row["seeds"])
    return f"{quantity(metric, mean)}{half}{star}"


def _difference(row: Row) -> str:
    """Return `−0.12 ± 0.28`, in points of a share."""
    metric, value = row["metric"], row["difference"]
    if value is None or math.isnan(value):
        return DASH if value is None else "diverged"
    text = format_signed(metric, value) + reach(metric, value, row["low"], row["high"], row["n"])
    return text + "*" * bool(row["scaled"])


def _others(row: Row) -> str:
    """Return the interval of the difference for other seeds and other samples too."""
    text = interval_text(row["metric"], row["samples_low"], row["samples_high"], row["n"] or 0).replace("-", "−")
    return text + "*" * (row["scaled"] and text != DASH)


def _complete(row: Row) -> str:
    done, planned = row["configurations"], row["planned"]
    return "" if done is None or done >= planned else f"{done} of {planned}"


def comparison_lines(results: Results) -> RenderableType:
    """Return the first metric of a comparison for a terminal, at least 80 columns wide."""
    study, metric = results.study, first_metric(results.study)
    protocol = [protocol_text(study)] if study.protocol == "paper" else []
    above = map(Paragraph, [*protocol, *filter(None, [scale_text(study), missing_text(study)])])
    judged = verdicts(results).filter(pl.col("metric") == metric)
    step = next_step(results, judged)
    return Group(*above, verdict_lines(study, judged, metric, comparison_warnings(results), step), Paragraph(""),
                 table_lines(results, metric))  # fmt: skip


def verdict_lines(
    study: Study, table: pl.DataFrame, metric: str, warnings: Sequence[StudyWarning], step: NextStep | None
) -> RenderableType:
    """Return the rows of `verdicts` of a metric for a terminal: what they share, sentences, the next step, warnings."""
    hint = next_text(study, metric, step)
    return Group(
        *([Paragraph(shared_text(study, table))] if table.height else []),
        *map(Paragraph, _sentences(table)),
        *([Paragraph(hint)] if hint else []),
        *(Paragraph(warning_text(each), style="yellow") for each in warnings),
    )


def table_lines(results: Results, metric: str) -> RenderableType:
    """Return the tables of a metric for a terminal, with their footnotes."""
    table, source = comparison(results), results.study.compared.source
    grid, notes = rows_grid(results.study, table, metric)
    further = contrasts_grid(table, metric)
    published = bool(grid.frame["published"].is_not_null().any())
    below = [*notes, *([f"Published figures: {printable(source)}"] if source and published else [])]
    lines: list[RenderableType] = [grid, *map(Paragraph, below)]
    if further is not None:
        lines += [Paragraph(""), Paragraph(f"{further.caption}:"), further]
    return Group(*lines)


def _sentences(table: pl.DataFrame) -> Iterator[str]:
    several, before = table["column"].n_unique() > 1, ""
    for column, name, text in sentences(table):
        if several and column != before:
            yield f"{column}:"
        before = column
        yield f"{'  ' * several}{name}: {text}"
