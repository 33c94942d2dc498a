"""Intervals over replicates: Student's t, and the smallest effect that a small number of replicates can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from scipy import special

from ablate.objectives import is_share


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over `n` replicates with its t interval; `low` and `high` are NaN for fewer than two."""

    mean: float
    low: float
    high: float
    n: int
    sd: float
    level: float

    @property
    def half_width(self) -> float:
        """Half the width before any clipping: t * sd / sqrt(n)."""
        return t_quantile(self.n, self.level) * self.sd / math.sqrt(self.n) if self.n > 1 else math.nan


def t_quantile(n: int, level: float = 0.95) -> float:
    """Return the two-sided t quantile with n - 1 degrees of freedom."""
    return float(special.stdtrit(n - 1, 0.5 + level / 2))


def t_interval(
    values: Sequence[float], *, level: float = 0.95, within: tuple[float, float] = (-math.inf, math.inf)
) -> Interval:
    """Return mean ± t(n-1) sd/√n of independent replicates.

    `within` are the bounds of the quantity (0 to 1 for a share); clipping to them does not change coverage. One NaN
    makes everything NaN: a diverged replicate is not silently dropped.
    """
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    if n < 2 or not math.isfinite(mean):
        return Interval(mean=mean, low=math.nan, high=math.nan, n=n, sd=math.nan, level=level)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(n, level) * sd / math.sqrt(n)
    low, high = max(mean - half, within[0]), min(mean + half, within[1])
    return Interval(mean=mean, low=low, high=high, n=n, sd=sd, level=level)


def natural_bounds(metric: str) -> tuple[float, float]:
    """Return the bounds of a metric: 0 to 1 for an accuracy, 0 upwards for a loss."""
    if is_share(metric):
        return (0.0, 1.0)
    return (0.0, math.inf) if metric.endswith("loss") else (-math.inf, math.inf)


@cache
def smallest_effect(pairs: int, *, power: float = 0.8, level: float = 0.95) -> float:
    """Return the smallest paired difference, in units of sd(d), that a two-sided t test finds with `power`.

    Exact, from the non-central t distribution; infinite for fewer than two pairs.
    """
    if pairs < 2:
        return math.inf
    from scipy import optimize, stats  # the import takes half a second, and only verdicts need it

    library: Any = stats
    brentq: Any = optimize.brentq
    critical, df = t_quantile(pairs, level), pairs - 1

    def shortfall(effect: float) -> float:
        shift = effect * math.sqrt(pairs)
        wrong_side = float(library.nct.cdf(-critical, df, shift))  # NaN if it underflows
        return float(library.nct.sf(critical, df, shift)) + (0.0 if math.isnan(wrong_side) else wrong_side) - power

    high = 1.0
    while shortfall(high) < 0:
        high *= 2
    return float(brentq(shortfall, 0.0, high, xtol=1e-6))


def seeds_needed(effect: float, *, power: float = 0.8, level: float = 0.95, most: int = 1000) -> int | None:
    """Return the smallest number of pairs that find `effect`, in units of sd(d), with `power`; None above `most`."""
    if not effect >= smallest_effect(most, power=power, level=level):
        return None
    low, high = 1, most  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if smallest_effect(middle, power=power, level=level) <= effect else (middle, high)
    return high
