"""The cells of a designed comparison: means over configurations, intervals over seeds, differences paired by seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from ablate.base.plain_text import finite
from ablate.core.objectives import SIZE_COLUMNS, given_for, on_test
from ablate.results.comparison.compared_samples import Places
from ablate.results.comparison.runs import Measured, Runs, collect, measure, pair_by_seed
from ablate.results.comparison.tuning_budget import count_untuned
from ablate.results.statistics.intervals import metric_interval, t_interval
from ablate.results.statistics.samples import sample_interval, sources_of
from ablate.results.trials.results import Results, once
from ablate.study import PLACEBO, VARIANT, Study

CONSTANTS = (*SIZE_COLUMNS, "wall_seconds")  # of the whole trial: the same for all its seeds, so without an interval
CELL_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(("metric", "column", "variant"), pl.String()),
    "published": pl.Float64(),
    "note": pl.String(),
    **dict.fromkeys(("ours", "low", "high"), pl.Float64()),
    "over": pl.String(),
    "samples": pl.Int64(),
    **dict.fromkeys(("n", "configurations", "planned", "failed", "diverged"), pl.Int64()),
    **dict.fromkeys(("difference", "params", "params_published"), pl.Float64()),
    **dict.fromkeys(("baseline_difference", "baseline_low", "baseline_high"), pl.Float64()),
    **dict.fromkeys(("baseline_samples_low", "baseline_samples_high"), pl.Float64()),
    "compared": pl.Int64(),
    "correlation": pl.Float64(),
    "remark": pl.String(),
    "trials": pl.String(),
    "scaled": pl.Boolean(),
}
SEED_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(("metric", "column", "variant"), pl.String()),
    "seed": pl.Int64(),
    "value": pl.Float64(),
    "scaled": pl.Boolean(),
}


def columns(study: Study) -> dict[str, tuple[str, ...]]:
    """Return the columns of the comparison with the running data sets of each; a column without any is excluded."""
    asked = study.compared.columns or {label: (label,) for label in study.datasets}
    running = {name: tuple(label for label in labels if label in study.labels) for name, labels in asked.items()}
    return {name: labels for name, labels in running.items() if labels}


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


@once
def cells(results: Results) -> pl.DataFrame:
    """Return one row per metric, column and variant, in the file's order (columns: docs/compare.md).

    `trials` and `reports` are tables of `trials/tables.py`. `ours` is the mean over data sets of the means over
    complete configurations, its interval Student's t over seeds: data sets and configurations are fixed. Null means
    that there is no value. NaN means that a seed diverged; it is not silently excluded from the mean.
    """
    study, runs = results.study, collect(results)
    planned = {label: Counter(str(row[VARIANT]) for row in study.design(label)) for label in study.labels}
    untuned = count_untuned(results)
    rows = []
    for metric in metrics(results):
        measured = None if metric in CONSTANTS else measure(runs, metric)
        for column, datasets in columns(study).items():
            for row in study.rows:
                size = _size(runs, "params", runs.of(datasets, row.name))
                cell = _known_before(study, metric, column, row.name) | {"params": size}
                cell["planned"] = sum(planned[label][row.name] for label in datasets)
                cell |= _counts(runs, datasets, row.name)
                if measured is None:
                    cell["ours"] = _size(runs, metric, runs.of(datasets, row.name))
                else:
                    cell |= _cell(study, runs, measured, metric, datasets, row.name)
                cell["remark"] = "; ".join(_remarks(study, cell, sum(untuned[label, row.name] for label in datasets)))
                known = cell["ours"] is not None and cell["published"] is not None
                rows.append(cell | {"difference": cell["ours"] - cell["published"] if known else None})
    return pl.DataFrame(rows, schema=CELL_COLUMNS)


@once
def seed_values(results: Results) -> pl.DataFrame:
    """Return every seed's value of every cell: metric, column, variant, seed, value, scaled."""
    study, runs = results.study, collect(results)
    rows: list[dict[str, Any]] = []
    for metric in (name for name in metrics(results) if name not in CONSTANTS):
        measured = measure(runs, metric)
        for column, datasets in columns(study).items():
            for row in study.rows:
                places = measured.usable(runs.of(datasets, row.name))
                cell = {"metric": metric, "column": column, "variant": row.name, "scaled": study.scale != 1}
                values, there = measured.seed_means(places), measured.shared_seeds(places)
                found = zip(runs.seeds, values.tolist(), there.tolist(), strict=True)
                first = study.seeds_of(row.name)[0]
                rows += [cell | {"seed": first + seed, "value": value} for seed, value, known in found if known]
    return pl.DataFrame(rows, schema=SEED_COLUMNS)


def _known_before(study: Study, metric: str, column: str, variant: str) -> dict[str, Any]:
    """Return the fields of a cell that follow from the study file alone."""
    published = study.compared.published
    figure = published.get(metric, {}).get(column, {}).get(variant)
    params = published.get("params", {}).get(column, {}).get(variant)
    return {
        "metric": metric,
        "column": column,
        "variant": variant,
        "published": figure and figure.value,
        "note": figure.note if figure else "",
        "params_published": params and params.value,
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


def _cell(
    study: Study, runs: Runs, measured: Measured, metric: str, datasets: tuple[str, ...], variant: str
) -> dict[str, Any]:
    """Return mean and interval of a cell, and its difference from the baseline over their common configurations."""
    places = measured.usable(runs.of(datasets, variant))
    seeds = measured.shared_seeds(places)
    spread = measured.samples.spread(places, seeds)
    interval = metric_interval(metric, measured.seed_means(places)[seeds].tolist())
    if spread is not None:
        interval = sample_interval(metric, spread)
    found: dict[str, Any] = {"over": sources_of(interval, spread), "samples": spread and spread.count}
    found |= {"n": interval.n, "ours": interval.mean if interval.n else None}
    found |= {"low": finite(interval.low), "high": finite(interval.high)}
    flat = [place for own in places.values() for place in own.values()]
    found["configurations"] = int(runs.complete[flat].sum())
    found["diverged"] = int(measured.lost[flat].any(axis=1).sum())
    baseline = study.compared.baseline
    if variant == baseline:
        return found
    pair = pair_by_seed(runs, measured, places, measured.usable(runs.of(datasets, baseline)))
    apart = t_interval((pair.own - pair.baseline).tolist())
    return found | {
        "baseline_difference": apart.mean if apart.n else None,
        "baseline_low": finite(apart.low),
        "baseline_high": finite(apart.high),
        **{f"baseline_{name}": end for name, end in pair.for_other_samples(metric).items()},
        "compared": pair.compared,
        "correlation": pair.correlation,
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
    """Yield the remarks that a reader needs about the measured number; `untuned` seeds were not trained."""
    if untuned:
        planned = cell["planned"] * study.replicates
        yield f"not trained on {untuned} of {planned} seeds, for which no tuning run is complete"
    if cell["diverged"] and cell["metric"] not in CONSTANTS:
        counted = given_for(study.compared.diverged, cell["metric"])
        as_what = "" if counted is None else f", each such seed counted as {counted:g}"
        yield f"diverged in {cell['diverged']} of {cell['planned']} configurations{as_what}"
    if study.compared.placebo and cell["variant"] == PLACEBO:
        yield f"{study.compared.baseline} again on other seeds: its differences are noise, without pairing"
    asked = study.compared.columns.get(cell["column"], ())
    row = next(row for row in study.rows if row.name == cell["variant"])
    own = [label for label in asked if label in study.labels and (row.datasets is None or label in row.datasets)]
    if own and len(own) < len(asked):
        yield f"mean over {len(own)} of {len(asked)} data sets ({', '.join(own)})"
    if cell.get("compared") is not None and cell["compared"] < cell["configurations"]:
        yield f"compared over {cell['compared']} of {cell['planned']} configurations: those that both have complete"
