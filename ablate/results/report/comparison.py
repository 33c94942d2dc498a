"""The page of a designed comparison: answers, figures and tables beside the published figures."""

from __future__ import annotations

from typing import Any

import polars as pl

from ablate.core.objectives import given_for
from ablate.results.comparison.comparison import cells, columns, seed_values
from ablate.results.comparison.comparison_warnings import comparison_warnings
from ablate.results.comparison.effect_figures import effect_figures
from ablate.results.comparison.effect_table import effects_section
from ablate.results.comparison.effects import effects, has_effects
from ablate.results.comparison.figures import comparison_figures
from ablate.results.comparison.forest import forest_figures
from ablate.results.comparison.next_step import next_step
from ablate.results.comparison.table import ColumnBlock, block, metric_text
from ablate.results.comparison.tuning import tuning_figures, tuning_section, tuning_tables
from ablate.results.comparison.verdict_table import hint_text, step_text, verdict_answers, verdict_block
from ablate.results.comparison.verdicts import seed_differences, verdicts
from ablate.results.comparison.wording import answers, methods, status_lines
from ablate.results.front.tables import network
from ablate.results.rendering.drawing import Figure, safe_stem
from ablate.results.rendering.latex import PageTable
from ablate.results.rendering.numbers import capital, printable, spell_metric
from ablate.results.report.frame import Page, render_page
from ablate.results.report.trials import described_trials
from ablate.results.trials.results import Results
from ablate.study import Study

MOST_ERRORS = 50


def build(results: Results, *, live: bool = False) -> Page:
    """Return the page of a designed comparison, written for a folder or `live` for a server."""
    study, table, judged, of_tuning = results.study, cells(results), verdicts(results), tuning_tables(results)
    drawn = draw(results)
    tables = {
        "comparison.csv": table,
        "verdicts.csv": judged,
        "comparison_seeds.csv": seed_values(results),
        **({"effects.csv": effects(results)} if has_effects(study) else {}),
        **of_tuning,
        "trials.csv": results.trials,
    }
    by_stem = {figure.stem: figure for figure in drawn}
    metrics = table["metric"].unique(maintain_order=True)
    parts: dict[str, Any] = {
        "sections": [_section(study, block(study, table, metric), by_stem, judged) for metric in metrics],
        "tuning": tuning_section(study, of_tuning, by_stem),
        "parts_effects": effects_section(study, effects(results), by_stem),
    }
    failed = results.trials.filter(pl.col("state") == "FAIL")
    html = render_page(
        "comparison.html.j2",
        study,
        drawn,
        live=live,
        status=status_lines(results),
        **_answer(results),
        warnings=comparison_warnings(results),
        **parts,
        errors=[_error(study, row) for row in failed.head(MOST_ERRORS).iter_rows(named=True)],
        failed=failed.height,
        described=described_trials(results, results.trials, drawn),
        columns={printable(name): labels for name, labels in columns(study).items()},
        unlisted=max(failed.height - MOST_ERRORS, 0),
        methods=methods(study),
        files=list(tables),
    )
    shown = [table for part in parts["sections"] for table in part["shown"].values()]
    shown += [parts["tuning"]["table"]] if parts["tuning"] is not None else []
    shown += [table for metric in (parts["parts_effects"] or {"metrics": []})["metrics"] for table in metric["tables"]]
    return Page(html=html, tables=tables, drawn=drawn, shown=shown)


def draw(results: Results) -> list[Figure]:
    """Return the figures of the page: of each metric the means and the differences from the baseline, then effects."""
    study = results.study
    return [
        *comparison_figures(study, cells(results), seed_values(results)),
        *forest_figures(study, verdicts(results), seed_differences(results)),
        *effect_figures(study, effects(results)),
        *tuning_figures(study, tuning_tables(results)),
    ]


def _answer(results: Results) -> dict[str, Any]:
    """Return the template's values of the answer: the verdicts or the differences of the first metric."""
    study, table, first = results.study, cells(results), results.study.compared.metrics[0]
    judged = given_for(study.compared.margin, first) is not None
    of_first = verdicts(results).filter(pl.col("metric") == first)
    step = next_step(results, of_first)
    return {
        "answers": verdict_answers(study, of_first, table) if judged else answers(study, table),
        "answered": spell_metric(first),
        "hint": hint_text(first) if not judged else "" if step is None else step_text(study, first, step),
        "published": bool(study.compared.published),
        "notes": [printable(note) for note in study.compared.notes],
    }


def _section(study: Study, found: ColumnBlock, drawn: dict[str, Figure], judged: pl.DataFrame) -> dict[str, Any]:
    """Return the template's values for one metric."""
    stem = f"compare-{safe_stem(found.metric)}"
    name = spell_metric(found.metric)
    fields = _headings(study, found)
    groups = {
        printable(column): [[row[field] for field in fields] for row in rows] for column, rows in found.rows.items()
    }
    headings, of_verdicts = list(fields.values()), verdict_block(study, judged, found.metric)
    shown = {"cells": PageTable(stem=stem, caption=name, headings=headings, groups=groups, csv="comparison.csv")}
    if of_verdicts.rows:
        shown["verdicts"] = PageTable(
            stem=f"verdicts-{safe_stem(found.metric)}",
            caption=f"{name}: differences from {printable(study.compared.baseline)}",
            headings=of_verdicts.headings,
            groups=of_verdicts.rows,
            csv="verdicts.csv",
        )
    return {
        "id": stem,
        "title": capital(name),
        "text": metric_text(study, found),
        "figure": drawn.get(stem),
        "forest": drawn.get(f"difference-{safe_stem(found.metric)}"),
        "verdicts": of_verdicts,
        "titles": [*map(capital, of_verdicts.headings)],
        "shown": shown,
        "notes": found.notes,
    }


def _headings(study: Study, found: ColumnBlock) -> dict[str, str]:
    """Return the headings of a metric's table by the name of its texts."""
    against = printable(study.compared.baseline)
    rows = [row for group in found.rows.values() for row in group]
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
        "correlation": ("Correlation", any(row["correlation"] != "–" for row in rows)),
        "complete": ("Complete", found.incomplete or len(found.planned) > 1),
    }
    return {name: heading for name, (heading, occurs) in there.items() if occurs}


def _error(study: Study, row: dict[str, Any]) -> tuple[str, str]:
    trial = f"{row['dataset']} trial {row['trial']} ({network(study, row)})"
    return printable(trial), printable(row["error"] or "no reason was recorded")
