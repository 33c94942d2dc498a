"""Intervals for other seeds and other samples: the variance of a mean over both, which are crossed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from ablate.core.objectives import is_share
from ablate.results.statistics.intervals import LEVEL, Interval, natural_bounds, t_quantile

Values = NDArray[np.float64]
TINY = 1e-150
SEEDS_ONLY, SAMPLES_TOO = "seeds", "seeds and samples"  # what varies in an interval


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A mean over `n` seeds and `count` samples with the parts of its variance, in squared units of the metric.

    `seeds` would be left with infinitely many samples, `samples` with infinitely many seeds; `both` is the part that
    falls with either. `df` are the degrees of freedom of `variance`. `on_these` is the variance for the same samples,
    that of the seeds' means alone. `tail` is the absolute skewness of the samples over the root of their number.
    """

    mean: float
    n: int
    count: int
    seeds: float
    samples: float
    both: float
    df: float
    on_these: float
    tail: float = 0.0

    @property
    def variance(self) -> float:
        """The variance of the mean."""
        return self.seeds + self.samples + self.both

    @property
    def reach(self) -> float:
        """Half the width of the t interval, which is at least that for the same samples."""
        wide = float(scipy.special.stdtrit(self.df, 0.5 + LEVEL / 2)) * math.sqrt(self.variance)
        return max(wide, t_quantile(self.n, LEVEL) * math.sqrt(self.on_these))


def spread(parts: Sequence[Values]) -> Spread | None:
    """Return mean and variance of values [seeds, samples]; of several data sets, of the mean of their means.

    Seeds and samples are both random, and crossed: each seed is read on the same samples. The parts of the variance
    come from the mean squares of the two-way layout with one value per cell; a negative part counts as 0. The seeds are
    those of all data sets, and the samples of two data sets are independent. Degrees of freedom: Satterthwaite
    (Biometrics Bulletin 2, 1946). Returns None for fewer than two seeds or samples, or for values that are not finite.
    """
    sizes = [part.shape for part in parts]
    if not sizes or min(min(size) for size in sizes) < 2 or not all(np.isfinite(part).all() for part in parts):
        return None
    n, share = sizes[0][0], 1 / len(parts) ** 2
    by_seed = np.mean([part.mean(axis=1) for part in parts], axis=0)
    of_seeds = float(by_seed.var(ddof=1)) / n  # with the part of `both`
    of_samples = both = tail = 0.0
    weighed = of_seeds**2 / (n - 1)
    for part in parts:
        m = part.shape[1]
        by_sample = part.mean(axis=0)
        apart = by_sample - by_sample.mean()
        tail = max(tail, float(abs((apart**3).sum()) / max((apart**2).sum(), TINY) ** 1.5))
        rest = part - part.mean(axis=1, keepdims=True) - by_sample + part.mean()
        cells = float((rest**2).sum()) / ((n - 1) * (m - 1)) / (n * m) * share
        columns = float(by_sample.var(ddof=1)) / m * share  # with its part of `both`
        of_samples, both = of_samples + max(columns - cells, 0.0), both + cells
        weighed += columns**2 / (m - 1) + cells**2 / ((n - 1) * (m - 1))
    seeds = max(of_seeds - both, 0.0)
    variance, count = seeds + of_samples + both, sum(m for _, m in sizes)
    return Spread(
        mean=float(by_seed.mean()),
        n=n,
        count=count,
        seeds=seeds,
        samples=of_samples,
        both=both,
        df=variance**2 / weighed if weighed > 0 else float(count - 1),
        on_these=of_seeds,
        tail=tail,
    )


def sources_of(interval: Interval, found: Spread | None) -> str | None:
    """Return what varies in an interval: seeds and samples, or seeds alone; None without an interval."""
    if found is not None:
        return SAMPLES_TOO
    return SEEDS_ONLY if math.isfinite(interval.low) else None


def sample_interval(metric: str, found: Spread) -> Interval:
    """Return the interval of a metric's mean for other seeds and other samples of the same kind.

    A share's is the t interval of the log odds, transformed back; at no error, or none right, half a sample counts.
    Any other metric's is Student's t, clipped to what the metric can be.
    """
    reach = found.reach
    if is_share(metric):
        safe = _inside(found.mean, found.count)
        least = _normal() * 0.5 / found.count if safe != found.mean else 0.0
        reach = max(reach, least) / (safe * (1 - safe))
    center = _odds(metric, found.mean, found.count)
    return _ends(metric, found, center - reach, center + reach)


def difference_interval(found: Spread, *, share: bool) -> Interval:
    """Return the t interval of a mean of paired differences, for other seeds and samples.

    The standard error of a share is at least one sample, as if half a sample were added to each of the two cells in
    which the networks differ.
    """
    reach = max(found.reach, _normal() / found.count if share else 0.0)
    return Interval(mean=found.mean, low=found.mean - reach, high=found.mean + reach, n=found.n, sd=math.nan)


def widened(metric: str, number: Interval, chosen: Spread, networks: Sequence[Spread]) -> Interval:
    """Return an interval over seeds widened by the samples: each side and the samples' own add in quadrature.

    `number` may be corrected for a choice, so its mean and sides may differ from those of `chosen`. A network that is
    best by few errors was lucky with its samples, so the samples' part of a share p, over p(1 - p), is the mean over
    all `networks`, and at least that of half a sample.
    """
    reach = _normal() * math.sqrt(chosen.samples)
    if is_share(metric):
        shares = [_inside(each.mean, each.count) for each in networks]
        parts = [each.samples / (p * (1 - p)) for each, p in zip(networks, shares, strict=True)]
        safe = _inside(number.mean, chosen.count)
        reach = _normal() * math.sqrt(max(float(np.mean(parts)), 0.5 / chosen.count) / (safe * (1 - safe)))
    middle, low, high = (_odds(metric, value, chosen.count) for value in (number.mean, number.low, number.high))
    ends = middle - math.hypot(middle - low, reach), middle + math.hypot(high - middle, reach)
    return replace(_ends(metric, chosen, *ends), mean=number.mean, sd=number.sd)


def _odds(metric: str, value: float, count: int) -> float:
    """Return a value on the scale of its interval: log odds of a share that is at least half a sample from 0 and 1."""
    if not is_share(metric):
        return value
    return float(scipy.special.logit(_inside(value, count)))


def _inside(share: float, count: int) -> float:
    """Return a share that is at least half a sample from 0 and 1: no error says little about the rate of errors."""
    return min(max(share, 0.5 / count), 1 - 0.5 / count)


def _normal() -> float:
    return float(scipy.special.ndtri(0.5 + LEVEL / 2))


def _ends(metric: str, found: Spread, low: float, high: float) -> Interval:
    """Return the interval with ends of the scale in the metric's unit; it contains the mean."""
    if is_share(metric):
        low, high = (float(scipy.special.expit(end)) for end in (low, high))
    floor, ceiling = natural_bounds(metric)
    return Interval(
        mean=found.mean,
        low=max(min(low, found.mean), floor),
        high=min(max(high, found.mean), ceiling),
        n=found.n,
        sd=math.nan,
    )
