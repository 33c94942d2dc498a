"""The page of a designed comparison: answers, figures and tables beside the published figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ablate.analysis.comparison import cells, seed_values
from ablate.analysis.effects import effects, has_effects
from ablate.report.comparison.effect_figures import effect_figures
from ablate.report.comparison.effects import effects_section
from ablate.report.comparison.figures import comparison_figures
from ablate.report.comparison.table import ColumnBlock, Shown, block, metric_text, require_comparison
from ablate.report.comparison.wording import answers, methods, status_lines
from ablate.report.drawing import Figure, safe_stem
from ablate.report.frame import render_page, write_files
from ablate.report.numbers import printable, spell_metric
from ablate.report.tables import network
from ablate.study import Study

MOST_ERRORS = 50


def write(study: Study, trials: pl.DataFrame, reports: pl.DataFrame, home: Path, *, notes: Sequence[Any] = ()) -> Path:
    """Write page, CSV and PNG below home/report (see `ablate.report.write_report`)."""
    table, seeds = cells(study, trials, reports), seed_values(study, trials, reports)
    of_parts = effects(study, trials, reports)
    drawn = [*comparison_figures(study, table, seeds), *effect_figures(of_parts)]
    tables = {"comparison.csv": table, "comparison_seeds.csv": seeds, "trials.csv": trials}
    tables |= {"effects.csv": of_parts} if has_effects(study) else {}
    page = render(study, trials, reports, table, drawn, list(tables), notes, of_parts)
    return write_files(home / "report", page, tables=tables, drawn=drawn)


def draw(study: Study, trials: pl.DataFrame, reports: pl.DataFrame) -> list[Figure]:
    """Return the figures of the page."""
    found = comparison_figures(study, cells(study, trials, reports), seed_values(study, trials, reports))
    return [*found, *effect_figures(effects(study, trials, reports))]


def render(
    study: Study,
    trials: pl.DataFrame,
    reports: pl.DataFrame,
    table: pl.DataFrame,
    drawn: Sequence[Figure],
    files: list[str],
    notes: Sequence[Any],
    of_parts: pl.DataFrame,
) -> str:
    """Return the page as HTML."""
    by_stem = {figure.stem: figure for figure in drawn}
    failed = trials.filter(pl.col("state") == "FAIL")
    return render_page(
        "comparison.html.j2",
        study,
        drawn,
        status=status_lines(study, trials, reports, notes),
        answers=answers(study, table),
        answered=spell_metric(require_comparison(study).metrics[0]),
        sections=[
            _section(study, block(study, table, metric), by_stem)
            for metric in table["metric"].unique(maintain_order=True)
        ],
        parts_effects=effects_section(study, of_parts, by_stem),
        notes=[printable(note) for note in require_comparison(study).notes],
        errors=[_error(study, row) for row in failed.head(MOST_ERRORS).iter_rows(named=True)],
        failed=failed.height,
        unlisted=max(failed.height - MOST_ERRORS, 0),
        methods=methods(study),
        files=files,
    )


def _section(study: Study, found: ColumnBlock, drawn: dict[str, Figure]) -> dict[str, Any]:
    """Return the template's values for one metric."""
    stem = f"compare-{safe_stem(found.metric)}"
    name = spell_metric(found.metric)
    shown = _headings(study, found)
    return {
        "id": stem,
        "title": f"{name[:1].upper()}{name[1:]}",
        "text": metric_text(study, found),
        "figure": drawn.get(stem),
        "headings": list(shown.values()),
        "groups": {
            printable(column): [[getattr(row, name) for name in shown] for row in rows]
            for column, rows in found.rows.items()
        },
        "notes": found.notes,
    }


def _headings(study: Study, found: ColumnBlock) -> dict[str, str]:
    """Return the headings of a metric's table by field of `Shown`."""
    against = printable(require_comparison(study).baseline)
    rows: list[Shown] = [row for group in found.rows.values() for row in group]
    measured = bool(found.seeds)
    there = {
        "variant": ("Variant", True),
        "params": ("Parameters", found.metric != "params"),
        "published": ("Published", found.published),
        "mean": ("Ours", True),
        "interval": ("95% interval", measured),
        "n": ("Seeds", len(found.seeds) > 1),
        "difference": ("Ours − published", found.published),
        "mean_against": (f"Against {against}", found.paired and measured),
        "against_interval": ("95% interval", found.paired and measured),
        "correlation": ("Correlation", any(row.correlation != "–" for row in rows)),
        "complete": ("Complete", found.incomplete or len(found.planned) > 1),
    }
    return {name: heading for name, (heading, occurs) in there.items() if occurs}


def _error(study: Study, row: dict[str, Any]) -> tuple[str, str]:
    trial = f"{row['dataset']} trial {row['trial']} ({network(study, row)})"
    return printable(trial), printable(row["error"] or "no reason was recorded")
