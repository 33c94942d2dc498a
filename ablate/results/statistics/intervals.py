"""Intervals over replicates: Student's t, on log errors for accuracies near 1; outlying seeds; detectable effects."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import scipy

from ablate.core.objectives import is_share
from ablate.results.statistics.looks import ERROR, share_of

LEVEL = 0.95  # of an interval that says nothing else
NEAR_ONE = 0.9  # above this mean a share's interval is computed on its log errors
FEW_SEEDS = 5  # below this, only differences of more than 1.7 standard deviations are found with 80% power
FEWEST_SKEWED = 3  # replicates below which a skewed law cannot be fitted
FIRST_LEVEL = 1 - ERROR * share_of(1)
OUTLIER_LEVEL = 0.05  # chance that a page of normal seeds has one called outlying


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over `n` replicates with its t interval; `low` and `high` are NaN for fewer than two."""

    mean: float
    low: float
    high: float
    n: int
    sd: float


def t_quantile(n: int, level: float) -> float:
    """Return the two-sided t quantile with n - 1 degrees of freedom."""
    return float(scipy.special.stdtrit(n - 1, 0.5 + level / 2))


def t_interval(
    values: Sequence[float], *, level: float = LEVEL, within: tuple[float, float] = (-math.inf, math.inf)
) -> Interval:
    """Return mean ± t(n-1) sd/√n of independent replicates.

    `within` are the bounds of the quantity (0 to 1 for a share); clipping to them does not change coverage. One NaN
    makes everything NaN: a diverged replicate is not silently dropped.
    """
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    if n < 2 or not math.isfinite(mean):
        return Interval(mean=mean, low=math.nan, high=math.nan, n=n, sd=math.nan)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(n, level) * sd / math.sqrt(n)
    low, high = max(mean - half, within[0]), min(mean + half, within[1])
    return Interval(mean=mean, low=low, high=high, n=n, sd=sd)


def metric_interval(metric: str, values: Sequence[float], *, samples: int | None = None) -> Interval:
    """Return a metric's mean over replicates with its interval, on the scale where replicates are closest to normal.

    A share with a mean above NEAR_ONE has skewed seeds: the interval of its mean is that of lognormal errors (see
    `log_mean_ends`). If a seed makes no error, half a sample of the `samples` that were evaluated is added to every
    error. Without `samples`, below FEWEST_SKEWED replicates, and for every other metric, the interval is Student's t of
    the values, clipped to what the metric can be. The interval contains the mean.
    """
    plain = t_interval(values, within=natural_bounds(metric))
    logs = log_errors(metric, values, samples=samples)
    if logs is None or not math.isfinite(plain.low) or plain.n < FEWEST_SKEWED:
        return plain
    added = _added(values, samples)
    ends = reversed(log_mean_ends(t_interval(logs)))
    low, high = (min(max(1 + added - math.exp(min(end, 1.0)), 0.0), 1.0) for end in ends)
    return replace(plain, low=min(low, plain.mean), high=max(high, plain.mean))


def log_mean_ends(logs: Interval) -> tuple[float, float]:
    """Return the ends of the logarithm of the mean of values whose logarithms are normal, with interval `logs`.

    That mean is exp(mean + variance / 2); the two intervals are joined by the method of variance estimates recovery
    (Zou, Huo and Taleban, Environmetrics 2009).
    """
    half, freedom = logs.sd**2 / 2, logs.n - 1
    tails = (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)
    low, high = (half * freedom / float(scipy.special.chdtri(freedom, tail)) for tail in tails)
    center = logs.mean + half
    return (
        center - math.hypot(logs.mean - logs.low, half - low),
        center + math.hypot(logs.high - logs.mean, high - half),
    )


def log_errors(metric: str, values: Sequence[float], *, samples: int | None = None) -> list[float] | None:
    """Return log(1 - value) of a share with a mean above NEAR_ONE, or None where that scale is not used."""
    if not is_share(metric) or not values or not NEAR_ONE < math.fsum(values) / len(values) <= 1:
        return None
    errors = [1 - value + _added(values, samples) for value in values]
    return [math.log(error) for error in errors] if min(errors) > 0 else None


def _added(values: Sequence[float], samples: int | None) -> float:
    """Return what is added to every error: half a sample if a seed makes none and their number is known."""
    return 0.5 / samples if samples and max(values) >= 1 else 0.0


def outlying(metric: str, values: Sequence[float], *, samples: int | None = None, rows: int = 1) -> list[int]:
    """Return the places of values that the other ones do not explain, such as a seed that collapsed.

    Each value is compared with the mean of the others by a t test of prediction, n - 2 degrees of freedom, Bonferroni
    over the values of all `rows` of a page (Grubbs' test). Near 1 the log errors are compared. Fewer than four values
    have no outlier.
    """
    n = len(values)
    if n < 4 or not all(map(math.isfinite, values)):
        return []
    scaled = log_errors(metric, values, samples=samples) or list(values)
    found = []
    for place, value in enumerate(scaled):
        rest = t_interval([*scaled[:place], *scaled[place + 1 :]])
        gap = abs(value - rest.mean)
        # equal others have no spread: any visible difference from them is outlying
        score = gap / (rest.sd * math.sqrt(n / (n - 1))) if rest.sd > 1e-12 else (math.inf if gap > 1e-9 else 0.0)
        if score > t_quantile(n - 1, 1 - OUTLIER_LEVEL / (n * rows)):
            found.append(place)
    return found


def clopper_pearson(count: int, n: int) -> tuple[float, float]:
    """Return the exact 95% interval of a chance that was met `count` times in n (Clopper and Pearson 1934)."""
    tail = 0.5 - LEVEL / 2
    low = float(scipy.special.betaincinv(count, n - count + 1, tail)) if count else 0.0
    return low, float(scipy.special.betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0


def natural_bounds(metric: str) -> tuple[float, float]:
    """Return the bounds of a metric: 0 to 1 for an accuracy, 0 upwards for a loss."""
    if is_share(metric):
        return (0.0, 1.0)
    return (0.0, math.inf) if metric.endswith("loss") else (-math.inf, math.inf)


@cache
def smallest_effect(pairs: int, *, power: float = 0.8, level: float = FIRST_LEVEL) -> float:
    """Return the smallest paired difference, in units of sd(d), that a two-sided t test finds with `power`.

    The default level is that of one test at the first look. Exact, from the non-central t distribution; infinite for
    fewer than two pairs.
    """
    if pairs < 2:
        return math.inf
    critical, df, wrong_side = t_quantile(pairs, level), pairs - 1, 0.0
    for _ in range(9):  # the probability of the wrong side shrinks each correction by ten or far more
        shift = float(scipy.special.nctdtrinc(df, 1 - power + wrong_side, critical))
        below = float(scipy.special.nctdtr(df, shift, -critical))
        wrong_side = 0.0 if math.isnan(below) else below  # NaN if it underflows
    return shift / math.sqrt(pairs)


def seeds_needed(effect: float, *, level: float) -> int | None:
    """Return the smallest number of pairs that find `effect`, in units of sd(d), with 80% power; None above 1,000."""
    found = bisect_left(range(1001), True, 2, key=lambda pairs: smallest_effect(pairs, level=level) <= effect)
    return found if found <= 1000 else None
