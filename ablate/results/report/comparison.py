"""The page of a designed comparison: a sentence for each row, and by metric the figure and the table."""

from __future__ import annotations

from typing import Any

import polars as pl

from ablate.results.comparison.comparison_warnings import comparison_warnings
from ablate.results.comparison.design import design_lines
from ablate.results.comparison.forest import forest_figures
from ablate.results.comparison.rows import comparison, comparison_fits, first_metric, judged_rows, verdicts
from ablate.results.comparison.table import contrasts_grid, rows_grid
from ablate.results.comparison.tuning import CSV, tuning_section
from ablate.results.comparison.tuning_budget import tuning_budget
from ablate.results.comparison.verdicts import next_step
from ablate.results.comparison.words import next_text, sentences, shared_text, status_lines
from ablate.results.front.curve_words import beside, fit_values
from ablate.results.front.fitted import fits_table
from ablate.results.front.tables import network
from ablate.results.rendering.drawing import Figure, safe_stem
from ablate.results.rendering.grid import Grid
from ablate.results.rendering.numbers import capital, printable, spell_metric
from ablate.results.report.frame import Page, make_page
from ablate.results.trials.results import Results
from ablate.study import Study

MOST_ERRORS = 50


def build(results: Results, *, live: bool = False) -> Page:
    """Return the page of a designed comparison, written for a folder or `live` for a server."""
    study, table, drawn, fits = results.study, comparison(results), draw(results), comparison_fits(results)
    of_tuning = {} if study.tune is None else {CSV: tuning_budget(results)}
    tables = {"comparison.csv": table, **of_tuning, "fits.csv": fits_table(fits.values()), "trials.csv": results.trials}
    by_stem = {figure.stem: figure for figure in drawn}
    sections = [_section(results, metric, by_stem) for metric in table["metric"].unique(maintain_order=True)]
    failed = results.trials.filter(pl.col("state") == "FAIL")
    return make_page(
        "comparison.html.j2",
        study,
        tables,
        drawn,
        live=live,
        status=status_lines(results),
        **_answer(results),
        warnings=comparison_warnings(results),
        sections=sections,
        tuning=tuning_section(results),
        fits=[values for fit in fits.values() if (values := fit_values(fit))],
        beside=beside(fits.values()),
        errors=[_error(study, row) for row in failed.head(MOST_ERRORS).iter_rows(named=True)],
        failed=failed.height,
        unlisted=max(failed.height - MOST_ERRORS, 0),
    )


def draw(results: Results) -> list[Figure]:
    """Return the figures of the page: of each metric the differences from the baseline."""
    seeds = {
        (row.metric, row.column, row.contrast.name): row.differences.tolist()
        for row in judged_rows(results)
        if row.contrast.kind in ("variant", "placebo")
    }
    return forest_figures(results.study, verdicts(results), seeds)


def _answer(results: Results) -> dict[str, Any]:
    """Return the template's values of the answer: the sentences of the first metric, and what is next."""
    study, first = results.study, first_metric(results.study)
    own = verdicts(results).filter(pl.col("metric") == first)
    answers: dict[str, list[tuple[str, str]]] = {}
    for column, name, text in sentences(own):
        answers.setdefault(column if own["column"].n_unique() > 1 else "", []).append((name, text))
    return {
        "answers": answers,
        "shared": shared_text(study, own) if own.height else "Nothing is compared here.",
        "hint": next_text(study, first, next_step(results, own)),
        "published": bool(study.compared.published),
        "notes": [printable(note) for note in study.compared.notes],
        "design": design_lines(study),
    }


def _section(results: Results, metric: str, drawn: dict[str, Figure]) -> dict[str, Any]:
    """Return the template's values for one metric; the first has its sentences in the answer."""
    study, table, is_said = results.study, comparison(results), metric == first_metric(results.study)
    grid, notes = rows_grid(study, table, metric, said=is_said)
    further = contrasts_grid(table, metric)
    grids: list[Grid] = [grid, *([] if further is None else [further])]
    own = verdicts(results).filter(pl.col("metric") == metric)
    return {
        "id": f"comparison-{safe_stem(metric)}",
        "title": capital(spell_metric(metric)),
        "text": shared_text(study, own, said=False) if own.height and not is_said else "",
        "figure": drawn.get(f"difference-{safe_stem(metric)}"),
        "tables": grids,
        "notes": notes,
    }


def _error(study: Study, row: dict[str, Any]) -> tuple[str, str]:
    trial = f"{row['dataset']} trial {row['trial']} ({network(study, row)})"
    return printable(trial), printable(row["error"] or "no reason was recorded")
