"""The page of a designed comparison: answers, figures and tables beside the published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ablate.core.objectives import given_for
from ablate.results.analysis.comparison import cells, seed_values
from ablate.results.analysis.comparison_warnings import comparison_warnings
from ablate.results.analysis.effects import effects, has_effects
from ablate.results.analysis.looks import compared_looks
from ablate.results.analysis.next_step import next_step
from ablate.results.analysis.verdicts import seed_differences, verdicts
from ablate.results.report.comparison.effect_figures import effect_figures
from ablate.results.report.comparison.effects import effects_section
from ablate.results.report.comparison.figures import comparison_figures
from ablate.results.report.comparison.forest import forest_figures
from ablate.results.report.comparison.table import ColumnBlock, Shown, block, metric_text, require_comparison
from ablate.results.report.comparison.tuning import tuning_figures, tuning_section, tuning_tables
from ablate.results.report.comparison.verdicts import hint_text, step_text, verdict_answers, verdict_block
from ablate.results.report.comparison.wording import answers, methods, status_lines
from ablate.results.report.drawing import Figure, safe_stem
from ablate.results.report.frame import render_page, write_files
from ablate.results.report.latex import PageTable
from ablate.results.report.numbers import printable, spell_metric
from ablate.results.report.tables import network
from ablate.study import Study

MOST_ERRORS = 50


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables of a comparison's page."""

    cells: pl.DataFrame
    verdicts: pl.DataFrame
    seeds: pl.DataFrame
    differences: pl.DataFrame
    effects: pl.DataFrame

    @staticmethod
    def of(study: Study, trials: pl.DataFrame, reports: pl.DataFrame, notes: Sequence[Any]) -> Tables:
        """Return the tables of a study's trials, reports and events."""
        return Tables(
            cells=cells(study, trials, reports),
            verdicts=verdicts(study, trials, reports, look=len(compared_looks(notes))),
            seeds=seed_values(study, trials, reports),
            differences=seed_differences(study, trials, reports),
            effects=effects(study, trials, reports),
        )

    def figures(self, study: Study) -> list[Figure]:
        """Return the figures: of each metric the means, and the differences from the baseline."""
        drawn = comparison_figures(study, self.cells, self.seeds)
        return [*drawn, *forest_figures(study, self.verdicts, self.differences), *effect_figures(self.effects)]


def write(study: Study, trials: pl.DataFrame, reports: pl.DataFrame, home: Path, *, notes: Sequence[Any] = ()) -> Path:
    """Write the page and its files below home/report (see `ablate.results.report.write_report`)."""
    found = Tables.of(study, trials, reports, notes)
    of_tuning = tuning_tables(study, trials, reports)
    tuned, drawn = tuning_figures(study, of_tuning), found.figures(study)
    drawn += tuned.values()
    tables = {
        "comparison.csv": found.cells,
        "verdicts.csv": found.verdicts,
        "comparison_seeds.csv": found.seeds,
        **({"effects.csv": found.effects} if has_effects(study) else {}),
        **of_tuning,
        "trials.csv": trials,
    }
    by_stem = {figure.stem: figure for figure in drawn}
    metrics = found.cells["metric"].unique(maintain_order=True)
    sections = [_section(study, block(study, found.cells, metric), by_stem, found.verdicts) for metric in metrics]
    tuning, parts = tuning_section(study, of_tuning, tuned), effects_section(study, found.effects, by_stem)
    more = {"tuning": tuning, "parts_effects": parts}
    page = render(study, trials, reports, found, sections, drawn, list(tables), notes, more)
    shown = [table for part in sections for table in part["shown"].values()]
    shown += [tuning["table"]] if tuning is not None else []
    shown += [table for metric in (parts or {"metrics": []})["metrics"] for table in metric["tables"]]
    return write_files(home / "report", page, tables=tables, drawn=drawn, shown=shown)


def draw(study: Study, trials: pl.DataFrame, reports: pl.DataFrame, notes: Sequence[Any] = ()) -> list[Figure]:
    """Return the figures of the page."""
    tuned = tuning_figures(study, tuning_tables(study, trials, reports))
    return [*Tables.of(study, trials, reports, notes).figures(study), *tuned.values()]


def render(
    study: Study,
    trials: pl.DataFrame,
    reports: pl.DataFrame,
    tables: Tables,
    sections: Sequence[dict[str, Any]],
    drawn: Sequence[Figure],
    files: list[str],
    notes: Sequence[Any],
    more: Mapping[str, Any],
) -> str:
    """Return the page as HTML."""
    failed = trials.filter(pl.col("state") == "FAIL")
    table, first = tables.cells, require_comparison(study).metrics[0]
    judged = given_for(require_comparison(study).margin, first) is not None
    of_first = tables.verdicts.filter(pl.col("metric") == first)
    step = next_step(study, of_first, trials)
    after = "" if step is None else step_text(study, first, step)
    return render_page(
        "comparison.html.j2",
        study,
        drawn,
        status=status_lines(study, trials, reports, notes),
        answers=verdict_answers(study, of_first, table) if judged else answers(study, table),
        answered=spell_metric(first),
        hint=after if judged else hint_text(first),
        published=bool(require_comparison(study).published),
        warnings=comparison_warnings(study, trials, reports, notes),
        sections=sections,
        **more,
        notes=[printable(note) for note in require_comparison(study).notes],
        errors=[_error(study, row) for row in failed.head(MOST_ERRORS).iter_rows(named=True)],
        failed=failed.height,
        unlisted=max(failed.height - MOST_ERRORS, 0),
        methods=methods(study),
        files=files,
    )


def _section(study: Study, found: ColumnBlock, drawn: dict[str, Figure], judged: pl.DataFrame) -> dict[str, Any]:
    """Return the template's values for one metric."""
    stem = f"compare-{safe_stem(found.metric)}"
    name = spell_metric(found.metric)
    fields = _headings(study, found)
    groups = {
        printable(column): [[getattr(row, field) for field in fields] for row in rows]
        for column, rows in found.rows.items()
    }
    headings, of_verdicts = list(fields.values()), verdict_block(study, judged, found.metric)
    shown = {"cells": PageTable(stem=stem, caption=name, headings=headings, groups=groups, csv="comparison.csv")}
    if of_verdicts.rows:
        shown["verdicts"] = PageTable(
            stem=f"verdicts-{safe_stem(found.metric)}",
            caption=f"{name}: differences from {printable(require_comparison(study).baseline)}",
            headings=of_verdicts.headings,
            groups=of_verdicts.rows,
            csv="verdicts.csv",
        )
    return {
        "id": stem,
        "title": f"{name[:1].upper()}{name[1:]}",
        "text": metric_text(study, found),
        "figure": drawn.get(stem),
        "forest": drawn.get(f"difference-{safe_stem(found.metric)}"),
        "verdicts": of_verdicts,
        "headings": headings,
        "groups": groups,
        "shown": shown,
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
        "against_others": ("For other samples", found.paired and bool(found.samples)),
        "correlation": ("Correlation", any(row.correlation != "–" for row in rows)),
        "complete": ("Complete", found.incomplete or len(found.planned) > 1),
    }
    return {name: heading for name, (heading, occurs) in there.items() if occurs}


def _error(study: Study, row: dict[str, Any]) -> tuple[str, str]:
    trial = f"{row['dataset']} trial {row['trial']} ({network(study, row)})"
    return printable(trial), printable(row["error"] or "no reason was recorded")
