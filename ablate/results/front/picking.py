"""The network that keeps given bounds and is best otherwise, and how surely a fresh training keeps them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ablate.base.randomness import stream
from ablate.core.objectives import constraint_text, is_cost, quality_objective, ranked, room, violation
from ablate.results.front.assessment import values_by_seed
from ablate.results.front.front import candidates, column_of, confirmed, metric_at, metric_values, objective_values
from ablate.results.front.front_uncertainty import cost_ranks, draw_means
from ablate.results.front.tables import counted_rows, seed_values
from ablate.results.statistics.intervals import Interval, natural_bounds, t_interval
from ablate.results.statistics.two_way import NO_SPREAD, lay_out
from ablate.results.trials.results import Results
from ablate.study import Study

MOST_NETWORKS = 100  # that a probability is computed from: the nearest in cost
Values = NDArray[np.float64]


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

    The probabilities are those of `keeping_probabilities`. They are None where one seed tells no spread, and for costs,
    which are exact.
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
    """No network of a data set keeps the bounds: the nearest by the sum of its violations, None if none is complete."""

    dataset: str
    row: dict[str, Any] | None
    missed: tuple[tuple[Bound, float], ...]


def choose(results: Results, dataset: str, asked: Sequence[Bound]) -> Choice | NoChoice:
    """Return the network of `dataset` that keeps every bound by its mean and is best on the objectives not bounded.

    It is one of the confirmed networks, or of the complete search trials if none is confirmed. The first objective
    without a bound decides, the others break ties. If all are bounded, all decide, in the order of the file.
    """
    study, found = results.study, results.on(dataset).pooled
    objectives = study.objectives
    stage = "confirm" if confirmed(found.trials).height else "search"
    rows = candidates(found.trials, objectives, dataset=dataset, stage=stage, constraints=study.constraints)
    bounds = [_at(bound, stage) for bound in asked]
    names = {bound.metric for bound in bounds}
    free = [o for o in objectives if metric_at(o.metric, stage) not in names]
    order = [*free, *(o for o in objectives if o not in free)]
    places = ranked(order, bounds, rows["state"].to_list(), column_of(rows, stage))
    if not places:
        return NoChoice(dataset=dataset, row=None, missed=())
    best = places[0]
    row = rows.row(best, named=True)
    pairs = [(bound, float(metric_values(rows, bound.metric)[best])) for bound in bounds]
    if missed := tuple((bound, value) for bound, value in pairs if violation(bound, value) > 0):
        return NoChoice(dataset=dataset, row=row, missed=missed)
    shown = dict.fromkeys([*(metric_at(o.metric, stage) for o in objectives), *(b.metric for b in bounds)])
    last = counted_rows(found.reports)
    none = last.clear()  # costs are of the whole trial
    seeds = {metric: seed_values(none if is_cost(metric) else last, row, metric) for metric in shown}
    return Choice(
        dataset=dataset,
        row=row,
        stage=stage,
        among=rows.height,
        metrics={metric: t_interval(each, within=natural_bounds(metric)) for metric, each in seeds.items()},
        kept=tuple(_kept(study, bound, rows, best, found.reports) for bound in bounds),
    )


def keeping_probabilities(
    values: Values, others: Values, bound: Bound, rng: np.random.Generator
) -> tuple[float, float] | None:
    """Return the probabilities that a new seed of the first network keeps `bound`, and that the mean of many does.

    `values` [networks, seeds] are of the networks that it was picked among, NaN where one was not trained; `others`
    [networks, m] are their costs. The mean is one of `draw_means`, so that the luck of the pick is taken back; a new
    seed varies about it by the variance pooled over networks. None if no network has two seeds. Without spread, the
    probabilities are 1 or 0.
    """
    found = lay_out(values)
    if not found.overlap.trace() > 0.5:
        return None
    if found.total < NO_SPREAD:
        return (float(room(bound, found.means[0]) >= 0),) * 2
    means = draw_means(values, others, rng)[:, 0]
    new = means + math.sqrt(found.total) * rng.standard_t(found.total_df, len(means))
    fresh, true = (float(np.mean([room(bound, each) >= 0 for each in draws.tolist()])) for draws in (new, means))
    return fresh, true


def _at(bound: Bound, stage: str) -> Bound:
    return replace(bound, metric=metric_at(bound.metric, stage))


def _kept(study: Study, bound: Bound, rows: pl.DataFrame, place: int, reports: pl.DataFrame) -> Kept:
    """Return how surely the network at `place` of the candidates keeps a bound."""
    found, measured = None, metric_values(rows, bound.metric)
    if not is_cost(bound.metric) and reports.height:
        dataset, quality = str(rows["dataset"][place]), quality_objective(study.objectives)
        others = [objective for objective in study.objectives if objective is not quality]
        costs = objective_values(rows, others, str(rows["stage"][place]))
        steps = np.abs(cost_ranks(costs) - cost_ranks(costs)[place])
        steps[place] = -1
        near = [i for i in np.argsort(steps, kind="stable").tolist() if math.isfinite(measured[i])][:MOST_NETWORKS]
        values = values_by_seed(reports, dataset, rows["trial"][near].to_list(), bound.metric)
        draws = stream(study.seed, dataset, 0, "pick", bound.metric)
        there = np.isfinite(values).sum(axis=1) > 0
        found = keeping_probabilities(values[there], costs[near][there], bound, draws) if there[0] else None
    new_seed, true_mean = found or (None, None)
    return Kept(limit=bound, value=float(measured[place]), new_seed=new_seed, true_mean=true_mean)
