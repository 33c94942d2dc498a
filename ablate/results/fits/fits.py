"""Error against size as a curve, if the data identify one; otherwise the reason why not."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy

from ablate.results.fits.curves import (
    MAX_EXPONENT,
    MIN_EXPONENT,
    MODELS,
    Array,
    Fitted,
    Form,
    fit_form,
    jacobian,
    resampled,
)
from ablate.results.fits.misfit import Networks, contradiction, network_means, scatter

Label = Literal["constant", "log-linear", "power", "not identifiable"]
FORMS: tuple[Form, ...] = ("constant", "log-linear", "power")
MIN_SIZES = 6
MIN_DECADES = 1.5
FEWEST: dict[Form, int] = {"constant": 1, "log-linear": 2, "power": MIN_SIZES}  # distinct sizes that a form needs
MAX_EXTRAPOLATION = 4.0
LEVEL = 0.95
BOOTSTRAPS = 200
EQUATIONS: dict[Form, str] = {
    "constant": "error = E",
    "log-linear": "error = A·N^-α (a straight line in log error against log size)",
    "power": "error = E + A·N^-α",
}


@dataclass(frozen=True, kw_only=True)
class CurveFit:
    """The fitted curve of error against size N.

    `label` is the form that AICc prefers, or `not identifiable` with the `reason`; then no curve may be drawn.
    `floor` is E, `amplitude` A, `exponent` α with its 95% interval; each is NaN if the form has none. `aicc` holds
    every form that could be fitted. `sizes` counts distinct sizes, `networks` the points of the fit, `points` all
    replicates. `misfit` is the root mean square of the networks' log residuals.
    """

    label: Label
    reason: str
    aicc: Mapping[Form, float]
    sizes: int
    networks: int
    points: int
    smallest: float
    largest: float
    floor: float = math.nan
    amplitude: float = math.nan
    exponent: float = math.nan
    exponent_low: float = math.nan
    exponent_high: float = math.nan
    misfit: float = math.nan
    fitted: Fitted | None = None

    @property
    def identifiable(self) -> bool:
        """Whether the curve may be drawn and its exponent quoted."""
        return self.label != "not identifiable"

    def predict(self, sizes: Sequence[float] | Array) -> Array:
        """Return the fitted error at `sizes`; raise ValueError beyond 4x the data or if not identifiable."""
        asked = np.asarray(sizes, dtype=np.float64)
        if self.fitted is None or not self.identifiable:
            raise ValueError(f"no curve to predict from: {self.reason}")
        low, high = self.smallest / MAX_EXTRAPOLATION, self.largest * MAX_EXTRAPOLATION
        if (asked < low).any() or (asked > high).any():
            raise ValueError(f"no extrapolation past {MAX_EXTRAPOLATION:g}x: sizes {low:.4g} to {high:.4g}")
        return np.exp(self.fitted.log_error(asked))


def fit_curve(
    sizes: Sequence[float] | Array,
    errors: Sequence[float] | Array,
    *,
    networks: Sequence[Hashable] | None = None,
    bootstraps: int = BOOTSTRAPS,
) -> CurveFit:
    """Fit constant, log-linear and E + A·N^-α to errors at sizes and choose by AICc.

    `networks` names the network of each point; without it, points of one size are replicates of one network. Each
    network is one point of the fit, its geometric mean, because its replicates share what is particular to it. Points
    that are not finite are excluded. The curve is refused, with the reason, in any of these cases: there are fewer
    than 6 sizes or 1.5 decades; an error is not above 0; the starts of the fit disagree; the largest size falls
    outside the band predicted from the others; the replicates contradict the form (`misfit.contradiction`); the
    interval of the exponent reaches 0.
    """
    size, error = np.asarray(sizes, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    known: dict[Hashable, int] = {}
    group = np.array([known.setdefault(name, len(known)) for name in (size.tolist() if networks is None else networks)])
    keep = np.isfinite(size) & np.isfinite(error) & (size > 0)
    size, error, group = size[keep], error[keep], group[keep]
    distinct = np.unique(size)
    refused = CurveFit(
        label="not identifiable",
        reason=_too_few(distinct, error),
        aicc={},
        sizes=len(distinct),
        networks=len(np.unique(group)),
        points=len(size),
        smallest=float(size.min()) if len(size) else math.nan,
        largest=float(size.max()) if len(size) else math.nan,
    )
    if len(size) == 0 or not (error > 0).all():
        return refused
    points = network_means(size, error, group)
    fits = [fit_form(form, points.sizes, points.errors) for form in FORMS if len(distinct) >= FEWEST[form]]
    refused = replace(refused, aicc={fit.form: fit.aicc for fit in fits})
    return refused if refused.reason else _chosen(min(fits, key=lambda fit: fit.aicc), points, refused, bootstraps)


def _chosen(best: Fitted, points: Networks, refused: CurveFit, bootstraps: int) -> CurveFit:
    """Return the curve of the best form, or `refused` with the reason why the data do not identify it."""
    reason = _starts_disagree(best) or _largest_is_off(best.form, points) or contradiction(best, points)
    low, high = (math.nan, math.nan) if reason else _exponent_interval(best, points, bootstraps)
    if not reason and best.form != "constant" and not (low > 0 and math.isfinite(high)):
        reason = f"the 95% interval of the exponent, {low:.3g} to {high:.3g}, reaches 0"
    if reason:
        return replace(refused, reason=reason)
    p, floor, amplitude, exponent = best.parameters, math.nan, math.nan, math.nan  # of sizes / scale
    if best.form != "log-linear":
        floor = math.exp(p[0])
    if best.form != "constant":
        exponent = float(p[-1])
        amplitude = math.exp(p[-2] + exponent * math.log(best.scale))
    return replace(
        refused,
        label=best.form,
        reason="",
        fitted=best,
        floor=floor,
        amplitude=amplitude,
        exponent=exponent,
        exponent_low=low,
        exponent_high=high,
        misfit=scatter(best, points),
    )


def _too_few(distinct: Array, error: Array) -> str:
    if len(distinct) < MIN_SIZES:
        return f"{len(distinct)} distinct size{'' if len(distinct) == 1 else 's'}, {MIN_SIZES} are needed"
    decades = math.log10(distinct[-1] / distinct[0])
    if decades < MIN_DECADES - 1e-9:
        return f"the sizes span {decades:.2f} decades, {MIN_DECADES} are needed"
    if (error <= 0).any():
        return "an error of 0 has no logarithm: the data set is too easy or the split too small"
    return ""


def _starts_disagree(fit: Fitted) -> str:
    if fit.form != "power":
        return ""
    exponent = float(fit.parameters[2])
    if not MIN_EXPONENT * 1.01 < exponent < MAX_EXPONENT * 0.99:
        return f"the exponent runs to the edge of what is searched ({exponent:.3g})"
    if max(fit.rivals) - min(fit.rivals) > max(0.02, 0.05 * exponent) or 2 * fit.agreeing < fit.starts:
        return (
            f"the fit depends on where it starts ({fit.agreeing} of {fit.starts} starts reach the lowest loss, with "
            f"exponents {min(fit.rivals):.3g} to {max(fit.rivals):.3g})"
        )
    return ""


def _largest_is_off(form: Form, points: Networks) -> str:
    """Return whether the largest size's mean log error is outside the 95% prediction band of a fit without it."""
    size, error = points.sizes, points.errors
    held_out = size == size.max()
    rest, rest_error = size[~held_out], error[~held_out]
    fit = fit_form(form, rest, rest_error)
    log_rest, largest = np.log(rest / fit.scale), np.log(size[held_out][:1] / fit.scale)
    design, at = jacobian(form, fit.parameters, log_rest), jacobian(form, fit.parameters, largest)
    residuals = np.log(rest_error) - MODELS[form](fit.parameters, log_rest)
    freedom = len(rest) - len(fit.parameters)
    variance = float((residuals**2).sum()) / freedom
    # π/2: variance of an absolute-loss fit relative to least squares under normal noise
    leverage = math.pi / 2 * float(np.sum(at @ np.linalg.pinv(design.T @ design) * at))
    half = float(scipy.special.stdtrit(freedom, 0.5 + LEVEL / 2)) * math.sqrt(
        variance * (1 / held_out.sum() + leverage)
    )
    predicted = float(MODELS[form](fit.parameters, largest)[0])
    observed = float(np.log(error[held_out]).mean())
    if abs(observed - predicted) <= half + 1e-9:
        return ""
    return (
        f"fitted without the largest size, the {form} form predicts an error of {math.exp(predicted - half):.4g} to "
        f"{math.exp(predicted + half):.4g} there, and {math.exp(observed):.4g} was measured"
    )


def _exponent_interval(fit: Fitted, points: Networks, bootstraps: int) -> tuple[float, float]:
    """Return α ± t(networks - k) · standard error over residual bootstraps of the same Huber fit."""
    if fit.form == "constant":
        return math.nan, math.nan
    freedom = len(points.sizes) - len(fit.parameters)
    draws = resampled(fit, points.sizes, points.errors, bootstraps)[:, -1]
    half = float(scipy.special.stdtrit(freedom, 0.5 + LEVEL / 2)) * float(draws.std(ddof=1))
    exponent = float(fit.parameters[-1])
    return exponent - half, exponent + half
