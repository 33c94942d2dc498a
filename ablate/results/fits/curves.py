"""The three curves of error against size, fitted to log errors by Huber loss, and their AICc."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

Form = Literal["constant", "log-linear", "power"]
Array = NDArray[np.float64]
HUBER = 1e-3  # in log error: larger residuals have a linear loss, smaller ones a quadratic loss
REWEIGHTINGS = 60
MIN_EXPONENT, MAX_EXPONENT = 1e-3, 10.0
BOUNDS: dict[Form, Any] = {
    "constant": (-np.inf, np.inf),
    "log-linear": (-np.inf, np.inf),
    "power": ([-30.0, -30.0, MIN_EXPONENT], [5.0, 30.0, MAX_EXPONENT]),
}


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """One fitted form: `parameters` are (log E), (log A, α) or (log E, log A, α); A refers to sizes / `scale`."""

    form: Form
    parameters: Array
    aicc: float
    scale: float
    agreeing: int = 1
    starts: int = 1
    rivals: tuple[float, ...] = ()

    def log_error(self, sizes: Array) -> Array:
        """Return the fitted log error at `sizes`."""
        return MODELS[self.form](self.parameters, np.log(sizes / self.scale))


def _power(p: Array, log_size: Array) -> Array:
    """log(E + A N^-α) as log-sum-exp of log E and log A - α log N."""
    return np.asarray(np.logaddexp(p[0], p[1] - p[2] * log_size))


MODELS: dict[Form, Callable[[Array, Array], Array]] = {
    "constant": lambda p, log_size: np.full_like(log_size, p[0]),
    "log-linear": lambda p, log_size: np.asarray(p[0] - p[1] * log_size),
    "power": _power,
}


def jacobian(form: Form, p: Array, log_size: Array) -> Array:
    """Return the derivatives of the form's log error by its parameters, [..., n, k]."""
    if form == "power":
        floor = np.exp(p[0] - _power(p, log_size))
        return np.stack([floor, 1 - floor, -(1 - floor) * log_size], axis=-1)
    ones = np.ones(np.broadcast_shapes(np.shape(p[0]), log_size.shape))
    return ones[..., None] if form == "constant" else np.stack([ones, -log_size * ones], axis=-1)


def aicc(residuals: Array, coefficients: int) -> float:
    """Return the small-sample AIC of a fit with Laplace noise in log error; the scale counts as one parameter.

    2n log(2b) + 2n + 2k + 2k(k+1)/(n-k-1), b the mean absolute residual (never below the Huber corner), k =
    coefficients + 1; infinite where n <= k + 1. Laplace because a Huber loss of 1e-3 is an absolute loss at any
    realistic noise.
    """
    n, k = len(residuals), coefficients + 1
    if n <= k + 1:
        return math.inf
    width = max(float(np.abs(residuals).mean()), HUBER)
    return 2 * n * math.log(2 * width) + 2 * n + 2 * k + 2 * k * (k + 1) / (n - k - 1)


def fit_form(form: Form, sizes: Array, errors: Array) -> Fitted:
    """Fit one form to `errors` [n] at `sizes` [n] by Huber loss, from a grid of starts for the power form."""
    scale = float(np.exp(np.log(sizes).mean()))
    log_size, log_error = np.log(sizes / scale), np.log(errors)
    if form == "power":
        return _fit_power(log_size, log_error, scale)
    if form == "constant":
        solution = np.array([np.median(log_error)])
    else:
        slope, level = np.polyfit(log_size, log_error, 1)
        solution = refine("log-linear", np.array([level, -slope]), log_size, log_error)
    residuals = log_error - MODELS[form](solution, log_size)
    return Fitted(form=form, parameters=solution, aicc=aicc(residuals, len(solution)), scale=scale)


def refine(form: Form, start: Array, log_size: Array, log_error: Array) -> Array:
    """Return the minimum of the Huber loss reached from `start`, through decreasing Huber corners."""
    model = MODELS[form]
    solution = start
    for corner in (1.0, 0.1, 0.01, HUBER):
        solution = scipy.optimize.least_squares(
            lambda p: model(p, log_size) - log_error,
            solution,
            jac=lambda p: jacobian(form, p, log_size),
            loss="huber",
            f_scale=corner,
            bounds=BOUNDS[form],
            x_scale=1.0,
            max_nfev=200,
        ).x
    return np.asarray(solution, dtype=np.float64)


def _fit_power(log_size: Array, log_error: Array, scale: float) -> Fitted:
    middle, lowest = float(np.median(log_error)), float(log_error.min())
    solutions = []
    for exponent, below in product((0.15, 0.4, 0.8, 1.5), (0.05, 0.7, 2.5)):
        start = np.array([lowest - below, middle, exponent])
        solutions.append(refine("power", start, log_size, log_error))
    losses = np.array([scipy.special.huber(HUBER, log_error - _power(p, log_size)).sum() for p in solutions])
    best = int(losses.argmin())
    near = losses <= losses[best] * 1.005 + 1e-12
    residuals = log_error - _power(solutions[best], log_size)
    return Fitted(
        form="power",
        parameters=solutions[best],
        aicc=aicc(residuals, 3),
        scale=scale,
        agreeing=int(near.sum()),
        starts=len(solutions),
        rivals=tuple(float(p[2]) for p, n in zip(solutions, near, strict=True) if n),
    )


def resampled(fit: Fitted, sizes: Array, errors: Array, draws: int) -> Array:
    """Return the parameters refitted to `draws` residual bootstraps, [draws, k], by reweighted least squares.

    Residuals are centred, inflated by √(n/(n-k)) to unbiased variance, and smoothed by a normal kernel: an absolute
    loss passes through k points exactly, and bare residuals would make its bootstrap too narrow (the smoothed
    bootstrap of quantile regression). The generator is fixed: equal data give equal intervals. The weights
    min(1, 1e-3/|r|) are those of the Huber loss.
    """
    generator = np.random.default_rng(20240501)
    log_size, log_error = np.log(sizes / fit.scale), np.log(errors)
    fitted = MODELS[fit.form](fit.parameters, log_size)
    residuals = log_error - fitted
    coefficients = len(fit.parameters)
    residuals = (residuals - residuals.mean()) * math.sqrt(len(sizes) / max(len(sizes) - coefficients, 1))
    kernel = 1.06 * len(sizes) ** -0.2  # Silverman's bandwidth in units of the residuals' standard deviation
    noise = kernel * float(residuals.std()) * generator.standard_normal((draws, len(sizes)))
    drawn = (generator.choice(residuals, (draws, len(sizes))) + noise) / math.sqrt(1 + kernel**2)
    samples = fitted + drawn
    solutions = np.tile(fit.parameters, (draws, 1))
    ridge = 1e-9 * np.eye(coefficients)
    for _ in range(REWEIGHTINGS):
        p = solutions.T[:, :, None]
        rest = samples - MODELS[fit.form](p, log_size)
        weights = np.minimum(1.0, HUBER / np.maximum(np.abs(rest), 1e-12))
        design = jacobian(fit.form, p, log_size)
        weighted = design * weights[..., None]
        normal = np.einsum("bni,bnj->bij", weighted, design)
        step = np.linalg.solve(normal + ridge, np.einsum("bni,bn->bi", weighted, rest)[..., None])[..., 0]
        solutions = solutions + np.clip(step, -0.5, 0.5)
    return np.asarray(solutions, dtype=np.float64)
