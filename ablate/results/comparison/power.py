"""The spread of paired differences in an earlier study, from which a plan says how many seeds a margin needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import scipy

from ablate.core.objectives import quality_objective, signed
from ablate.results.comparison.rows import judged_rows
from ablate.results.front.assessment import values_by_seed
from ablate.results.front.front import confirmed, metric_at
from ablate.results.statistics.looks import ERROR, share_of
from ablate.results.trials.results import Results

ALPHA = ERROR * share_of(1)  # of each one-sided test at the first look


@dataclass(frozen=True, kw_only=True)
class PairedSpread:
    """The standard deviation over seeds of paired differences, pooled over arms, with its degrees of freedom."""

    sd: float
    freedom: int

    @property
    def upper(self) -> float:
        """The one-sided 95% upper limit of the true standard deviation, for normal differences."""
        return self.sd * math.sqrt(self.freedom / float(scipy.special.chdtri(self.freedom, 0.95)))


def paired_spreads(results: Results) -> dict[str, PairedSpread]:
    """Return the spread of paired differences in an earlier study, by metric; without two common seeds none.

    A comparison: every variant against its baseline in every column, each weighted by its degrees of freedom. A
    search: every confirmed network against the best confirmed network of its data set, in the first quality metric.
    Differences with a diverged seed are left out.
    """
    return _of_variants(results) if results.study.compare is not None else _of_confirmations(results)


def pool(differences: Iterable[Sequence[float]]) -> PairedSpread | None:
    """Return the pooled standard deviation of groups of differences, each about its own mean."""
    groups = [np.asarray(group) for group in differences if len(group) > 1 and np.isfinite(group).all()]
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return None
    return PairedSpread(
        sd=math.sqrt(sum(float(group.var() * len(group)) for group in groups) / freedom), freedom=freedom
    )


def _of_variants(results: Results) -> dict[str, PairedSpread]:
    rows = (row for row in judged_rows(results) if row.contrast.kind == "variant")  # a placebo is not paired
    return _pooled_by_metric((row.metric, row.differences.tolist()) for row in rows)


def _of_confirmations(results: Results) -> dict[str, PairedSpread]:
    study, trials, reports = results.study, results.pooled.trials, results.pooled.reports
    objective = quality_objective(study.objectives)
    metric = metric_at(objective.metric, "confirm")
    groups: list[tuple[str, Sequence[float]]] = []
    for dataset in study.labels:
        rows = confirmed(trials.filter(pl.col("dataset") == dataset))
        rows = rows.filter(pl.col(metric).is_finite()) if metric in rows.columns else rows.clear()
        if rows.height:
            values = values_by_seed(reports, dataset, rows["trial"].to_list(), metric)
            best = int(np.argmin([signed(objective, value) for value in rows[metric]]))
            groups += [
                (metric, own[np.isfinite(own)].tolist()) for own in np.delete(values - values[best], best, axis=0)
            ]
    return _pooled_by_metric(groups)


def _pooled_by_metric(groups: Iterable[tuple[str, Sequence[float]]]) -> dict[str, PairedSpread]:
    by_metric: dict[str, list[Sequence[float]]] = {}
    for metric, differences in groups:
        by_metric.setdefault(metric, []).append(differences)
    spreads = {metric: pool(found) for metric, found in by_metric.items()}
    return {metric: spread for metric, spread in spreads.items() if spread is not None}
