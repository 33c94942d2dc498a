"""The assessment of a data set's confirmed networks: compared with the best, seed by seed, and as a front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ablate.base.randomness import stream
from ablate.core.objectives import is_maximized, losses, quality_objective
from ablate.results.front.answer import Difference, compare_with_best, unselected_best
from ablate.results.front.front import candidates, front_stage, metric_at, metric_values, objective_values
from ablate.results.front.front_uncertainty import front_probabilities
from ablate.results.statistics.crossed import widened
from ablate.results.statistics.intervals import Interval, natural_bounds
from ablate.results.trials.frozen import confirmations
from ablate.results.trials.results import Results, once
from ablate.results.trials.sample_tables import spread_of
from ablate.study.sections import Objective

Values = NDArray[np.float64]
Signed = TypeVar("Signed", Difference, Interval)


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The confirmed networks of a data set over all their seeds; numbers in the metric's own unit.

    `seeds` are the fewest and the most seeds of a network. The keys of `differences` and `front` are numbers of trials.
    `look` is the number of this look at the networks (`searched_looks`). `margin` is `confirm.margin` of the quality,
    or None. `best_number` is the best network's quality as if it had not been chosen by it, for other seeds and, where
    each sample's value is known, for other samples. `tail` is the largest one of the networks (`Spread.tail`).
    """

    look: int
    seeds: tuple[int, int]
    margin: float | None
    best: int
    best_number: Interval
    tail: float
    differences: Mapping[int, Difference]
    front: Mapping[int, float]


def assess(results: Results, dataset: str) -> Assessment | None:
    """Return the assessment of a data set, or None: fewer than two confirmed networks or seeds, equal seeds."""
    study, trials, reports = results.study, results.pooled.trials, results.pooled.reports
    if front_stage(trials, dataset) != "confirm":
        return None
    rows = candidates(trials, study.objectives, dataset=dataset, stage="confirm", constraints=study.constraints)
    quality = quality_objective(study.objectives)
    others = [objective for objective in study.objectives if objective is not quality]
    rows = _cheapest_first(rows, others)
    numbers = rows["trial"].to_list()
    metric = metric_at(quality.metric, "confirm")
    measured = values_by_seed(reports, dataset, numbers, metric)
    sign = 1.0 if is_maximized(quality) else -1.0
    margin = study.confirm.margin.get(quality.metric) if study.confirm else None
    look = max(len(results.events_of(dataset, "frozen")), 1)  # each freeze of the front begins another
    found = compare_with_best(sign * measured, margin=margin, look=look) if len(numbers) else None
    if found is None:
        return None
    counts = np.isfinite(measured).sum(axis=1)
    losses, fixed = -sign * measured, _losses(rows, others)
    probabilities = front_probabilities(losses, fixed, stream(study.seed, dataset, 0, "front"))
    best = next(i for i, each in enumerate(found) if each.verdict == "best")
    samples = rows["test_samples"][best]
    number = _in_unit(unselected_best(sign * measured, metric if sign > 0 else "", samples=samples), sign)
    floor, ceiling = natural_bounds(quality.metric)
    number = replace(number, low=max(number.low, floor), high=min(number.high, ceiling))
    own = reports.filter(pl.col("dataset") == dataset, "counts")
    spreads = [spread_of(own.filter(trial=each), metric) for each in numbers]
    chosen, known = spreads[best], [each for each in spreads if each is not None]
    return Assessment(
        look=look,
        seeds=(int(counts.min()), int(counts.max())),
        margin=margin,
        best=numbers[best],
        best_number=number if chosen is None else widened(quality.metric, number, chosen, known),
        tail=max((each.tail for each in known), default=0.0),
        differences=dict(zip(numbers, (_in_unit(each, sign) for each in found), strict=True)),
        front={} if probabilities is None else dict(zip(numbers, probabilities.tolist(), strict=True)),
    )


@once
def assessments(results: Results) -> dict[str, Assessment]:
    """Return the assessment of every data set that has one and whose confirmation, or extended search, has ended."""
    ended = [dataset for dataset in results.study.labels if not confirmations(results, dataset).is_open]
    found = {dataset: assess(results, dataset) for dataset in ended}
    return {dataset: each for dataset, each in found.items() if each is not None}


def _cheapest_first(rows: pl.DataFrame, others: list[Objective]) -> pl.DataFrame:
    """Return rows by ascending loss of the other objectives, so that of equal best networks the cheapest is named."""
    costs = _losses(rows, others)
    return rows[np.lexsort([metric_values(rows, "trial"), *costs.T[::-1]]).tolist()] if rows.height else rows


def _losses(rows: pl.DataFrame, objectives: list[Objective]) -> Values:
    """Return the losses of objectives at the confirmation, on their axes' scales, [n, m]."""
    values = objective_values(rows, objectives, "confirm").tolist()
    return np.array([losses(objectives, row) for row in values]).reshape(rows.height, len(objectives))


def values_by_seed(reports: pl.DataFrame, dataset: str, numbers: Sequence[int], metric: str) -> Values:
    """Return a metric of these trials by seed, [trials, seeds]; NaN where a trial lacks a seed."""
    if metric not in reports.columns:
        return np.empty((len(numbers), 0))
    own = reports.filter(pl.col("dataset") == dataset, pl.col("trial").is_in(numbers))
    counted = own.filter("counts", pl.col(metric).is_not_null())
    seeds = {seed: place for place, seed in enumerate(sorted(set(counted["seed"])))}
    rows = {number: place for place, number in enumerate(numbers)}
    found = np.full((len(rows), len(seeds)), math.nan)
    for number, seed, value in counted.select("trial", "seed", metric).iter_rows():
        found[rows[number], seeds[seed]] = value
    return found


def _in_unit(each: Signed, sign: float) -> Signed:
    """Return a signed number with its ends in the metric's own unit."""
    low, high = sorted((sign * each.low, sign * each.high))
    return replace(each, mean=sign * each.mean + 0.0, low=low, high=high)
