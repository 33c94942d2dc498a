"""The page of a search: answer, figures and tables in one template, everything escaped, no external resources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ablate.core.objectives import is_share
from ablate.results.front.budget import ended_early, gpu_hours, hours_content, hours_text
from ablate.results.front.cautions import cautions
from ablate.results.front.confirmation_text import confirmation_text, opened_text, protocol_text, seeds_text
from ablate.results.front.curve_words import beside, fit_values
from ablate.results.front.figures import figures
from ablate.results.front.findings import Findings, counts_text, findings
from ablate.results.front.fitted import fits_table, search_fits
from ablate.results.front.front import confirmed
from ablate.results.front.table import front_grid
from ablate.results.front.tables import front_table, note_text, quality_name
from ablate.results.importance.wording import importance_table, what_matters
from ablate.results.rendering.drawing import Figure
from ablate.results.rendering.numbers import capital, printable
from ablate.results.report.frame import Page, make_page
from ablate.results.trials.pooling import NETWORK
from ablate.results.trials.results import Results
from ablate.results.trials.study_warnings import split_samples

MOST_ERRORS = 20
NOT_YET: dict[str, Any] = {"importances": (), "sentences": ["They are being computed."], "table": None, "figure": None}


def build(results: Results, *, live: bool = False, matters: Mapping[str, dict[str, Any]] | None = None) -> Page:
    """Return the page of a search, written for a folder or `live` for a server.

    `matters` are those of `find_matters`; by default they are computed. A page without those of a data set says so.
    """
    study, fronts, found, fits = results.study, front_table(results), findings(results), search_fits(results)
    known = find_matters(results) if matters is None else matters
    matters = {dataset: known.get(dataset, NOT_YET) for dataset in found}
    tables = {
        "front.csv": fronts,
        "trials.csv": with_front(results.trials, fronts),
        "fits.csv": fits_table(fits.values()),
        "importance.csv": importance_table({dataset: part["importances"] for dataset, part in matters.items()}),
    }
    sections = [section(part, figures(part), matters[dataset]) for dataset, part in found.items()]
    drawn = [
        figure for part in sections for figure in (*part["figures"], part["matters"]["figure"]) if figure is not None
    ]
    return make_page(
        "page.html.j2",
        study,
        tables,
        drawn,
        live=live,
        status=status_lines(results),
        sections=sections,
        beside=beside(fits.values()),
    )


def find_matters(results: Results) -> dict[str, dict[str, Any]]:
    """Return the importances of settings by data set, in words and figures; of a page, they take the longest."""
    return {dataset: what_matters(part) for dataset, part in findings(results).items()}


def draw(results: Results) -> list[Figure]:
    """Return the figures of the page."""
    drawn = [figure for part in findings(results).values() for figure in (*figures(part), what_matters(part)["figure"])]
    return [figure for figure in drawn if figure]


def section(found: Findings, drawn: Sequence[Figure], matters: dict[str, Any]) -> dict[str, Any]:
    """Return the template's values for one data set."""
    study, results = found.results.study, found.results
    early = ended_early(results).get(found.dataset)
    confirmations = found.listed.filter(pl.col("source").is_not_null()).select("trial", "source")
    failed = found.listed.filter(pl.col("state") == "FAIL")
    errors = [(f"Trial {row['trial']}", row["error"]) for row in failed.head(MOST_ERRORS).iter_rows(named=True)]
    return {
        "dataset": found.dataset,
        "answer": found.answer_text,
        "badge": "provisional" if found.provisional else "confirmed" if found.confirmed else "unconfirmed",
        "confirmed": found.confirmed,
        "warnings": list(cautions(found)),
        "figures": drawn,
        "front": front_grid(found) if found.front.height else None,
        "note": note_text(study, found.rows),
        "title": "The front" if len(study.objectives) > 1 else "The best",
        "confirmation": capital(confirmation_text(results, found.dataset) + opened_text(results, found.dataset)),
        "dominated": dominated_text(found),
        "fit": fit_values(found.fit),
        "matters": matters,
        "counts": capital("; ".join(filter(None, [counts_text(found.listed), early]))),
        "confirms": json.dumps(dict(confirmations.rows())),
        "errors": [(trial, printable(error or "no reason was recorded")) for trial, error in errors],
        "unlisted_errors": failed.height - len(errors),
    }


def with_front(trials: pl.DataFrame, fronts: pl.DataFrame) -> pl.DataFrame:
    """Return the trials table with a column `on_front`, True for every trial of a pooled network on the front."""
    key = ["dataset", "stage", "_network"]
    marked = fronts.select("dataset", "stage", NETWORK.alias("_network"), pl.lit(True).alias("on_front"))
    joined = trials.with_columns(NETWORK.alias("_network")).join(marked, on=key, how="left", maintain_order="left")
    complete = pl.col("state") == "COMPLETE"
    return joined.with_columns(pl.col("on_front").fill_null(False) & complete).drop("_network")


def status_lines(results: Results) -> list[tuple[str, str]]:
    """Return the page's lines on the study: protocol, seeds, what was spent, samples."""
    study = results.study
    lines = [("Protocol", protocol_text(study)), ("Seeds", seeds_text(study, results.reports))]
    if (spent := hours_content(study, gpu_hours(results))) is not None:
        lines.append(("Spent by the search", hours_text(spent)))
    told = {found.named("of"): splits_text(found) for found in findings(results).values()}
    return [*lines, *((f"Samples{of}", text) for of, text in told.items() if text)]


def splits_text(found: Findings) -> str:
    """Return how many samples decided, and what one is worth, for metrics that are shares; else an empty text."""
    study = found.results.study
    if not is_share(quality_name(study)):
        return ""
    validation = split_samples(found.listed, "validation_samples")
    test = split_samples(found.listed, "test_samples") if found.tested else None
    split = "test" if study.protocol == "paper" else "validation"
    parts = []
    if validation:
        parts.append(f"{validation:,} {split} samples decided the search: one is {100 / validation:.2g} points.")
    if test and study.protocol != "paper":
        parts.append(f"{test:,} test samples measured the confirmation: one is {100 / test:.2g} points.")
    return " ".join(parts)


def dominated_text(found: Findings) -> str:
    """Return which confirmed networks left the front on the test split, so that they are not hidden."""
    complete = confirmed(found.pooled.trials)
    shown = [row["trial"] for row in found.rows]  # the user's settings are said elsewhere
    off = [n for n in complete["trial"].to_list() if n not in shown]
    if not found.tested or found.provisional or not off:
        return ""
    study, word = found.results.study, "confirmed" if found.confirmed else "retrained"
    place, verb = ("on the front", "is on it") if len(study.objectives) > 1 else ("the best", "is the best")
    listed = ", ".join(map(str, off[:20])) + (" …" if len(off) > 20 else "")
    chances = [found.assessed.front.get(n, 0.0) for n in off] if found.assessed is not None else []
    one = len(off) == 1
    who = "It" if one else "The most probable of them"
    likely = f" {who} {verb} with P = {max(chances):.2f}." if chances else ""
    are, theirs, they_are = ("is", "its", "it is") if one else ("are", "their", "they are")
    return (
        f"{len(off)} of the {complete.height} {word} {study.noun}s {are} no longer {place} with {theirs} test numbers "
        f"(trial{'s' * (not one)} {listed}); {they_are} in the figure and in trials.csv.{likely}"
    )
