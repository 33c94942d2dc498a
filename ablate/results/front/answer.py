"""The comparison of confirmed networks with the best of them, at error rates that hold although the best is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from ablate.results.statistics.intervals import LEVEL, Interval, metric_interval
from ablate.results.statistics.looks import ERROR, holm, share_of
from ablate.results.statistics.studentized_range import range_quantile
from ablate.results.statistics.two_way import Layout, lay_out

FEWEST = 3  # seeds below which a best network's number is not corrected for being chosen
PROJECTION = 0.005  # error spent on the simultaneous bounds of the best's interval (Andrews et al. 2024: a tenth)
Verdict = Literal["best", "non-inferior", "worse", "not distinguished"]
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A network's mean minus that of the best, in the metric's unit where larger is better, and its verdict.

    `low` and `high` are bounds of the difference to the best of the other networks, whichever that is; those of all
    networks hold together with probability 0.95.
    """

    mean: float
    low: float
    high: float
    verdict: Verdict


def compare_with_best(values: Values, *, margin: float | None = None, look: int = 1) -> tuple[Difference, ...] | None:
    """Return each network's difference to the best, for `values` [networks, seeds], larger is better.

    A value is NaN where a network was not trained on a seed; means are adjusted for the seeds that a network lacks
    (`lay_out`). The best has the highest mean; of equal ones, the first. Differences are paired by seed. The standard
    error of a pair is the larger of two: that of the pair alone, and the one pooled over all networks. *worse*: the
    upper bound is below 0; bounds are those of all pairs (Tukey and Kramer), so equal networks give any such verdict in
    at most 5% of pages. *non-inferior*: by a one-sided test the network is less than `margin` below each of the others,
    Holm over networks; because it is compared with all, it does not matter which of them is the best. `look` is
    the number of this look at growing results; bounds and tests have its share of the 5% (`share_of`). Returns None for
    fewer than two networks or seeds, or if the seeds do not differ.
    """
    networks = len(values)
    if networks < 2 or np.isinf(values).any() or not np.isfinite(values).any(axis=1).all():
        return None
    found = lay_out(values)
    if not found.is_known:
        return None
    means = found.means
    gaps = means[:, None] - means[None, :]
    errors = _errors(values, found)
    error = ERROR * share_of(look)
    reach = range_quantile(1 - error, networks, found.residual_df) / math.sqrt(2) * errors
    others = ~np.eye(networks, dtype=np.bool_)
    low = np.min(gaps - reach, axis=1, where=others, initial=math.inf)
    high = np.min(gaps + reach, axis=1, where=others, initial=math.inf)
    best = int(means.argmax())
    fits = [False] * networks
    if margin is not None:
        scores = np.divide(gaps + margin, errors, where=others, out=np.full_like(gaps, math.inf)).min(axis=1)
        fits = [p <= error for p in holm(scipy.special.stdtr(found.residual_df, -scores).tolist())]
    return tuple(
        Difference(
            mean=float(means[i] - means[best]),
            low=float(low[i]),
            high=float(high[i]),
            verdict=_verdict(i == best, bool(fits[i]), float(high[i])),
        )
        for i in range(networks)
    )


def _verdict(best: bool, fits: bool, high: float) -> Verdict:
    if best:
        return "best"
    if fits:
        return "non-inferior"
    return "worse" if high < 0 else "not distinguished"


def _errors(values: Values, found: Layout) -> Values:
    """Return the standard error of each paired difference, [networks, networks]: its own, at least the pooled one."""
    pairs = values[:, None, :] - values[None, :, :]
    both = np.isfinite(pairs).sum(axis=2)
    apart = np.nan_to_num(pairs - (np.nansum(pairs, axis=2) / np.maximum(both, 1))[:, :, None])
    own = (apart**2).sum(axis=2) / np.maximum(both - 1, 1)
    weight = found.own.diagonal()[:, None] + found.own.diagonal() - 2 * found.own
    return np.asarray(np.sqrt(np.maximum(own / 2, found.residual) * weight))


def unselected_best(values: Values, metric: str = "", *, samples: int | None = None) -> Interval:
    """Return mean and 95% interval of the network with the highest mean, as if it had not been chosen by it.

    `values` are [networks, seeds], larger is better, NaN where a network was not trained. The mean is cross-fitted:
    each seed is read from the network that is best on the other seeds. The interval is the hybrid one of Andrews,
    Kitagawa and McCloskey, "Inference on winners" (Quarterly Journal of Economics 2024): the chosen mean is a normal
    value that is known to exceed the runner-up, and it lies within simultaneous bounds. Variances are pooled over
    networks, so t replaces the normal distribution. If the best varies more than the others, the interval also covers
    `metric_interval` of its seeds, for which `metric` and `samples` are. The interval contains the mean. Below FEWEST
    seeds nothing is corrected, and the result is `metric_interval` of the best network's seeds.
    """
    found = lay_out(values)
    best = int(found.means.argmax())
    seeds = values[best][np.isfinite(values[best])]
    own = metric_interval(metric, seeds.tolist(), samples=samples)
    if len(values) < 2 or len(seeds) < FEWEST or not math.isfinite(own.low) or not found.is_known:
        return own
    mean, ends = cross_fitted(values), _hybrid_ends(found, best)
    if seeds.var(ddof=1) > found.total:
        ends = (min(ends[0], own.low), max(ends[1], own.high))
    return replace(own, mean=mean, low=min(ends[0], mean), high=max(ends[1], mean))


def cross_fitted(values: Values) -> float:
    """Return the mean over seeds of the network that is best on the other seeds, for `values` [networks, seeds].

    Where networks lack seeds, each seed that all have is left out together with a share of the others, so that every
    network is measured in every part. With fewer than two such seeds the result is the mean of the best.
    """
    there = np.isfinite(values).all(axis=0)
    if there.all():
        chosen = (values.sum(axis=1, keepdims=True) - values).argmax(axis=0)
        return float(values[chosen, np.arange(values.shape[1])].mean())
    if there.sum() < 2:
        return float(lay_out(values).means.max())
    part = np.where(there, np.cumsum(there) - 1, np.cumsum(~there) % there.sum())
    sides = [(lay_out(values[:, part != i]), lay_out(values[:, part == i])) for i in range(there.sum())]
    return float(np.mean([left_out.means[rest.means.argmax()] for rest, left_out in sides]))


def _hybrid_ends(found: Layout, best: int) -> tuple[float, float]:
    """Return the ends: where the chosen mean is the 97.5% and the 2.5% quantile of its truncated t distribution."""
    networks, df, means = len(found.means), found.total_df, found.means
    covariance = found.residual * found.own[best] + found.common
    error, at = math.sqrt(covariance[best]), float(means[best])
    shared = np.clip(np.delete(covariance, best) / covariance[best], 0.0, 0.999)
    beaten = min(float(((np.delete(means, best) - shared * at) / (1 - shared)).max()), at)  # the chosen is above this
    reach = float(scipy.special.stdtrit(df, 1 - PROJECTION / (2 * networks)))
    tail = (1 - LEVEL - PROJECTION) / (1 - PROJECTION) / 2

    def quantile_of_best(center: float, target: float) -> float:
        lowest = float(scipy.special.stdtr(df, max((beaten - center) / error, -reach)))
        whole = float(scipy.special.stdtr(df, reach)) - lowest
        part = float(scipy.special.stdtr(df, (at - center) / error)) - lowest
        return (part / whole if whole > 1e-12 else 1.0) - target

    ends = []
    for target in (1 - tail, tail):
        bounds = (at - reach * error, at + reach * error)
        if quantile_of_best(bounds[0], target) * quantile_of_best(bounds[1], target) > 0:
            ends.append(bounds[0] if target > 0.5 else bounds[1])
        else:
            ends.append(
                float(scipy.optimize.brentq(quantile_of_best, *bounds, args=(target,), xtol=1e-9 * max(error, 1e-9)))
            )
    return ends[0], ends[1]
