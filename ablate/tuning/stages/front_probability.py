"""How surely a network dominates another one, when each mean over seeds has an error and costs are known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SeedMeans:
    """Means over the seeds of n networks on m objectives.

    `means` [n, m] are oriented so that smaller is better, `seeds` [n] is the number of seeds of each. `covariance`
    [m, m] is that of one seed, pooled over the networks with `df` degrees of freedom; it is 0 on exact objectives.
    `noisy` [m] says which objectives depend on the seed.
    """

    means: Floats
    seeds: NDArray[np.int64]
    covariance: Floats
    df: int
    noisy: NDArray[np.bool_]


def pool_seeds(samples: Sequence[Floats], noisy: Sequence[bool]) -> SeedMeans:
    """Return the means of `samples`: an array [seeds, m] per network, smaller is better, constant where not `noisy`."""
    equal = [np.ptp(sample, axis=0) == 0 for sample in samples]  # the mean of equal values is that value, to the bit
    means = np.stack([np.where(e, sample[0], sample.mean(axis=0)) for e, sample in zip(equal, samples, strict=True)])
    rest = np.concatenate([sample - mean for sample, mean in zip(samples, means, strict=True)])
    df = sum(len(sample) - 1 for sample in samples)
    covariance = rest.T @ rest / max(df, 1)
    mask = np.array(noisy, dtype=bool)
    return SeedMeans(
        means=means,
        seeds=np.array([len(sample) for sample in samples]),
        covariance=np.where(np.outer(mask, mask), covariance, 0.0),
        df=df,
        noisy=mask,
    )


def domination_bounds(found: SeedMeans) -> tuple[Floats, Floats]:
    """Return a lower and an upper bound [n, n] of the probability that network j dominates network i, as [j, i].

    In closed form, from the t distribution of each difference of two means. With one noisy objective both are the
    probability itself; with several they are the bounds of Fréchet. An unknown variance (one seed each) gives 1/2.
    """
    n, m = found.means.shape
    lower, upper = np.ones((n, n)), np.ones((n, n))
    better = np.zeros((n, n), dtype=bool)
    for k in range(m):
        gap = found.means[None, :, k] - found.means[:, None, k]  # above 0 where j is better than i
        share = _share(gap, k, found)
        better |= gap > 0 if not found.noisy[k] or not found.covariance[k, k] else True
        lower, upper = lower - (1 - share), np.minimum(upper, share)
    possible = better & ~np.eye(n, dtype=bool)
    return np.where(possible, np.clip(lower, 0.0, 1.0), 0.0), np.where(possible, upper, 0.0)


def _share(gap: Floats, k: int, found: SeedMeans) -> Floats:
    """Return the probability that j is no worse than i on objective k."""
    if not found.noisy[k]:
        return (gap >= 0).astype(np.float64)
    if found.df == 0:
        return np.full(gap.shape, 0.5)
    if found.covariance[k, k] == 0:
        return (gap >= 0).astype(np.float64)
    error = np.sqrt(found.covariance[k, k] * (1 / found.seeds[:, None] + 1 / found.seeds[None, :]))
    return np.asarray(scipy.special.stdtr(found.df, gap / error), dtype=np.float64)
