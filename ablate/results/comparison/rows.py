"""The one table of a comparison: each row's mean and its difference from the baseline, contrasts; fits of error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from ablate.base.plain_text import finite
from ablate.core.objectives import SIZE_COLUMNS, given_for, on_test
from ablate.results.comparison.design import JUDGED, columns, planned_rows
from ablate.results.comparison.judged import Judged, judged
from ablate.results.comparison.runs import Measured, Places, Runs, collect, measure
from ablate.results.comparison.tuning_budget import count_untuned
from ablate.results.front.fitted import Fit, fit_of
from ablate.results.front.front import size_metric
from ablate.results.statistics.crossed import sample_interval, sources_of
from ablate.results.statistics.intervals import metric_interval
from ablate.results.statistics.looks import compared_looks
from ablate.results.trials.results import Results, once
from ablate.study import PLACEBO, VARIANT, Study

CONSTANTS = (*SIZE_COLUMNS, "wall_seconds")  # of the whole trial: the same for all its seeds, so without an interval
BASELINE = "baseline"  # kind of the baseline's row; the others are those of `Contrast`
COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(("metric", "column", "kind", "variant"), pl.String()),
    **dict.fromkeys(("published", "params"), pl.Float64()),
    "note": pl.String(),
    **dict.fromkeys(("mean", "mean_low", "mean_high"), pl.Float64()),
    "over": pl.String(),
    **dict.fromkeys(("samples", "seeds", "configurations", "planned", "failed", "diverged"), pl.Int64()),
    **dict.fromkeys(("verdict", "claims", "refuted"), pl.String()),
    "margin": pl.Float64(),
    "better": pl.String(),
    **dict.fromkeys(("difference", "low", "high", "margin_low", "margin_high", "margin_now"), pl.Float64()),
    **dict.fromkeys(("samples_low", "samples_high"), pl.Float64()),
    **dict.fromkeys(("n", "collapsed", "compared"), pl.Int64()),
    **dict.fromkeys(("p", "p_adjusted"), pl.Float64()),
    **dict.fromkeys(("family", "look"), pl.Int64()),
    **dict.fromkeys(("sd", "detectable"), pl.Float64()),
    "seeds_needed": pl.Int64(),
    **dict.fromkeys(("wins", "correlation"), pl.Float64()),
    **dict.fromkeys(("outlying", "remark", "mean_remark", "trials"), pl.String()),
    "scaled": pl.Boolean(),
}


def metrics(results: Results) -> tuple[str, ...]:
    """Return the compared metrics: the file's metrics, then those of the test split, `params` and `q`.

    A metric of the test split follows if the file has its validation metric and `reports` hold at least one value of
    it; `params` and `q` follow if figures of them are published.
    """
    compare, reports = results.study.compared, results.reports
    tested = [on_test(metric) for metric in compare.metrics if metric.startswith("val_")]
    known = [metric for metric in tested if metric in reports.columns and reports[metric].is_not_null().any()]
    sizes = [metric for metric in ("params", "q") if metric in compare.published]
    return tuple(dict.fromkeys([*compare.metrics, *known, *sizes]))


def first_metric(study: Study) -> str:
    """Return the first compared metric that is measured by seed, which gives the answer; else the first."""
    return next((each for each in study.compared.metrics if each not in CONSTANTS), study.compared.metrics[0])


@once
def judged_rows(results: Results) -> tuple[Judged, ...]:
    """Return the contrasts of all metrics with what they establish, in the order of `comparison`."""
    study, runs, look = results.study, collect(results), len(compared_looks(results.events))
    asked = (metric for metric in metrics(results) if metric not in CONSTANTS)
    return tuple(row for metric in asked for row in judged(study, runs, measure(runs, metric), look))


@once
def comparison(results: Results) -> pl.DataFrame:
    """Return one row per metric, column and row of the comparison or contrast (columns: docs/compare.md).

    `mean` is that over data sets of the means over complete configurations, its interval Student's t over seeds: data
    sets and configurations are fixed. Null means that there is no value, NaN that a seed diverged; it is not silently
    excluded. `difference` is that of `Judged`.
    """
    study, runs = results.study, collect(results)
    found = {(each.metric, each.column, each.contrast.kind, each.contrast.name): each for each in judged_rows(results)}
    untuned, planned = count_untuned(results), planned_rows(study)
    rows: list[dict[str, Any]] = []
    for metric in metrics(results):
        measured = None if metric in CONSTANTS else measure(runs, metric)
        for column, datasets in columns(study).items():
            for name in (row.name for row in study.rows):
                row = _known_before(study, metric, column, name) | _counts(runs, datasets, name)
                row["params"] = _size(runs, "params", runs.of(datasets, name))
                row["planned"] = sum(planned[label][name] for label in datasets)
                if measured is None:
                    row["mean"] = _size(runs, metric, runs.of(datasets, name))
                else:
                    row |= _mean(runs, measured, metric, datasets, name)
                lost = sum(untuned[label, name] for label in datasets)
                row["mean_remark"] = "; ".join(_remarks(study, row, lost))
                each = found.get((metric, column, row["kind"], name))
                rows.append(row | (each.values() if each is not None else {}))
            rows += [
                {"metric": metric, "column": column, "kind": each.contrast.kind, "variant": each.contrast.name}
                | {"scaled": study.scale != 1, "planned": each.planned, **each.values()}
                for each in judged_rows(results)
                if (each.metric, each.column) == (metric, column) and each.contrast.kind not in JUDGED
            ]
    return pl.DataFrame(rows, schema=COLUMNS)


def as_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `comparison` as plain values (docs/json.md)."""
    told = {name: row[name] for name in ("claims", "refuted")}
    return {**row, **{name: None if text is None else [*filter(None, text.split(", "))] for name, text in told.items()}}


@once
def verdicts(results: Results) -> pl.DataFrame:
    """Return the rows of `comparison` that are set against the baseline: every variant that runs there."""
    return comparison(results).filter(
        pl.col("kind").is_in(JUDGED), pl.col("planned") > 0, ~pl.col("metric").is_in(CONSTANTS)
    )


def _known_before(study: Study, metric: str, column: str, variant: str) -> dict[str, Any]:
    """Return the fields of a cell that follow from the study file alone."""
    published = study.compared.published
    figure = published.get(metric, {}).get(column, {}).get(variant)
    kind = "placebo" if study.is_placebo(variant) else "variant"
    return {
        "metric": metric,
        "column": column,
        "kind": BASELINE if variant == study.compared.baseline else kind,
        "variant": variant,
        "published": figure and figure.value,
        "note": figure.note if figure else "",
        "scaled": study.scale != 1,
    }


def _counts(runs: Runs, datasets: Iterable[str], variant: str) -> dict[str, int | str]:
    places = [place for own in runs.of(datasets, variant).values() for place in own.values()]
    failed = int((runs.table["state"].gather(places) == "FAIL").sum())
    complete, diverged = int(runs.complete[places].sum()), int(runs.diverged[places].sum())
    named = " ".join(
        f"{dataset}/{trial}" for dataset, trial in runs.table[places].select("dataset", "trial").iter_rows()
    )
    return {"configurations": complete, "failed": failed, "diverged": diverged, "trials": named}


def _mean(runs: Runs, measured: Measured, metric: str, datasets: tuple[str, ...], variant: str) -> dict[str, Any]:
    """Return mean and interval of a row over the seeds that all its trials have."""
    places = measured.usable(runs.of(datasets, variant))
    seeds = measured.shared_seeds(places)
    spread = measured.spread(places, seeds)
    interval = metric_interval(metric, measured.seed_means(places)[seeds].tolist())
    if spread is not None:
        interval = sample_interval(metric, spread)
    flat = [place for own in places.values() for place in own.values()]
    return {
        "over": sources_of(interval, spread),
        "samples": spread and spread.count,
        "seeds": interval.n,
        "mean": interval.mean if interval.n else None,
        "mean_low": finite(interval.low),
        "mean_high": finite(interval.high),
        "configurations": int(runs.complete[flat].sum()),
        "diverged": int(measured.lost[flat].any(axis=1).sum()),
    }


def _size(runs: Runs, name: str, places: Places) -> float | None:
    """Return the mean over data sets of the means over configurations of a column of the trials table."""
    column = runs.table[name]
    if name not in SIZE_COLUMNS:  # sizes are known as soon as a trial is measured, whatever its final state
        column = runs.table.select(pl.when(pl.col("state") == "COMPLETE").then(pl.col(name)))[name]
    found = [column.gather(list(own.values())).mean() for own in places.values() if own]
    known = [float(value) for value in found if isinstance(value, int | float)]
    return math.fsum(known) / len(known) if known else None


def _remarks(study: Study, cell: Mapping[str, Any], untuned: int) -> Iterator[str]:
    """Yield the remarks that a reader needs about the mean; `untuned` seeds were not trained."""
    if untuned:
        planned = cell["planned"] * study.replicates
        yield f"not trained on {untuned} of {planned} seeds, for which no tuning run is complete"
    if cell["diverged"] and cell["metric"] not in CONSTANTS:
        counted = given_for(study.compared.diverged, cell["metric"])
        as_what = "" if counted is None else f", each such seed counted as {counted:g}"
        yield f"diverged in {cell['diverged']} of {cell['planned']} configurations{as_what}"
    asked = study.compared.columns.get(cell["column"], ())
    row = next(row for row in study.rows if row.name == cell["variant"])
    own = [label for label in asked if label in study.labels and (row.datasets is None or label in row.datasets)]
    if own and len(own) < len(asked):
        yield f"mean over {len(own)} of {len(asked)} data sets ({', '.join(own)})"


@once
def comparison_fits(results: Results) -> dict[str, Fit]:
    """Return the fit of the first metric of a comparison on every data set: each row but the placebo is a network."""
    study, runs = results.study, collect(results)
    metric, size = first_metric(study), size_metric(study.objectives)
    measured = measure(runs, metric)
    rows = runs.table.filter(pl.col(VARIANT) != PLACEBO)
    split = "test_samples" if metric.startswith("test_") else "validation_samples"
    fits = {}
    for dataset in study.labels:
        own = rows.filter(pl.col("dataset") == dataset)
        listed = [
            (row["place"], row.get(size), measured.values[row["place"]][measured.known[row["place"]]].tolist())
            for row in own.iter_rows(named=True)
        ]
        counts = own[split].unique().to_list()
        fit = Fit(dataset=dataset, metric=metric, size=size, count=counts[0] if len(counts) == 1 else None)
        known = fit_of(study, fit, listed, measured.samples)
        fits[dataset] = replace(known, barred="the study is scaled") if study.scale != 1 else known
    return fits
