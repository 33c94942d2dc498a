"""How certain a confirmed front is: who is on it, its hypervolume's interval, and what single seeds attain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import moocore
import numpy as np
from numpy.typing import NDArray

from ablate.analysis.answer import NO_SPREAD, noise
from ablate.objectives import nondominated_losses

DRAWS = 2000
LEVEL = 0.95
QUARTILES = (25, 50, 75)
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class VolumeInterval:
    """A hypervolume with its 95% interval, all in the product of the axes' units."""

    value: float
    low: float
    high: float


def draw_means(losses: Values, rng: np.random.Generator, *, draws: int = DRAWS) -> Values:
    """Return means over seeds as another confirmation might measure them, [draws, networks].

    `losses` are [networks, seeds], smaller is better. A parametric bootstrap: what all networks share in a seed and
    what each has on its own vary normally, with variances pooled over networks; each draw has one t factor.
    """
    networks, seeds = losses.shape
    found = noise(losses)
    shared = math.sqrt(max(found.total - found.residual, 0.0) / seeds)
    own = math.sqrt(found.residual / seeds)
    df = found.total_df
    factor = np.sqrt(df / rng.chisquare(df, (draws, 1)))
    common, apart = rng.standard_normal((draws, 1)), rng.standard_normal((draws, networks))
    return np.asarray(losses.mean(axis=1) + factor * (shared * common + own * apart))


def front_probabilities(losses: Values, others: Values, rng: np.random.Generator) -> Values | None:
    """Return the probability that each network is non-dominated, [networks].

    `losses` [networks, seeds] are of the quality, `others` [networks, m - 1] of the other objectives, which do not
    vary; smaller is better in both. Returns None for fewer than two seeds, or if the seeds do not differ.
    """
    if losses.shape[1] < 2 or not len(losses) or noise(losses).total < NO_SPREAD:
        return None
    kept = [nondominated_losses(np.column_stack([row, others])) for row in draw_means(losses, rng)]
    return np.asarray(np.mean(kept, axis=0))


def volume_interval(losses: Values, others: Values, corner: Values, rng: np.random.Generator) -> VolumeInterval | None:
    """Return the hypervolume of the front of means, with the basic interval 2h - q of `draw_means`.

    Losses are on the axes' scales (log10 where an objective has it), `corner` [m] is the reference point, the quality
    first. Noise makes a front of measured means look larger than the true one; 2h - q takes that back, quantiles q
    themselves would double it. None as in `front_probabilities`.
    """
    if losses.shape[1] < 2 or not len(losses) or noise(losses).total < NO_SPREAD or not np.isfinite(corner).all():
        return None
    value = volume(losses.mean(axis=1), others, corner)
    drawn = [volume(row, others, corner) for row in draw_means(losses, rng)]
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return VolumeInterval(value=value, low=max(2 * value - float(high), 0.0), high=2 * value - float(low))


def volume(means: Values, others: Values, corner: Values) -> float:
    """Return the hypervolume of networks with these mean losses, within the reference point."""
    points = np.column_stack([means, others])
    inside = points[(points < corner).all(axis=1)]
    return float(moocore.hypervolume(inside, ref=corner)) if len(inside) else 0.0


def attainment(losses: Values, costs: Values) -> Values:
    """Return for each cost the losses that a quarter, half and three quarters of the seeds attain, [costs, 3].

    `losses` are [networks, seeds], `costs` [networks] ascending. Each seed is one front; the loss at a cost is that of
    the surface of moocore's empirical attainment function, infinite where it is not attained.
    """
    networks, seeds = losses.shape
    points = np.column_stack([np.repeat(costs, seeds), losses.reshape(-1)])
    library: Any = moocore
    order = np.tile(np.arange(seeds), networks)
    by_seed = np.argsort(order, kind="stable")
    surface = library.eaf(points[by_seed], order[by_seed] + 1, percentiles=list(QUARTILES))
    found = np.full((networks, len(QUARTILES)), math.inf)
    for column, percent in enumerate(QUARTILES):
        own = surface[surface[:, 2] == percent]
        for row, cost in enumerate(costs):
            reached = own[own[:, 0] <= cost, 1]
            found[row, column] = reached.min() if len(reached) else math.inf
    return found
