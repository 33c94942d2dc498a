"""The page of a search: findings and figures in one template, everything escaped, no external resources."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from ablate.base.plain_text import settings_text
from ablate.core.objectives import quality_objective
from ablate.results.front.cautions import cautions, shrinkage_text, splits_text
from ablate.results.front.confirmation import confirmation_text
from ablate.results.front.figures import figures
from ablate.results.front.findings import STATE_WORDS, Findings, counts_text, findings
from ablate.results.front.summary import compared_cells
from ablate.results.front.tables import (
    MOST_ROWS,
    cost_cells,
    differing,
    fits_table,
    front_cells,
    front_table,
    model_settings,
    more_text,
    network,
    other_settings,
    own_costs,
    quality_name,
    shared_settings,
    shared_text,
    without_unknown_sizes,
)
from ablate.results.front.uncertainty import intervals_text
from ablate.results.front.wording import dominated_text, fit_text, hypervolume_text, methods, status_lines
from ablate.results.importance.wording import METHOD, importance_table, what_matters
from ablate.results.rendering.drawing import Figure, safe_stem
from ablate.results.rendering.latex import PageTable
from ablate.results.rendering.numbers import capital, count, printable, quantity, spell_metric
from ablate.results.report.frame import Page, render_page
from ablate.results.report.trials import described_trials
from ablate.results.trials.pooling import NETWORK
from ablate.results.trials.results import Results
from ablate.study import Study

MOST_ERRORS = 20
NOT_YET: dict[str, Any] = {"importances": (), "sentences": ["They are being computed."], "table": None, "figures": []}


def build(results: Results, *, live: bool = False, matters: Mapping[str, dict[str, Any]] | None = None) -> Page:
    """Return the page of a search, written for a folder or `live` for a server.

    `matters` are those of `find_matters`; by default they are computed. A page without those of a data set says so.
    """
    study, fronts, found = results.study, front_table(results), findings(results)
    known = find_matters(results) if matters is None else matters
    matters = {dataset: known.get(dataset, NOT_YET) for dataset in found}
    tables = {
        "front.csv": fronts,
        "trials.csv": with_front(results.trials, fronts),
        "fits.csv": fits_table({dataset: part.fit for dataset, part in found.items()}, quality_name(study)),
        "importance.csv": importance_table({dataset: part["importances"] for dataset, part in matters.items()}),
    }
    sections = [section(part, figures(study, part), matters[dataset]) for dataset, part in found.items()]
    for own, part in zip(sections, found.values(), strict=True):
        own["described"] = described_trials(results, part.listed, [*own["figures"], *own["matters"]["figures"]])
    drawn = [figure for part in sections for figure in (*part["figures"], *part["matters"]["figures"])]
    html = render_page(
        "page.html.j2",
        study,
        drawn,
        live=live,
        status=status_lines(results),
        sections=sections,
        methods=[*methods(study, compared=any(part["compared"] for part in sections)), METHOD],
        files=list(tables),
    )
    shown = [table for part in sections for table in (*part["shown"].values(), part["matters"]["table"]) if table]
    return Page(html=html, tables=tables, drawn=drawn, shown=shown)


def find_matters(results: Results) -> dict[str, dict[str, Any]]:
    """Return the importances of settings by data set, in words and figures; of a page, they take the longest."""
    return {dataset: what_matters(part) for dataset, part in findings(results).items()}


def draw(results: Results) -> list[Figure]:
    """Return the figures of the page."""
    found = findings(results).values()
    return [figure for part in found for figure in (*figures(results.study, part), *what_matters(part)["figures"])]


def section(found: Findings, drawn: Sequence[Figure], matters: dict[str, Any]) -> dict[str, Any]:
    """Return the template's values for one data set."""
    study, results = found.results.study, found.results
    rows = found.rows
    shared = shared_settings(study, rows)
    training = differing(rows, [setting for setting in other_settings(study) if setting not in shared])
    by = differing(rows, model_settings(study))
    compared = found.assessed is not None
    named, cells = without_unknown_sizes(
        headings(study, f"{'test' if found.tested else 'validation'}_{quality_name(study)}", compared=compared),
        [row_cells(study, row, shared, by, compared=compared) for row in rows],
    )
    own = {
        "headings": named,
        "rows": cells,
        "listed": cells[:MOST_ROWS],
        "training": [settings_text(row, training) for row in rows],
        "shared": shared_text(study, rows),
        "more": more_text(len(rows), "front.csv"),
        "compared": compared,
        "warnings": list(cautions(found)),
        "splits": splits_text(found),
        "intervals": intervals_text(study, found.front),
        "shrinkage": shrinkage_text(found),
    }
    listed = _trial_list(study, found)
    return {
        **own,
        **listed,
        "shown": _shown(found.dataset, own, listed),
        "matters": matters,
        "dataset": found.dataset,
        "answer": found.summary[0],
        "picks": found.summary[1],
        "confirmed": found.confirmed,
        "badge": "provisional" if found.provisional else "confirmed" if found.confirmed else "unconfirmed",
        "confirmation": confirmation_text(results, found.dataset) if rows else "no front yet",
        "counts": counts_text(found.listed),
        "figures": drawn,
        "dominated": dominated_text(found),
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


def headings(study: Study, quality: str, *, compared: bool) -> list[str]:
    """Return the headings of the table of the front; with a comparison to the best, sizes beside parameters follow."""
    costs = [capital(spell_metric(name)) for name in own_costs(study)]
    measured = [*costs, spell_metric(quality).capitalize(), "95% interval"]
    if compared:
        return ["Network", "Parameters", *measured, "To the best", "Verdict", "P(front)", "n", "FLOPs", "Q", "Trial"]
    return ["Network", "Parameters", "FLOPs", "Q", *measured, "n", "Trial"]


def row_cells(
    study: Study, row: dict[str, Any], shared: Collection[str], by: Collection[str], *, compared: bool
) -> list[str]:
    """Return the cells of one network under `headings`; `shared` settings are said above the table."""
    label, params, flops, q, mean, interval, n, trial = front_cells(study, row, shared, by)
    costs = cost_cells(study, row)
    if compared:
        return [label, params, *costs, mean, interval, *compared_cells(study, row), n, flops, q, trial]
    return [label, params, flops, q, *costs, mean, interval, n, trial]


def _trial_list(study: Study, found: Findings) -> dict[str, Any]:
    listed = found.listed.head(MOST_ROWS).rows(named=True)
    by = differing(listed, model_settings(study))
    failed = found.listed.filter(pl.col("state") == "FAIL")
    quality = spell_metric(quality_objective(study.objectives).metric).capitalize()
    errors = [(f"Trial {row['trial']}", row["error"]) for row in failed.head(MOST_ERRORS).iter_rows(named=True)]
    headings, cells = without_unknown_sizes(
        ["Trial", "Stage", "State", "Network", "Parameters", f"{study.unit.capitalize()}s", quality],
        [trial_cells(study, row, by) for row in listed],
    )
    return {
        "trial_headings": headings,
        "trials": cells,
        "unlisted": more_text(found.listed.height, "trials.csv"),
        "errors": [(trial, printable(error or "no reason was recorded")) for trial, error in errors],
        "unlisted_errors": failed.height - len(errors),
    }


def trial_cells(study: Study, row: dict[str, Any], by: Collection[str]) -> list[str]:
    """Return the cells of one trial in the list of all trials."""
    metric = quality_objective(study.objectives).metric
    value = row.get(metric)
    state = STATE_WORDS.get(row["state"], row["state"])
    cells = [count(row["trial"]), row["stage"], state, printable(network(study, row, by=by)), count(row.get("params"))]
    return [*cells, count(row.get("epochs")), quantity(metric, value)]


def with_front(trials: pl.DataFrame, fronts: pl.DataFrame) -> pl.DataFrame:
    """Return the trials table with a column `on_front`, True for every trial of a pooled network on the front."""
    key = ["dataset", "stage", "_network"]
    marked = fronts.select("dataset", "stage", NETWORK.alias("_network"), pl.lit(True).alias("on_front"))
    joined = trials.with_columns(NETWORK.alias("_network")).join(marked, on=key, how="left", maintain_order="left")
    complete = pl.col("state") == "COMPLETE"
    return joined.with_columns(pl.col("on_front").fill_null(False) & complete).drop("_network")
