"""The network that keeps given bounds and is best otherwise, and how surely a fresh training keeps them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import scipy

from ablate.analysis.front import candidates, confirmed, metric_at, metric_values
from ablate.analysis.intervals import Interval, natural_bounds, t_interval
from ablate.analysis.pooling import pooled
from ablate.objectives import COST_METRICS, constraint_text, room, signed, violation

if TYPE_CHECKING:
    from ablate.study.sections import Constraint, Objective


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A bound on a metric, as it was asked for and as it is read: on the test split of confirmed networks."""

    metric: str
    op: Literal["<=", ">="]
    bound: float
    asked: str

    @property
    def text(self) -> str:
        """Return `test_accuracy >= 0.97`."""
        return constraint_text(self)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How surely a bound is kept: by the mean over the seeds, by one fresh training, and by the mean of many.

    The probabilities are those of the t distribution over the seeds. They are None where one seed tells no spread, and
    for costs, which are exact.
    """

    limit: Bound
    value: float
    new_seed: float | None
    true_mean: float | None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The network that was picked on one data set: its row of the pooled trials table, and its numbers by metric."""

    dataset: str
    row: dict[str, Any]
    stage: str
    among: int
    metrics: dict[str, Interval]
    kept: tuple[Kept, ...]


@dataclass(frozen=True, kw_only=True)
class NoChoice:
    """No network of a data set keeps the bounds: the one that misses them least, None if no network is complete."""

    dataset: str
    row: dict[str, Any] | None
    missed: tuple[tuple[Bound, float], ...]


def choose(
    trials: pl.DataFrame,
    reports: pl.DataFrame,
    dataset: str,
    *,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    asked: Sequence[Bound],
) -> Choice | NoChoice:
    """Return the network of `dataset` that keeps every bound by its mean and is best on the objectives not bounded.

    It is one of the confirmed networks, or of the complete search trials if none is confirmed. The first objective
    without a bound decides, the others break ties. If all are bounded, all decide, in the order of the file.
    """
    own = trials.filter(pl.col("dataset") == dataset)
    own, own_reports = pooled(own, reports.filter(pl.col("dataset") == dataset) if reports.height else reports)
    stage = "confirm" if confirmed(own).height else "search"
    rows = candidates(own, objectives, dataset=dataset, stage=stage, constraints=constraints)
    bounds = [_at(bound, stage) for bound in asked]
    values = [metric_values(rows, bound.metric).tolist() for bound in bounds]
    misses = [max(violation(b, v[i]) for b, v in zip(bounds, values, strict=True)) for i in range(rows.height)]
    if not any(miss <= 0 for miss in misses):
        return _nearest(dataset, rows, bounds, values, misses)
    names = {bound.metric for bound in bounds}
    free = [o for o in objectives if metric_at(o.metric, stage) not in names]
    order = [*free, *(o for o in objectives if o not in free)]
    columns = [(o, metric_values(rows, metric_at(o.metric, stage)).tolist()) for o in order]
    best = min(
        (i for i, miss in enumerate(misses) if miss <= 0),
        key=lambda i: (*(signed(o, column[i]) for o, column in columns), rows["trial"][i]),
    )
    row = rows.row(best, named=True)
    shown = dict.fromkeys([*(metric_at(o.metric, stage) for o in objectives), *(b.metric for b in bounds)])
    seeds = {metric: _seed_values(own_reports, row, metric) for metric in shown}
    return Choice(
        dataset=dataset,
        row=row,
        stage=stage,
        among=rows.height,
        metrics={metric: t_interval(found, within=natural_bounds(metric)) for metric, found in seeds.items()},
        kept=tuple(_kept(bound, row, seeds[bound.metric]) for bound in bounds),
    )


def keeping_probabilities(values: Sequence[float], bound: Bound) -> tuple[float, float] | None:
    """Return the probabilities that a new seed keeps `bound`, and that the mean of many does, from the t distribution.

    A new value of normal seeds is distributed as mean + t(n-1) sd √(1 + 1/n), the mean as mean + t(n-1) sd / √n. None
    for fewer than two values. Without spread, the probabilities are 1 or 0.
    """
    n = len(values)
    if n < 2:
        return None
    found = t_interval(values)
    gap = room(bound, found.mean)
    if found.sd == 0:
        return float(gap >= 0), float(gap >= 0)
    new, mean = (gap / (found.sd * math.sqrt(share)) for share in (1 + 1 / n, 1 / n))
    return float(scipy.special.stdtr(n - 1, new)), float(scipy.special.stdtr(n - 1, mean))


def _at(bound: Bound, stage: str) -> Bound:
    return replace(bound, metric=metric_at(bound.metric, stage))


def _nearest(
    dataset: str,
    rows: pl.DataFrame,
    bounds: Sequence[Bound],
    values: Sequence[Sequence[float]],
    misses: Sequence[float],
) -> NoChoice:
    if not rows.height:
        return NoChoice(dataset=dataset, row=None, missed=())
    place = min(range(rows.height), key=lambda i: (misses[i], rows["trial"][i]))
    pairs = [(bound, column[place]) for bound, column in zip(bounds, values, strict=True)]
    missed = tuple((bound, value) for bound, value in pairs if violation(bound, value) > 0)
    return NoChoice(dataset=dataset, row=rows.row(place, named=True), missed=missed)


def _seed_values(reports: pl.DataFrame, row: dict[str, Any], metric: str) -> list[float]:
    """Return a metric's value of each seed in the last report, or the row's value if it is one of the whole trial."""
    if metric not in COST_METRICS and reports.height and metric in reports.columns:
        own = reports.filter(pl.col("trial") == row["trial"])
        last = own.filter(pl.col("epoch") == own["epoch"].max())
        return [float(value) for value in metric_values(last, metric)]
    value = row.get(metric)
    return [math.nan if value is None else float(value)]


def _kept(bound: Bound, row: dict[str, Any], values: Sequence[float]) -> Kept:
    found = None if bound.metric in COST_METRICS else keeping_probabilities(values, bound)
    new_seed, true_mean = found or (None, None)
    return Kept(limit=bound, value=float(row[bound.metric]), new_seed=new_seed, true_mean=true_mean)
