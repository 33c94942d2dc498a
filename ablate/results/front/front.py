"""Fronts: the finished trials that no other finished trial beats on every declared objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ablate.core.objectives import Column, is_cost, may_stand, on_front, on_test, quality_objective, signed
from ablate.core.trial import Stage, TrialState

if TYPE_CHECKING:
    from ablate.study.sections import Constraint, Objective


def metric_at(metric: str, stage: str) -> str:
    """Return the column of `metric` at a stage: `val_*` is read from `test_*` once confirmed."""
    return on_test(metric) if stage == "confirm" else metric


def front_stage(table: pl.DataFrame, dataset: str) -> Stage:
    """Return `confirm` if at least one network of the data set is confirmed, otherwise `search`."""
    return "confirm" if confirmed(table).filter(pl.col("dataset") == dataset).height else "search"


def confirmed(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the confirmed networks: one each if `table` is pooled (see `pooled`).

    A network that failed with one of its seeds is excluded, whatever its other seeds reached.
    """
    return table.filter(pl.col("stage") == "confirm", pl.col("state") == TrialState.COMPLETE)


def metric_values(table: pl.DataFrame, metric: str) -> NDArray[np.float64]:
    """Return a column as float64, NaN where it is null or does not exist, [n]."""
    if metric not in table.columns:
        return np.full(table.height, np.nan)
    return table[metric].cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy().astype(np.float64)


def objective_values(table: pl.DataFrame, objectives: Sequence[Objective], stage: str) -> NDArray[np.float64]:
    """Return the objectives of every row as measured at `stage`, [n, m]; NaN if one is missing."""
    columns = [metric_values(table, metric_at(objective.metric, stage)) for objective in objectives]
    return np.stack(columns, axis=1) if columns else np.empty((table.height, 0))


def candidates(
    table: pl.DataFrame,
    objectives: Sequence[Objective],
    *,
    dataset: str,
    stage: str,
    constraints: Sequence[Constraint] = (),
) -> pl.DataFrame:
    """Return the rows that may be on a front: COMPLETE, of `stage`, objectives finite, constraints satisfied."""
    rows = table.filter((pl.col("dataset") == dataset) & (pl.col("stage") == stage))
    keep = may_stand(objectives, constraints, rows["state"].to_list(), column_of(rows, stage))
    return rows.filter(pl.Series(keep, dtype=pl.Boolean))


def column_of(rows: pl.DataFrame, stage: str) -> Column:
    """Return the expression of a metric of `rows` as measured at `stage`."""
    return lambda metric: metric_values(rows, metric_at(metric, stage)).tolist()


def front(
    table: pl.DataFrame, objectives: Sequence[Objective], *, constraints: Sequence[Constraint] = ()
) -> pl.DataFrame:
    """Return the non-dominated rows of a trials table, data set by data set, cheapest first.

    Only COMPLETE trials count. If a data set has complete confirmation trials, its front consists of these alone, with
    `val_*` objectives read from `test_*`. Rows with a missing or non-finite objective are excluded.
    """
    parts = []
    for dataset in table["dataset"].unique(maintain_order=True):
        stage = front_stage(table, dataset)
        rows = table.filter((pl.col("dataset") == dataset) & (pl.col("stage") == stage))
        stands = on_front(objectives, constraints, rows["state"].to_list(), column_of(rows, stage))
        rows = rows.filter(pl.Series(stands, dtype=pl.Boolean))
        parts.append(_cheapest_first(rows, objectives, stage))
    return pl.concat(parts) if parts else table.clear()


def cost_metric(objectives: Sequence[Objective]) -> str:
    """Return the declared cost objective, or `params` when none is declared."""
    return next((o.metric for o in objectives if is_cost(o.metric)), "params")


def size_metric(objectives: Sequence[Objective]) -> str:
    """Return the size that error is fitted against: the declared cost unless it is time."""
    cost = cost_metric(objectives)
    return "params" if cost == "wall_seconds" else cost


def _cheapest_first(rows: pl.DataFrame, objectives: Sequence[Objective], stage: str) -> pl.DataFrame:
    cost = metric_values(rows, cost_metric(objectives))
    quality = quality_objective(objectives)
    values = metric_values(rows, metric_at(quality.metric, stage))
    best_first = np.array([signed(quality, value) for value in values.tolist()])
    trial = metric_values(rows, "trial")
    return rows[np.lexsort((trial, best_first, cost)).tolist()] if rows.height else rows
