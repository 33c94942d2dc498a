"""Whether replicates contradict a fitted curve: the lack-of-fit F test, and whether the misfit is ordered by size.

Networks that differ a little from a true law, each for another reason, also fail the plain F test. They fail it without
any order in size, and by little. A wrong law fails it in order of size, or by much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from ablate.results.fits.curves import BOUNDS, HUBER, MODELS, Array, Fitted, jacobian

SIGNIFICANCE = 0.01  # of the F tests against the replicates' pure error
ORDERED = 0.025  # of each of the two tests for a misfit in order of size
SCATTER = 0.04  # standard deviation, in log error, by which networks may differ from a law on their own account


@dataclass(frozen=True, kw_only=True)
class Networks:
    """Networks as points of a fit: `sizes` [n], `errors` [n] (geometric means), `replicates` [n] of each.

    `pure` is the pooled variance of log error between the replicates of one network, with `freedom` degrees of freedom.
    """

    sizes: Array
    errors: Array
    replicates: Array
    pure: float
    freedom: int


def network_means(sizes: Array, errors: Array, group: NDArray[np.int64]) -> Networks:
    """Return one point per value of `group` [n], sorted by size."""
    order = np.lexsort((group, sizes))
    _, first, index, count = np.unique(group[order], return_index=True, return_inverse=True, return_counts=True)
    log_error = np.log(errors[order])
    means = np.bincount(index, weights=log_error) / count
    freedom = len(errors) - len(count)
    pure = float(((log_error - means[index]) ** 2).sum()) / freedom if freedom else math.nan
    by_size = np.argsort(first)
    return Networks(
        sizes=sizes[order][first][by_size],
        errors=np.exp(means[by_size]),
        replicates=count[by_size].astype(np.float64),
        pure=pure,
        freedom=freedom,
    )


def scatter(fit: Fitted, networks: Networks) -> float:
    """Return the root mean square of the networks' log residuals, with n - k degrees of freedom."""
    residuals = np.log(networks.errors) - fit.log_error(networks.sizes)
    return math.sqrt(float((residuals**2).sum()) / max(len(residuals) - len(fit.parameters), 1))


def contradiction(fit: Fitted, networks: Networks) -> str:
    """Return why the data refuse the form of `fit`, or an empty text.

    Two rules refuse. The networks miss the curve by more than replicates and a scatter of 4% explain (F test at .01).
    Or the F test without any scatter refuses at .01, and what is missed runs in order of size: one or two further
    powers of log size explain it, at .025 each, compared with the rest of the networks' residuals. Without replicates
    only the order is tested.
    """
    if networks.freedom:
        missed = scatter(fit, networks)
        if _lack_of_fit(fit, networks, SCATTER) < SIGNIFICANCE:
            return (
                f"the networks miss the {fit.form} form by {100 * missed:.2g}% on average, more than their replicates "
                f"and a scatter of {100 * SCATTER:g}% between networks explain"
            )
        if _lack_of_fit(fit, networks, 0.0) >= SIGNIFICANCE:
            return ""
    if _order(fit, networks) < ORDERED:
        return f"the networks miss the {fit.form} form in an order of size: above it in one range, below it in another"
    return ""


def _lack_of_fit(fit: Fitted, networks: Networks, allowed: float) -> float:
    """Return p of the F test of lack of fit; `allowed` is added to the pure error as a variance between networks."""
    variance = np.maximum(networks.pure / networks.replicates, HUBER**2) + allowed**2
    residuals, _ = _refit(fit, networks, 1 / np.sqrt(variance))
    freedom = len(residuals) - len(fit.parameters)
    return float(scipy.special.fdtrc(freedom, networks.freedom, float((residuals**2).sum()) / freedom))


def _order(fit: Fitted, networks: Networks) -> float:
    """Return the smaller p of two F tests: one, and two, further powers of log size beside the fitted form."""
    residuals, design = _refit(fit, networks, np.ones(len(networks.sizes)))
    log_size = np.log(networks.sizes / fit.scale)
    log_size /= np.abs(log_size).max()
    first = 1 if fit.form == "constant" else 2
    basis = np.linalg.qr(design)[0]
    found = []
    for terms in (1, 2):
        rest = len(residuals) - len(fit.parameters) - terms
        added = np.stack([log_size**power for power in range(first, first + terms)], axis=1)
        directions = np.linalg.qr(added - basis @ (basis.T @ added))[0]
        explained = float(((directions.T @ residuals) ** 2).sum())
        left = max(float((residuals**2).sum()) - explained, 1e-300)
        if rest > 0:
            found.append(float(scipy.special.fdtrc(terms, rest, explained / terms / (left / rest))))
    return min(found, default=1.0)


def _refit(fit: Fitted, networks: Networks, weights: Array) -> tuple[Array, Array]:
    """Return the weighted residuals [n] and derivatives [n, k] of the least-squares fit of the same form."""
    log_size, log_error = np.log(networks.sizes / fit.scale), np.log(networks.errors)
    form = fit.form
    found = scipy.optimize.least_squares(
        lambda p: (MODELS[form](p, log_size) - log_error) * weights,
        fit.parameters,
        jac=lambda p: jacobian(form, p, log_size) * weights[:, None],
        bounds=BOUNDS[form],
        x_scale=1.0,
        max_nfev=200,
    ).x
    return (log_error - MODELS[form](found, log_size)) * weights, jacobian(form, found, log_size) * weights[:, None]
