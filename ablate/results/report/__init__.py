"""One self-contained page with figures as SVG and PDF and tables as CSV, built from the ledger's tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group

from ablate.results.comparison.rows import comparison_fits
from ablate.results.comparison.table import comparison_lines
from ablate.results.front.curve_words import fit_lines
from ablate.results.front.table import front_lines
from ablate.results.front.tables import front_table
from ablate.results.trials.results import Results

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ablate.results.rendering.drawing import Figure
    from ablate.results.report.frame import Page

__all__ = [
    "build_page",
    "comparison_lines",
    "draw_figures",
    "find_matters",
    "front_lines",
    "front_table",
    "result_lines",
    "write_report",
]


def result_lines(results: Results) -> RenderableType:
    """Return the result of a study for a terminal: its comparison if it has one, otherwise its fronts."""
    if results.study.compare is not None:
        return Group(comparison_lines(results), *fit_lines(comparison_fits(results).values()))
    return front_lines(results)


def draw_figures(results: Results) -> list[Figure]:
    """Return the figures of a study's page; a notebook shows each as a picture."""
    drawn: list[Figure] = _page_of(results).draw(results)
    return drawn


def write_report(results: Results, home: Path) -> Path:
    """Write home/report/index.html, the tables as CSV and the figures as SVG and PDF; return the page's path.

    A study with `compare` or `campaign` has its own kind of page (docs/compare.md, docs/campaign.md). Raises
    AblateError, in one line, if the folder cannot be written.
    """
    from ablate.results.report.frame import write_files

    return write_files(home / "report", build_page(results))


def build_page(results: Results, *, live: bool = False, matters: Mapping[str, dict[str, Any]] | None = None) -> Page:
    """Return the page of a study and what its files show.

    A `live` page is one for a server. `matters` are those of `find_matters`; by default they are computed.
    """
    known = {"matters": matters} if _kind(results) == "search" else {}
    page: Page = _page_of(results).build(results, live=live, **known)
    return page


def find_matters(results: Results) -> dict[str, dict[str, Any]]:
    """Return what a search's page says about the importance of settings, by data set; nothing for another study."""
    if _kind(results) != "search":
        return {}
    found: dict[str, dict[str, Any]] = _page_of(results).find_matters(results)
    return found


def _page_of(results: Results) -> Any:
    """Return the module of the page; it imports altair and vl-convert, which takes a second."""
    return import_module(f"ablate.results.report.{_kind(results)}")


def _kind(results: Results) -> str:
    study = results.study
    return "campaign" if study.campaign is not None else "search" if study.compare is None else "comparison"
