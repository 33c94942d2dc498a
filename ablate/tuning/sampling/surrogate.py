"""A Gaussian process of a number over a search space: fitted by its posterior mode, then asked at many places."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]
ROOT5 = math.sqrt(5.0)
FITTED = 100  # trials to which the surrogates' parameters are fitted; the posterior uses all that are shown
STEPS = 20  # of L-BFGS
NOISE = 0.002  # prior median of the noise variance; that of the signal is 1
LEAST_NOISE = 1e-6  # below it the factorisation could fail
AT_ONCE = 128  # places: their covariances stay in the processor's cache
DEVIATIONS = (1.0, 1.0, 1.5)  # prior deviations of log length scale, log signal variance, log noise variance


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """A zero-mean process with the Matern-5/2 covariance, conditioned on values [n] at `places` [n, C].

    `parameters` are the logarithms of the length scale of each group of coordinates, of the variance of the signal and
    of the noise. `groups` [C] names the group of each coordinate.
    """

    places: Array
    groups: NDArray[np.intp]
    parameters: Array
    factor: Array
    weights: Array

    @staticmethod
    def of(places: Array, values: Array, groups: NDArray[np.intp], parameters: Array) -> Surrogate:
        """Return the process with these parameters, given the values."""
        covariance = _covariance(places, places, groups, parameters)
        covariance[np.diag_indices(len(values))] += np.exp(parameters[-1]) + LEAST_NOISE
        factor = scipy.linalg.cholesky(covariance, lower=True)
        weights = scipy.linalg.cho_solve((factor, True), values)
        return Surrogate(places=places, groups=groups, parameters=parameters, factor=factor, weights=weights)

    def predict(self, places: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the noiseless process at `places` [n, C]."""
        mean, explained = np.empty(len(places)), np.empty(len(places))
        for first in range(0, len(places), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            across = _covariance(self.places, places[part], self.groups, self.parameters)
            mean[part] = across.T @ self.weights
            spread = scipy.linalg.solve_triangular(
                self.factor, across, lower=True, overwrite_b=True, check_finite=False
            )
            explained[part] = (spread**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(np.exp(self.parameters[-2]) - explained, 1e-12))

    def spread(self, places: Array) -> Array:
        """Return what the values explain of the deviations at `places`, in independent parts [n, m].

        Their squares sum to the variance that is explained.
        """
        across = _covariance(self.places, places, self.groups, self.parameters)
        found: Array = scipy.linalg.solve_triangular(self.factor, across, lower=True, check_finite=False)
        return found

    def added(self, places: Array, spread: Array, chosen: int) -> Array:
        """Return the part [m] that a value at one of the places would add to their `spread`."""
        across = _covariance(places[[chosen]], places, self.groups, self.parameters)[0] - spread[:, chosen] @ spread
        found: Array = across / np.sqrt(max(across[chosen], 0.0) + np.exp(self.parameters[-1]) + LEAST_NOISE)
        return found

    def mean(self, places: Array) -> Array:
        """Return the mean of the process at `places` [n, C]."""
        found: Array = _covariance(places, self.places, self.groups, self.parameters) @ self.weights
        return found


def prior_mode(groups: NDArray[np.intp]) -> Array:
    """Return the parameters that are most likely without data; distances grow with the root of the settings."""
    settings = int(groups.max()) + 1
    return np.array([math.log(math.sqrt(settings))] * settings + [0.0, math.log(NOISE)])


def fit(distances: Array, values: Array, mode: Array) -> Array:
    """Return the parameters at the mode of their posterior, found from that of the prior.

    `distances` are those of `square_distances`.
    """
    given = (distances, values, mode)
    bounds = [(mode - 5 * width, mode + 5 * width) for mode, width in zip(mode, _widths(mode), strict=True)]
    steps = {"maxiter": STEPS}
    found = scipy.optimize.minimize(_objective, mode, given, "L-BFGS-B", jac=True, bounds=bounds, options=steps)
    best: Array = found.x
    return best


def _objective(parameters: Array, distances: Array, values: Array, mode: Array) -> tuple[float, Array]:
    """Return minus the log posterior of the parameters, up to a constant, and its gradient.

    `distances` [groups, n, n] are square distances, `values` are [n].
    """
    scales, signal, noise = np.exp(-2 * parameters[:-2]), math.exp(parameters[-2]), math.exp(parameters[-1])
    root = ROOT5 * np.sqrt(np.tensordot(scales, distances, axes=1))
    decay = signal * np.exp(-root)
    clean = decay * (1 + root + root**2 / 3)
    covariance = clean.copy()
    covariance[np.diag_indices(len(values))] += noise + LEAST_NOISE
    lower = scipy.linalg.cho_factor(covariance, lower=True, overwrite_a=True, check_finite=False)
    weights = scipy.linalg.cho_solve(lower, values, check_finite=False)
    half, _ = scipy.linalg.lapack.dpotri(lower[0], lower=True)
    inverse = np.tril(half) + np.tril(half, -1).T
    slope = (inverse - np.outer(weights, weights)) / 2
    by_scale = np.tensordot(distances, slope * decay * (1 + root) * (5 / 3)) * scales
    gradient = np.append(by_scale, [np.vdot(slope, clean), noise * np.trace(slope)])
    width = _widths(mode)
    off = (parameters - mode) / width
    value = values @ weights / 2 + np.log(np.diag(lower[0])).sum() + off @ off / 2
    return float(value), gradient + off / width


def _widths(mode: Array) -> Array:
    """Return the standard deviations of the independent normal priors of the parameters."""
    scale, signal, noise = DEVIATIONS
    return np.array([scale] * (len(mode) - 2) + [signal, noise])


def square_distances(places: Array, groups: NDArray[np.intp]) -> Array:
    """Return the square distances [groups, n, n] in the coordinates of each group."""
    found = np.zeros((int(groups.max()) + 1, len(places), len(places)))
    for column, group in zip(places.T, groups, strict=True):
        found[group] += (column[:, None] - column) ** 2
    return found


def _covariance(one: Array, two: Array, groups: NDArray[np.intp], parameters: Array) -> Array:
    """Return the covariances [n, m] of the noiseless process."""
    scales = np.exp(-parameters[:-2])[groups]
    left, right = one * scales, two * scales
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares)
    root = np.multiply(squares, ROOT5, out=squares)
    found: Array = np.exp(parameters[-2] - root)
    found *= 1 + root + root**2 / 3
    return found


@dataclass(frozen=True)
class Prediction:
    """A process of standardised values: `middle` + `scale` times it."""

    process: Surrogate
    middle: float
    scale: float

    def mean(self, asked: Array) -> Array:
        """Return the means at places."""
        return self.middle + self.scale * self.process.mean(asked)

    def predict(self, asked: Array) -> tuple[Array, Array]:
        """Return means and standard deviations at places."""
        mean, deviation = self.process.predict(asked)
        return self.middle + self.scale * mean, self.scale * deviation


class Fits:
    """Fits processes of several values to the same trials at `places`; distances are shared."""

    def __init__(self, places: Array, groups: NDArray[np.intp], rng: np.random.Generator) -> None:
        self._prior = prior_mode(groups)
        self._places, self._groups = places, groups
        self._some = np.sort(rng.permutation(len(places))[:FITTED])
        self._distances = square_distances(places[self._some], groups)

    def model(self, values: Array, running: Array | None = None) -> Prediction:
        """Return what predicts a number; at `running` places the prediction is taken for seen."""
        middle, scale = float(values.mean()), float(values.std()) or 1.0
        targets = (values - middle) / scale
        parameters = fit(self._distances, targets[self._some], self._prior)
        process = Surrogate.of(self._places, targets, self._groups, parameters)
        if running is not None and len(running):
            seen = np.append(targets, process.mean(running))
            process = Surrogate.of(np.concatenate([self._places, running]), seen, self._groups, parameters)
        return Prediction(process, middle, scale)
