"""How certain a confirmed front is: the probability that each network is on it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ablate.core.objectives import nondominated_losses
from ablate.results.statistics.two_way import NO_SPREAD, lay_out

DRAWS = 2000
FINEST, STEPS = 0.2, 6  # smallest standard deviation of a grid, in standard errors of a mean, and their number
NONE, WEIGHT = 1e-4, 4  # a scatter so small that equal networks are in any order; prior weight of none, of a step: 1
EXACT = 1e-10  # smallest variance of a seed, in squares of the range of means: below it matrices are singular
Values = NDArray[np.float64]


def draw_means(losses: Values, others: Values, rng: np.random.Generator, *, draws: int = DRAWS) -> Values:
    """Return what the true means may be, given the measured ones: posterior draws [draws, networks].

    `losses` are [networks, seeds], NaN where a network was not trained. `others` [networks, m - 1], the other
    objectives, order the networks by cost. The true means are a random walk in that order and scatter about it; both
    spreads are unknown, and so is the level (flat prior). So means are drawn towards those of networks of similar cost,
    the more the noisier they are; draws about the measured means would add their noise a second time. Spreads
    are summed over a grid by their likelihood, with the variance of seeds integrated out (Gelman et al., "Bayesian
    Data Analysis", chapter 5; Rasmussen and Williams, "Gaussian Processes for Machine Learning", section 2.7).
    """
    found = lay_out(losses)
    networks, df = len(losses), found.residual_df or found.total_df
    noise = max(found.residual, EXACT * float(np.ptp(found.means)) ** 2, NO_SPREAD) * found.own
    at = cost_ranks(others)
    walk = np.minimum(at[:, None], at) / max(float(at.max()), 1.0)
    chances, prior = _priors(found.means, noise, walk, df)
    drawn = []
    for cell, count in enumerate(rng.multinomial(draws, chances)):
        if count:
            inverse = np.linalg.inv(prior[cell] + noise)
            known = inverse.sum()
            level = inverse.sum(axis=0) @ found.means / known
            gain = prior[cell] @ inverse
            unknown = 1 - gain.sum(axis=1)
            spread = prior[cell] - gain @ prior[cell] + np.outer(unknown, unknown) / known
            values, vectors = np.linalg.eigh((spread + spread.T) / 2)
            normal = rng.standard_normal((count, networks)) @ (vectors * np.sqrt(np.clip(values, 0, None))).T
            factor = np.sqrt(df / rng.chisquare(df, (count, 1)))
            drawn.append(level + gain @ (found.means - level) + factor * normal)
    common = math.sqrt(found.common) * rng.standard_t(max(losses.shape[1] - 1, 1), (draws, 1))
    return np.asarray(np.concatenate(drawn) + common)


def _priors(means: Values, noise: Values, walk: Values, df: float) -> tuple[Values, Values]:
    """Return the probabilities [g] of the spreads of a grid, given the means, and the prior covariances [g, n, n]."""
    error, networks = math.sqrt(noise.diagonal().mean()), len(means)
    steps = np.geomspace(FINEST * error, 2 * max(float(np.ptp(means)), 2 * error), STEPS)
    trend, scatter = (each.ravel() for each in np.meshgrid([0.0, *steps**2], [(NONE * error) ** 2, *steps**2]))
    prior = np.einsum("g,ij->gij", trend, walk) + np.einsum("g,ij->gij", scatter, np.eye(networks))
    inverse = np.linalg.inv(prior + noise)
    known = inverse.sum(axis=(1, 2))
    rest = means - (inverse.sum(axis=2) @ means / known)[:, None]
    misfit = np.einsum("gi,gij,gj->g", rest, inverse, rest)
    fit = np.linalg.slogdet(inverse)[1] - np.log(known) - (df + networks - 1) * np.log1p(misfit / df)
    chances = (
        np.exp((fit - fit.max()) / 2) * np.where(trend > 0, 1, WEIGHT) * np.where(scatter > scatter.min(), 1, WEIGHT)
    )
    return chances / chances.sum(), prior


def cost_ranks(others: Values) -> NDArray[np.int64]:
    """Return the places of networks by cost from 0, equal ones of equal cost: by the sum of their ranks in `others`."""
    ranks = [np.unique(column, return_inverse=True)[1] for column in others.T]
    return np.unique(np.sum(ranks, axis=0) + np.zeros(len(others)), return_inverse=True)[1]


def front_probabilities(losses: Values, others: Values, rng: np.random.Generator) -> Values | None:
    """Return the probability that each network is non-dominated, [networks].

    `losses` [networks, seeds] are of the quality, `others` [networks, m - 1] of the other objectives, which do not
    vary; smaller is better in both. Returns None for fewer than two seeds, or if the seeds do not differ.
    """
    if losses.shape[1] < 2 or not len(losses) or lay_out(losses).total < NO_SPREAD:
        return None
    kept = [nondominated_losses(np.column_stack([row, others])) for row in draw_means(losses, others, rng)]
    return np.asarray(np.mean(kept, axis=0))
