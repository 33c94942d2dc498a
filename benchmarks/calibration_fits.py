"""Rows on the curve of error against size: what is kept, what is refused, and what the interval of α covers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from calibration_rows import Row, generator, rate, repetitions

from ablate.results.fits.fits import CurveFit, fit_curve

Law = Callable[[np.ndarray], np.ndarray]
ALPHA, SEEDS, NOISE, MIDDLE = 0.5, 5, 0.018, 10**4.5
DESIGN = "8 sizes x 5 seeds over 3 decades, 1.8% seed noise"


def power_law(size: np.ndarray) -> np.ndarray:
    """E + A N^-α."""
    return 0.02 + 0.3 * (size / 1e3) ** -ALPHA


def broken(first: float, second: float) -> Law:
    """Two straight lines in log error that meet in the middle."""
    return lambda size: 0.3 * (MIDDLE / 1e3) ** -first * (size / MIDDLE) ** np.where(size < MIDDLE, -first, -second)


def logistic(floor: float, height: float, rate: float) -> Law:
    """A falling logistic curve of log10 size."""
    return lambda size: floor + height / (1 + np.exp(rate * np.log10(size / MIDDLE)))


OTHERS: dict[str, Law] = {
    "broken, exponents .2 then .5": broken(0.2, 0.5),
    "broken, exponents .3 then .4": broken(0.3, 0.4),
    "step from .3 to .2": lambda size: np.where(size < MIDDLE, 0.3, 0.2),
    "step from .3 to .1": lambda size: np.where(size < MIDDLE, 0.3, 0.1),
    "power law with a step of 30%": lambda size: power_law(size) * np.where(size < MIDDLE, 1, 0.7),
    "logistic": logistic(0.02, 0.3, 3.0),
    "logistic, steep": logistic(0.02, 0.3, 6.0),
    "logistic, shallow": logistic(0.1, 0.2, 1.5),
}
GENTLE: dict[str, tuple[Law, tuple[float, float]]] = {  # what the rules cannot settle at eight sizes, and how often
    "broken, exponents .5 then .25": (broken(0.5, 0.25), (0.6, 0.9)),
    "power law with a step of 15%": (lambda size: power_law(size) * np.where(size < MIDDLE, 1, 0.85), (0.0, 0.2)),
}


def fitted(law: Law, repetition: int, *, sizes: int = 8, offset: float = 0.0, runs: bool = False) -> CurveFit:
    """Return the fit of one simulated front; with `runs` each run is fitted as if it were a separate network."""
    random = generator("fits", repetition, sizes, str(offset))
    size = np.repeat(np.logspace(3, 6, sizes), SEEDS)
    between = np.repeat(offset * random.standard_normal(sizes), SEEDS)
    error = law(size) * np.exp(between + NOISE * random.standard_normal(len(size)))
    networks = list(range(len(size))) if runs else None
    return fit_curve(size, error, networks=networks, bootstraps=100)


def true_laws(share: float) -> Iterator[Row]:
    """Share of true laws that are drawn, and coverage of α, by offset between networks and number of sizes."""
    for sizes in (8, 12):
        for offset in (0.0, 0.01, 0.02, 0.04):
            n = repetitions(200 if sizes == 8 else 100, share)
            fits = [fitted(power_law, k, sizes=sizes, offset=offset) for k in range(n)]
            setting = f"{sizes} sizes x 5 seeds over 3 decades, offset per network {100 * offset:g}%"
            refused = ["the networks miss" in fit.reason for fit in fits]
            yield rate("true law E + A·N^-α: refused as contradicted by the replicates", setting, refused, (0.0, 0.06))
            kept = [fit for fit in fits if fit.label == "power"]
            yield rate("true law E + A·N^-α: drawn", setting, [fit.label == "power" for fit in fits], (0.88, 1.0))
            hits = [fit.exponent_low <= ALPHA <= fit.exponent_high for fit in kept]
            yield rate("true law E + A·N^-α, drawn: coverage of α", setting, hits, (0.93, 1.0))


def exponents(share: float) -> Iterator[Row]:
    """Coverage of α if each run is fitted as a separate network, which the reports do not do."""
    for offset, target in ((0.01, 0.89), (0.02, 0.68), (0.04, 0.57)):
        fits = [fitted(power_law, k, offset=offset, runs=True) for k in range(repetitions(120, share))]
        hits = [fit.exponent_low <= ALPHA <= fit.exponent_high for fit in fits if fit.label == "power"]
        setting = f"{DESIGN}, offset per network {100 * offset:g}%"
        yield rate("every run as a network (not done): coverage of α", setting, hits, (target - 0.06, target + 0.06))


def other_laws(share: float) -> Iterator[Row]:
    """Share of laws of another form that are refused."""
    for name, law in OTHERS.items():
        refused = [not fitted(law, k).identifiable for k in range(repetitions(40, share))]
        yield rate("law of another form: refused", f"{name}; {DESIGN}", refused, (0.99, 1.0))
    for name, (law, expected) in GENTLE.items():
        refused = [not fitted(law, k).identifiable for k in range(repetitions(40, share))]
        yield rate("gentle law of another form (a known limit): refused", f"{name}; {DESIGN}", refused, expected)
    few = [not fitted(power_law, k, sizes=5).identifiable for k in range(repetitions(20, share))]
    yield rate("true law at 5 sizes: refused", "5 sizes x 5 seeds", few, (1.0, 1.0))
