"""The page of a search: findings and figures in one template, everything escaped, no external resources."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ablate.base.plain_text import settings_text
from ablate.results.analysis import quality_objective
from ablate.results.analysis.assessment import assessments
from ablate.results.analysis.pooling import NETWORK
from ablate.results.report.confirmation import confirmation_text
from ablate.results.report.drawing import Figure, safe_stem
from ablate.results.report.frame import render_page, write_files
from ablate.results.report.front.cautions import shrinkage_text, splits_text
from ablate.results.report.front.figures import figures
from ablate.results.report.front.findings import STATE_WORDS, Findings, counts_text, findings, state_counts
from ablate.results.report.front.importance import METHOD, importance_table, what_matters
from ablate.results.report.front.summary import compared_cells
from ablate.results.report.front.uncertainty import intervals_text
from ablate.results.report.front.wording import dominated_text, fit_text, hypervolume_text, methods, status_lines
from ablate.results.report.latex import PageTable
from ablate.results.report.numbers import count, printable, quantity, spell_metric
from ablate.results.report.racing import racing_text
from ablate.results.report.tables import (
    fits_table,
    front_cells,
    front_table,
    network,
    other_settings,
    quality_name,
    shared_settings,
    shared_text,
    without_unknown_sizes,
)
from ablate.study import Study

MOST_ROWS = 200  # trials on the page; trials.csv has all
MOST_ERRORS = 20


def write(study: Study, trials: pl.DataFrame, reports: pl.DataFrame, home: Path, *, notes: Sequence[Any] = ()) -> Path:
    """Write the page and its files below home/report (see `ablate.results.report.write_report`)."""
    fronts, found = _found(study, trials, reports, notes)
    drawn = {part.dataset: figures(study, part) for part in found}
    matters = {part.dataset: what_matters(study, part, notes) for part in found}
    tables = {
        "front.csv": fronts,
        "trials.csv": with_front(trials, fronts),
        "fits.csv": fits_table({p.dataset: p.fit for p in found}, quality_name(study)),
        "importance.csv": importance_table({dataset: part["importances"] for dataset, part in matters.items()}),
    }
    sections = [section(study, part, drawn[part.dataset], matters[part.dataset], notes) for part in found]
    figures_of_all = [figure for name, own in drawn.items() for figure in (*own, *matters[name]["figures"])]
    page = render(study, trials, reports, sections, figures_of_all, tables, notes)
    shown = [table for part in sections for table in (*part["shown"].values(), part["matters"]["table"]) if table]
    return write_files(home / "report", page, tables=tables, drawn=figures_of_all, shown=shown)


def draw(study: Study, trials: pl.DataFrame, reports: pl.DataFrame, notes: Sequence[Any] = ()) -> list[Figure]:
    """Return the figures of the page."""
    found = _found(study, trials, reports, notes)[1]
    return [
        figure for part in found for figure in (*figures(study, part), *what_matters(study, part, notes)["figures"])
    ]


def _found(
    study: Study, trials: pl.DataFrame, reports: pl.DataFrame, notes: Sequence[Any]
) -> tuple[pl.DataFrame, list[Findings]]:
    assessed = assessments(study, trials, reports, notes)
    fronts = front_table(study, trials, reports, assessed=assessed)
    return fronts, [
        findings(study, dataset, trials, reports, fronts, notes, assessed=assessed) for dataset in study.labels
    ]


def render(
    study: Study,
    trials: pl.DataFrame,
    reports: pl.DataFrame,
    sections: Sequence[dict[str, Any]],
    drawn: Sequence[Figure],
    files: Iterable[str],
    notes: Sequence[Any] = (),
) -> str:
    """Return the page as HTML."""
    return render_page(
        "page.html.j2",
        study,
        drawn,
        status=status_lines(study, trials, reports, notes),
        sections=sections,
        methods=[*methods(study, compared=any(part["compared"] for part in sections)), METHOD],
        files=list(files),
    )


def section(
    study: Study, found: Findings, drawn: Sequence[Figure], matters: dict[str, Any], notes: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return the template's values for one data set."""
    split = "test" if found.tested else "validation"
    words = confirmation_text(study, found.trials, found.dataset, split, notes)
    rows = found.front.rows(named=True)
    shared = shared_settings(study, rows)
    training = [setting for setting in other_settings(study) if setting not in shared]
    compared = found.assessed is not None
    named, cells = without_unknown_sizes(
        headings(f"{split}_{quality_name(study)}", compared=compared),
        [row_cells(study, row, shared, compared=compared) for row in rows],
    )
    own = {
        "headings": named,
        "rows": cells,
        "training": [settings_text(row, training) for row in rows],
        "shared": shared_text(study, rows),
        "compared": compared,
        "warnings": found.warnings,
        "splits": splits_text(study, found.listed, found.dataset, tested=found.tested),
        "intervals": intervals_text(study, found.front),
        "shrinkage": shrinkage_text(study, found.trials, found.dataset),
    }
    listed = _trial_list(study, found)
    return {
        **own,
        **listed,
        "shown": _shown(found.dataset, own, listed),
        "matters": matters,
        "dataset": found.dataset,
        "compared": found.assessed is not None,
        "answer": found.answer,
        "picks": found.picks,
        "confirmed": found.confirmed,
        "badge": "provisional" if found.provisional else "confirmed" if found.confirmed else "unconfirmed",
        "confirmation": words if found.front.height else "no front yet",
        "counts": counts_text(state_counts(found.listed)),
        "figures": drawn,
        "dominated": dominated_text(found),
        "racing": racing_text(found.dataset, notes),
        "fit": fit_text(study, found),
        "hypervolume": hypervolume_text(study, found),
    }


def _shown(dataset: str, front: dict[str, Any], listed: dict[str, Any]) -> dict[str, PageTable]:
    """Return the tables of a data set that have rows, for their files; a network's name includes its training."""
    rows = [
        [" · ".join(filter(None, (cells[0], text))), *cells[1:]]
        for cells, text in zip(front["rows"], front["training"], strict=True)
    ]
    tables = {
        "front": (f"Front of {dataset}", front["headings"], rows),
        "trials": (f"Trials of {dataset}", listed["trial_headings"], listed["trials"]),
    }
    return {
        name: PageTable(
            stem=f"{name}-{safe_stem(dataset)}",
            caption=caption,
            headings=headings,
            groups={"": cells},
            csv=f"{name}.csv",
        )
        for name, (caption, headings, cells) in tables.items()
        if cells
    }


def headings(quality: str, *, compared: bool) -> list[str]:
    """Return the headings of the table of the front; with a comparison to the best, sizes beside parameters follow."""
    measured = [spell_metric(quality).capitalize(), "95% interval"]
    if compared:
        return ["Network", "Parameters", *measured, "To the best", "Verdict", "P(front)", "n", "FLOPs", "Q", "Trial"]
    return ["Network", "Parameters", "FLOPs", "Q", *measured, "n", "Trial"]


def row_cells(study: Study, row: dict[str, Any], shared: Collection[str], *, compared: bool) -> list[str]:
    """Return the cells of one network under `headings`; `shared` settings are said above the table."""
    label, params, flops, q, mean, interval, n, trial = front_cells(study, row, shared)
    if compared:
        return [label, params, mean, interval, *compared_cells(study, row), n, flops, q, trial]
    return [label, params, flops, q, mean, interval, n, trial]


def _trial_list(study: Study, found: Findings) -> dict[str, Any]:
    listed = found.listed.head(MOST_ROWS)
    failed = found.listed.filter(pl.col("state") == "FAIL")
    quality = spell_metric(quality_objective(study.objectives).metric).capitalize()
    errors = [(f"Trial {row['trial']}", row["error"]) for row in failed.head(MOST_ERRORS).iter_rows(named=True)]
    headings, cells = without_unknown_sizes(
        ["Trial", "Stage", "State", "Network", "Parameters", f"{study.unit.capitalize()}s", quality],
        [trial_cells(study, row) for row in listed.iter_rows(named=True)],
    )
    return {
        "trial_headings": headings,
        "trials": cells,
        "unlisted": found.listed.height - listed.height,
        "errors": [(trial, printable(error or "no reason was recorded")) for trial, error in errors],
        "unlisted_errors": failed.height - len(errors),
    }


def trial_cells(study: Study, row: dict[str, Any]) -> list[str]:
    """Return the cells of one trial in the list of all trials."""
    metric = quality_objective(study.objectives).metric
    value = row.get(metric)
    state = STATE_WORDS.get(row["state"], row["state"])
    cells = [count(row["trial"]), row["stage"], state, printable(network(study, row)), count(row.get("params"))]
    return [*cells, count(row.get("epochs")), quantity(metric, value)]


def with_front(trials: pl.DataFrame, fronts: pl.DataFrame) -> pl.DataFrame:
    """Return the trials table with a column `on_front`, True for every trial of a pooled network on the front."""
    key = ["dataset", "stage", "_network"]
    marked = fronts.select("dataset", "stage", NETWORK.alias("_network"), pl.lit(True).alias("on_front"))
    joined = trials.with_columns(NETWORK.alias("_network")).join(marked, on=key, how="left", maintain_order="left")
    complete = pl.col("state") == "COMPLETE"
    return joined.with_columns(pl.col("on_front").fill_null(False) & complete).drop("_network")
