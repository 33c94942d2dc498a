"""Pooling of trials that trained one configuration on different seeds, as if they were one trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ablate.core.objectives import SIZE_COLUMNS, is_of_training, is_share, mean
from ablate.results.trials.tables import REPORT_COLUMNS

NETWORK = pl.coalesce("source", "trial")  # the first trial of the network
_KEY = ["dataset", "stage", "_network"]
Row = Mapping[str, Any]
Place = tuple[str, int]  # data set, trial


def pooled(trials: pl.DataFrame, reports: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return both tables (docs/tables.md) with one row, and the reports of one trial, for seeds that belong together.

    Trials belong together if they confirm the same search trial, give further seeds to the same trial of a comparison,
    or train the seeds of a tuned row with their winners (`source`). The complete ones are merged into the first of
    them, with all their seeds and the mean size. A seed that diverged makes the pooled trial a FAIL, as in a single
    trial. A trial that has not ended, or failed for another reason, keeps its own row. Pooling is idempotent.
    """
    if not reports.height:
        return trials, reports
    reports = with_lacking(reports)
    several = trials.with_columns(NETWORK.alias("_network")).filter(pl.len().over(_KEY) > 1).sort("trial")
    groups = [_members(part.rows(named=True), reports) for part in several.partition_by(_KEY, maintain_order=True)]
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        return trials, reports
    return _merge(trials, groups, reports), _relabel(reports, groups)


def with_lacking(reports: pl.DataFrame) -> pl.DataFrame:
    """Return `reports` with NaN where a replicate lacks a metric that another one has in the same report.

    Null remains if the whole report lacks it. A seed is thus not dropped as if it had not been trained.
    """
    report = ["dataset", "trial", "epoch"]
    metrics = [name for name in reports.columns if name not in REPORT_COLUMNS]
    lacking = {name: pl.col(name).is_null() & pl.col(name).is_not_null().any().over(report) for name in metrics}
    return reports.with_columns(
        pl.when(null).then(math.nan).otherwise(pl.col(name)).alias(name) for name, null in lacking.items()
    )


def alike_over_seeds(counted: pl.DataFrame, key: str) -> set[Any]:
    """Return the values of `key` whose seeds, two or more, have equal numbers: one run, for all that can be seen.

    `counted` are the reports that count. Shares of 0 or 1 alone do not count, which every seed may reach.
    """
    names = list(filter(is_of_training, counted.columns))
    if not names:
        return set()
    telling = [pl.col(n).is_finite() & ~(pl.col(n).is_in([0.0, 1.0]) & pl.lit(is_share(n))) for n in names]
    once, several = pl.struct(names).n_unique() == 1, pl.col("seed").n_unique() > 1
    return set(counted.group_by(key).agg(alike=once & several & pl.any_horizontal(telling).any()).filter("alike")[key])


def _members(rows: Sequence[Row], reports: pl.DataFrame) -> list[Row]:
    """Return the trials of one configuration that are pooled, in the given order."""
    if not any(row["state"] == "COMPLETE" for row in rows):
        return []
    return [row for row in rows if row["state"] == "COMPLETE" or _diverged(row, reports)]


def _diverged(row: Row, reports: pl.DataFrame) -> bool:
    own = reports.filter(pl.col("dataset") == row["dataset"], pl.col("trial") == row["trial"])
    return row["state"] == "FAIL" and bool(own["diverged"].any())


def _merge(trials: pl.DataFrame, groups: Sequence[Sequence[Row]], reports: pl.DataFrame) -> pl.DataFrame:
    """Return `trials` with each group merged into its first trial."""
    counted = reports.filter("counts").sort("replicate")
    values = {
        (str(key[0]), int(key[1])): part for key, part in counted.partition_by("dataset", "trial", as_dict=True).items()
    }
    metrics = [name for name in reports.columns if name not in REPORT_COLUMNS and name in trials.columns]
    rows = {(group[0]["dataset"], group[0]["trial"]): _row(group, values, metrics) for group in groups}
    gone = {(row["dataset"], row["trial"]) for group in groups for row in group[1:]}
    kept = []
    for row in trials.iter_rows(named=True):
        place = (row["dataset"], row["trial"])
        if place not in gone:
            kept.append(rows.get(place, row))
    return pl.DataFrame(kept, schema=trials.schema)


def _row(group: Sequence[Row], last: Mapping[Place, pl.DataFrame], metrics: Sequence[str]) -> Row:
    """Return the pooled row; its metrics are means over all seeds in the order of the trials."""
    failed = [row for row in group if row["state"] == "FAIL"]
    row = dict((failed or group)[0])
    first = ("trial", "source", "checkpoint", "mlflow_run_id", "created_at", "started_at")
    row |= {name: group[0][name] for name in first}
    row |= {name: sum(own[name] or 0 for own in group) for name in ("replicates", "wall_seconds")}
    for name in (name for name in SIZE_COLUMNS if len({own.get(name) for own in group}) > 1 and row[name] is not None):
        size = sum(own[name] * own["replicates"] for own in group) / row["replicates"]  # tuned values may change it
        row[name] = round(size) if isinstance(row[name], int) else size
    row["finished_at"] = max((own["finished_at"] for own in group if own["finished_at"] is not None), default=None)
    parts = [last[own["dataset"], own["trial"]] for own in group]
    for name in metrics:
        seeds = [value for part in parts for value in part[name].to_list()]
        row[name] = None if seeds.count(None) == len(seeds) else mean(seeds)
    return row


def _relabel(reports: pl.DataFrame, groups: Sequence[Sequence[Row]]) -> pl.DataFrame:
    """Return `reports` with those of a group under its first trial, replicates numbered consecutively."""
    places = []
    for group in groups:
        slots = [0]
        for row in group:
            places.append((row["dataset"], row["trial"], group[0]["trial"], slots[-1]))
            slots.append(slots[-1] + row["replicates"])
    schema = {"dataset": pl.String(), "trial": pl.Int64(), "_first": pl.Int64(), "_slot": pl.Int64()}
    joined = reports.join(pl.DataFrame(places, schema=schema, orient="row"), on=["dataset", "trial"], how="left")
    moved = joined.with_columns(
        trial=pl.coalesce("_first", "trial"), replicate=pl.col("replicate") + pl.col("_slot").fill_null(0)
    )
    return moved.drop("_first", "_slot").sort("dataset", "trial", "epoch", "replicate")
