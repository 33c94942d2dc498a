"""The law of error against size: a posterior of power laws, with or without a floor, and of networks' scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS = 4000
FLOORS = np.array([-4, -2, -1, -0.5, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97])
PRIOR = np.r_[np.full(4, 0.025), 0.5, np.full(10, 0.04)]  # of each floor
SCATTER = np.array([0, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48])  # in log error, equally likely
SLOPES = 161  # of the grid
POOLED = 4  # degrees of freedom with which the pooled variance over seeds enters that of a network
NO_ERROR = 1.4  # standard deviation, in log error, of a network without an error
LEAST = 1e-3  # standard deviation, in log error, that every network has at least


@dataclass(frozen=True, kw_only=True)
class Network:
    """One network: its size, its error by seed [seeds], and by test sample [samples], the mean over seeds."""

    size: float
    errors: Array
    samples: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Draws of the law e^level (floor + (1 - floor) (N / largest)^-exponent), [draws] each.

    `floor` is a share of the error at the largest size: 0 is a power law, a negative one falls faster at large sizes.
    A network lies `scatter` times a standard normal value off the law in log error; `luck` is that value of a draw.
    """

    smallest: float
    largest: float
    level: Array
    floor: Array
    exponent: Array
    scatter: Array
    luck: Array

    def error(self, size: float, *, network: bool = False) -> Array:
        """Return the error at a size, that of the law or that of one network, [draws]."""
        bend = (size / self.largest) ** -self.exponent
        law = np.exp(self.level) * np.maximum(self.floor + (1 - self.floor) * bend, 0.0)
        return np.asarray(law * np.exp(self.scatter * self.luck) if network else law)

    def size_for(self, error: float) -> Array:
        """Return the size at which the law has an error, [draws]; infinite if no size has it.

        Where the error does not fall, it is 0 for an error above that at the largest size, otherwise infinite.
        """
        share = error / np.exp(self.level)
        bend = (share - self.floor) / (1 - self.floor)
        falls = self.exponent > 0
        power = np.divide(np.log(np.maximum(bend, 1e-300)), self.exponent, where=falls, out=np.zeros(len(bend)))
        found = self.largest * np.exp(np.minimum(-power, 600.0))
        return np.where(falls, np.where(bend > 0, found, math.inf), np.where(share > 1, 0.0, math.inf))

    def slope(self, low: float, high: float) -> Array:
        """Return the mean exponent between two sizes, [draws]."""
        return np.asarray(np.log(self.error(low) / self.error(high)) / math.log(high / low))

    def change(self, low: float, high: float, times: float) -> Array:
        """Return the factor of the error at `times` the size, on average between two sizes, [draws]."""
        return np.asarray(times ** -self.slope(low, high))


def ends(draws: Array) -> tuple[float, float, float]:
    """Return the median of draws and the ends of their 95% interval, which may be infinite."""
    middle, low, high = np.quantile(draws, (0.5, 0.025, 0.975), method="inverted_cdf").tolist()
    return middle, low, high


def slope_difference(a: Curve, b: Curve) -> tuple[tuple[float, float, float], float] | None:
    """Return the difference of two independent mean exponents with its interval, and its two-sided p-value.

    They are those over the sizes that both have measured; None if these are under half a decade.
    """
    low, high = max(a.smallest, b.smallest), min(a.largest, b.largest)
    if high < low * math.sqrt(10):
        return None
    draws = np.random.default_rng(20240501).permutation(a.slope(low, high)) - b.slope(low, high)
    share = min(float((draws > 0).mean()), float((draws < 0).mean()))
    return ends(draws), min(2 * max(share, 1 / DRAWS), 1.0)


def fit_networks(networks: Sequence[Network], count: int | None = None) -> Curve:
    """Fit the law to four sizes or more; a network without an error counts as half of its `count` samples."""
    mean = np.array([each.errors.mean() for each in networks])
    wrong = mean > 0
    mean[~wrong] = 0.5 / count if count else 0.5 * mean[wrong].min(initial=1.0)
    seeds = np.where(wrong, _seed_variances(networks, mean, wrong), NO_ERROR**2)
    return fit_curve(
        np.array([each.size for each in networks]), np.log(mean), np.diag(seeds), _sample_covariance(networks, mean)
    )


def _seed_variances(networks: Sequence[Network], mean: Array, wrong: NDArray[np.bool_]) -> Array:
    """Return the variance of log mean errors over seeds, [networks]: each network's is drawn to the pooled one."""
    n = np.array([len(each.errors) for each in networks])
    squares = np.array([((each.errors - each.errors.mean()) ** 2).sum() for each in networks]) / mean**2
    pooled = squares[wrong].sum() / max((n[wrong] - 1).sum(), 1)
    return np.asarray((squares + POOLED * pooled) / (n - 1 + POOLED) / n)


def _sample_covariance(networks: Sequence[Network], mean: Array) -> Array:
    """Return the covariance of log mean errors over the samples that networks share; 0 if it is not known."""
    values = [each.samples for each in networks if each.samples is not None]
    if len(values) < len(networks):
        return np.zeros((len(networks), len(networks)))
    return np.asarray(np.cov(np.array(values)) / len(values[0]) / np.outer(mean, mean))


def fit_curve(sizes: Array, y: Array, seeds: Array, samples: Array) -> Curve:
    """Return draws of the law of log errors `y` [k], whose covariances over seeds and samples are [k, k].

    What samples share along the line moves the law as a whole; the rest of it is noise of single networks. Neighbours
    share half of their scatter, because a lucky network also decides which others are on a front.
    """
    t = np.log(sizes / sizes.max())
    k, span, design = len(t), -t.min(), np.stack([np.ones(len(t)), t], axis=1)
    seeds = seeds + LEAST**2 * np.eye(k)
    weighted = design.T / (np.diag(seeds) + 0.05**2)
    line = np.linalg.solve(weighted @ design, weighted)
    off = np.eye(k) - design @ line
    noise = seeds + off @ samples @ off.T
    slope, floor, prior = _grid(y, line, off, noise)
    bend = np.exp(-_exponent(slope, floor, span)[:, None] * t)
    residual = y - np.log(floor[:, None] + (1 - floor[:, None]) * bend)
    alike = (np.eye(k) + np.exp(-2 * np.abs(t[:, None] - t))) / 2
    cells = []
    for scatter in SCATTER:
        inverse = np.linalg.inv(noise + scatter**2 * alike)
        known = inverse.sum()
        level = residual @ inverse.sum(axis=0) / known
        misfit = ((residual @ inverse) * residual).sum(axis=1) - known * level**2
        fit = np.linalg.slogdet(inverse)[1] / 2 - math.log(known) / 2 - misfit / 2 + np.log(prior)
        cells.append((fit, level, np.full(len(level), known**-0.5)))
    fit, level, width = np.array(cells).swapaxes(0, 1)
    chance = np.exp(fit - fit.max()).ravel().cumsum()
    rng = np.random.default_rng(20240501)
    cell = np.searchsorted(chance / chance[-1], (np.arange(DRAWS) + rng.random()) / DRAWS)
    i, j = np.unravel_index(cell, fit.shape)
    spread, vectors = np.linalg.eigh(line @ samples @ line.T)
    moved = rng.standard_normal((DRAWS, 2)) * np.sqrt(np.clip(spread, 0, None)) @ vectors.T
    level = level[i, j] + width[i, j] * rng.standard_normal(DRAWS) + moved[:, 0]
    slope, floor = slope[j] - moved[:, 1], floor[j]
    slope = np.where(floor == 0, slope, np.maximum(slope, 1e-3))
    return Curve(
        smallest=float(sizes.min()),
        largest=float(sizes.max()),
        level=level,
        floor=floor,
        exponent=_exponent(slope, floor, span),
        scatter=SCATTER[i],
        luck=rng.standard_normal(DRAWS),
    )


def _grid(y: Array, line: Array, off: Array, noise: Array) -> tuple[Array, Array, Array]:
    """Return mean slope, floor and prior of every cell; slopes lie about that of the line through all networks."""
    rest = off @ y
    spread = line[1] @ noise @ line[1] + rest @ rest / (len(y) - 2) * (line[1] @ line[1])
    wide, middle = 10 * math.sqrt(spread) + 0.01, -float(line[1] @ y)
    slope, floor = np.meshgrid(np.linspace(middle - wide, middle + wide, SLOPES), FLOORS)
    prior = np.where((floor == 0) | (slope > 0), PRIOR[:, None], 0.0)
    return slope[prior > 0], floor[prior > 0], prior[prior > 0]


def _exponent(slope: Array, floor: Array, span: float) -> Array:
    """Return the law's exponent from its mean slope over the data and its floor."""
    return np.asarray(np.log((np.exp(slope * span) - floor) / (1 - floor)) / span)
