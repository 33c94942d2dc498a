"""One self-contained page with figures as PNG and tables as CSV, built from the ledger's tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group

from ablate.results.report.attention_maps import write_maps
from ablate.results.report.comparison.effects import effect_lines
from ablate.results.report.comparison.terminal import comparison_lines
from ablate.results.report.front.terminal import front_lines
from ablate.results.report.tables import front_table

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from ablate.results.report.drawing import Figure
    from ablate.study import Study

__all__ = [
    "comparison_lines",
    "draw_figures",
    "front_lines",
    "front_table",
    "result_lines",
    "write_maps",
    "write_report",
]


def result_lines(
    study: Study, trials: pl.DataFrame, reports: pl.DataFrame, notes: Sequence[Any] = ()
) -> RenderableType:
    """Return the result of a study for a terminal: its comparison if it has one, otherwise its fronts."""
    if study.compare is not None:
        return Group(comparison_lines(study, trials, reports, notes), *effect_lines(study, trials, reports))
    return front_lines(study, trials, reports, notes)


def draw_figures(study: Study, trials: pl.DataFrame, reports: pl.DataFrame, notes: Sequence[Any] = ()) -> list[Figure]:
    """Return the figures of a study's page; a notebook shows each as a picture."""
    from ablate.results.report.comparison import page as comparison_page
    from ablate.results.report.front import page

    if study.compare is not None:
        return comparison_page.draw(study, trials, reports, notes)
    return page.draw(study, trials, reports, notes)


def write_report(
    study: Study, trials: pl.DataFrame, reports: pl.DataFrame, home: Path, *, notes: Sequence[Any] = ()
) -> Path:
    """Write home/report/index.html, *.csv and *.png from the trials and reports tables; return the page's path.

    `notes` are the ledger's events (kind, dataset, payload, created_at). A study with `compare` has its own kind of
    page (docs/compare.md). Raises AblateError, in one line, if the folder cannot be written.
    """
    # the import of altair and vl-convert takes a second, and the terminal's tables do not need them
    from ablate.results.report.comparison import page as comparison_page
    from ablate.results.report.front import page

    if study.compare is not None:
        return comparison_page.write(study, trials, reports, home, notes=notes)
    return page.write(study, trials, reports, home, notes=notes)
