"""One self-contained page with figures as PNG and tables as CSV, built from the ledger's tables alone."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group

from ablate.results.analysis.results import Results
from ablate.results.report.attention_maps import write_maps
from ablate.results.report.comparison.effects import effect_lines
from ablate.results.report.comparison.terminal import comparison_lines
from ablate.results.report.front.terminal import front_lines
from ablate.results.report.tables import front_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ablate.results.report.drawing import Figure

__all__ = [
    "comparison_lines",
    "draw_figures",
    "front_lines",
    "front_table",
    "result_lines",
    "write_maps",
    "write_report",
]


def result_lines(results: Results) -> RenderableType:
    """Return the result of a study for a terminal: its comparison if it has one, otherwise its fronts."""
    if results.study.compare is not None:
        return Group(comparison_lines(results), *effect_lines(results))
    return front_lines(results)


def draw_figures(results: Results) -> list[Figure]:
    """Return the figures of a study's page; a notebook shows each as a picture."""
    drawn: list[Figure] = _page_of(results).draw(results)
    return drawn


def write_report(results: Results, home: Path) -> Path:
    """Write home/report/index.html, *.csv and *.png; return the page's path.

    A study with `compare` or `campaign` has its own kind of page (docs/compare.md, docs/campaign.md). Raises
    AblateError, in one line, if the folder cannot be written.
    """
    path: Path = _page_of(results).write(results, home)
    return path


def _page_of(results: Results) -> Any:
    """Return the module of the page; it imports altair and vl-convert, which takes a second."""
    study = results.study
    kind = "campaign" if study.campaign is not None else "front" if study.compare is None else "comparison"
    return import_module(f"ablate.results.report.{kind}.page")
