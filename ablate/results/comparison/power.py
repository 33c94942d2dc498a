"""How many seeds a margin needs, and what a given number of seeds can show; the spread comes from an earlier study."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import polars as pl
import scipy

from ablate.core.objectives import quality_objective, signed
from ablate.results.comparison.comparison import seed_values
from ablate.results.front.assessment import values_by_seed
from ablate.results.front.front import confirmed, metric_at
from ablate.results.statistics.looks import ERROR, share_of
from ablate.results.trials.results import Results

Question = Literal["non-inferiority", "equivalence"]
QUESTIONS: tuple[Question, ...] = ("non-inferiority", "equivalence")
POWER = 0.8
ALPHA = ERROR * share_of(1)  # of each one-sided test at the first look
MOST_PAIRS = 10_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


@dataclass(frozen=True, kw_only=True)
class PairedSpread:
    """The standard deviation over seeds of paired differences, pooled over arms, with its degrees of freedom."""

    sd: float
    freedom: int

    @property
    def upper(self) -> float:
        """The one-sided 95% upper limit of the true standard deviation, for normal differences."""
        return self.sd * math.sqrt(self.freedom / float(scipy.special.chdtri(self.freedom, 0.95)))


def margin_power(question: Question, pairs: int, margin: float, tests: int = 1) -> float:
    """Return the probability that `pairs` paired t tests settle `question` if the true difference is 0.

    `margin` is in units of sd(d). A test is at ALPHA; in a family of `tests` it is at the level of Holm's first step,
    ALPHA / `tests`. Non-inferiority: the lower bound of the interval is above -margin. Equivalence: the interval is
    inside ±margin (two one-sided tests). Exact, by integration over the distribution of the sample's standard
    deviation.
    """
    if pairs < 2:
        return 0.0
    freedom = pairs - 1
    critical, shift = float(scipy.special.stdtrit(freedom, 1 - ALPHA / tests)), margin * math.sqrt(pairs)
    # integral over equal probabilities of s/σ; above shift/critical no interval is inside the margin
    last = float(scipy.special.chdtr(freedom, freedom * (shift / critical) ** 2)) if question == "equivalence" else 1.0
    share = last * (_NODES + 1) / 2
    ratio = np.sqrt(scipy.special.chdtri(freedom, 1 - share) / freedom)
    reach = scipy.special.ndtr(shift - critical * ratio)
    settled = 2 * reach - 1 if question == "equivalence" else reach
    return float(last / 2 * (_WEIGHTS * settled).sum())


@cache
def pairs_needed(question: Question, margin: float, tests: int = 1) -> int | None:
    """Return the fewest pairs with 80% power for a margin in units of sd(d); None above 10,000."""
    found = bisect_left(range(MOST_PAIRS + 1), POWER, 2, key=lambda pairs: margin_power(question, pairs, margin, tests))
    return found if found <= MOST_PAIRS else None


@cache
def smallest_margin(question: Question, pairs: int, tests: int = 1) -> float:
    """Return the smallest margin, in units of sd(d), that `pairs` pairs settle with 80% power; infinite below two."""
    if pairs < 2:
        return math.inf
    low, high = 0.0, 1.0
    while margin_power(question, pairs, high, tests) < POWER:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if margin_power(question, pairs, middle, tests) >= POWER else (middle, high)
    return high


def paired_spreads(results: Results) -> dict[str, PairedSpread]:
    """Return the spread of paired differences in an earlier study, by metric; without two common seeds none.

    A comparison: every variant against its baseline in every column, each weighted by its degrees of freedom. A
    search: every confirmed network against the best confirmed network of its data set, in the first quality metric.
    Differences with a diverged seed are left out.
    """
    if not results.reports.height:
        return {}
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
    study = results.study
    values = seed_values(results)
    base = values.filter(pl.col("variant") == study.compared.baseline)
    others = values.filter(pl.col("variant") != study.compared.baseline)
    both = others.join(base, on=["metric", "column", "seed"], suffix="_base").sort(
        "metric", "column", "variant", "seed"
    )
    both = both.with_columns(d=pl.col("value") - pl.col("value_base"))
    groups = both.group_by("metric", "column", "variant", maintain_order=True).agg("d")
    return _pooled_by_metric((row["metric"], row["d"]) for row in groups.iter_rows(named=True))


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
