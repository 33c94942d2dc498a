"""The two-way layout of networks and seeds by least squares, also where networks have unequal seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NO_SPREAD = 1e-18  # a variance below this: the seeds do not differ, so they say nothing about noise
ROUNDING = 1e-9  # an eigenvalue below this share of the largest is 0
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A network effect and a seed effect, fitted to values [networks, seeds], and the variances of one seed.

    `means` [networks] estimate each network's mean over all seeds, so they are adjusted for the seeds that a network
    lacks. `effects` [seeds] sum to 0. `total` is the variance of a seed within a network, pooled over networks;
    `residual` is without what all networks share in a seed, with `residual_df` degrees of freedom. If there are none,
    `residual` is `total`. `own` [networks, networks] times `residual` is the covariance of the means for given seeds.
    `overlap` [networks, networks] are the degrees of freedom that two networks have in common.
    """

    means: Values
    effects: Values
    total: float
    residual: float
    residual_df: int
    own: Values
    overlap: Values

    @property
    def shared(self) -> float:
        """The correlation of two networks in a seed, 0 to 1."""
        return min(max(1 - self.residual / self.total, 0.0), 1.0) if self.total > 0 else 0.0

    @property
    def total_df(self) -> float:
        """Degrees of freedom of `total` (Satterthwaite): the more networks share, the fewer."""
        own, all_of_them = float(self.overlap.trace()), float(self.overlap.sum())
        return own**2 / (own + self.shared**2 * (all_of_them - own))

    @property
    def common(self) -> float:
        """The variance of the mean over seeds that the means of all networks share."""
        return max(self.total - self.residual, 0.0) / len(self.effects)

    @property
    def is_known(self) -> bool:
        """Whether networks can be compared: they are connected by common seeds, which differ."""
        return self.residual_df > 0 and self.residual >= NO_SPREAD


def lay_out(values: Values) -> Layout:
    """Return the fit to `values` [networks, seeds], NaN where a network was not trained; each network has a value.

    Networks without a common seed, even by way of others, leave no degrees of freedom. Source: Searle, "Linear Models
    for Unbalanced Data" (1987), chapter 4.
    """
    there = np.isfinite(values)
    (networks, seeds), count = values.shape, there.sum(axis=1)
    plain = np.array([row[mask].mean() for row, mask in zip(values, there, strict=True)])
    within = np.where(there, values - plain[:, None], 0.0)
    if there.all():
        means, effects, own, rank = plain, within.mean(axis=0), np.eye(networks) / seeds, seeds - 1
    else:
        share = there / count[:, None]
        normal = np.diag(there.sum(axis=0)) - there.T @ share  # of the seed effects, networks eliminated
        inverse = np.linalg.pinv(normal, rcond=ROUNDING, hermitian=True)
        rank = int(np.linalg.matrix_rank(normal, rtol=ROUNDING, hermitian=True))
        effects = inverse @ within.sum(axis=0)
        means, own = plain - share @ effects, np.diag(1 / count) + share @ inverse @ share.T
    freedom = int(count.sum()) - networks
    df = freedom - rank if rank == seeds - 1 else 0
    rest = np.where(there, values - means[:, None] - effects, 0.0)
    total = float((within**2).sum() / freedom) if freedom else 0.0
    both = (there * 1.0) @ there.T
    return Layout(
        means=means,
        effects=effects,
        total=total,
        residual=float((rest**2).sum() / df) if df else total,
        residual_df=df,
        own=own,
        overlap=both - both / count - both / count[:, None] + both**2 / np.outer(count, count),
    )
