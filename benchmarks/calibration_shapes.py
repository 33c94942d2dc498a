"""Rows on the shapes that seeds may have: verdicts on equal arms, and answers of a search about equal networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
from calibration_rows import Row, generator, rate, repetitions

from ablate.results.comparison.verdicts import NON_INFERIOR, adjust, margin_p, p_two_sided
from ablate.results.front.answer import compare_with_best
from ablate.results.statistics.looks import ERROR
from ablate.results.statistics.skewness import collapsed_seeds, doubts

Shape = Callable[[np.random.Generator, int, int], np.ndarray]


def correlated(r: float) -> Shape:
    """Return normal values of variance 1 that correlate by r over networks."""

    def drawn(random: np.random.Generator, rows: int, seeds: int) -> np.ndarray:
        own = random.standard_normal((rows, seeds))
        return np.asarray(math.sqrt(r) * random.standard_normal(seeds) + math.sqrt(1 - r) * own)

    return drawn


def binomial(accuracy: float, samples: int) -> Shape:
    """Return accuracies on this number of samples; each seed draws other samples."""
    return lambda random, rows, seeds: random.binomial(samples, accuracy, (rows, seeds)) / samples


SHAPES: dict[str, Shape] = {
    **{f"normal, r = {r:g}": correlated(r) for r in (0.0, 0.5, 0.9)},
    "heavy tails (t3)": lambda random, rows, seeds: random.standard_t(3, (rows, seeds)),
    "all skewed alike (lognormal, log sd 1)": lambda random, rows, seeds: (
        -np.exp(random.standard_normal((rows, seeds)))
    ),
    "variances of 1 to 10": lambda random, rows, seeds: (
        random.standard_normal((rows, seeds)) * np.sqrt(np.linspace(1, 10, rows))[:, None]
    ),
    "one seed in ten collapses in all": lambda random, rows, seeds: (
        random.standard_normal((rows, seeds)) - 30 * (random.random((rows, seeds)) < 0.1)
    ),
    "accuracy .95 on 359 samples": binomial(0.95, 359),
    "accuracy .99 on 359 samples": binomial(0.99, 359),
    "accuracy .98 on 100 samples": binomial(0.98, 100),
    "all seeds equal": lambda random, rows, seeds: np.full((rows, seeds), 0.9),
}


def claimed(gains: np.ndarray, margin: float) -> tuple[bool, bool]:
    """Return whether a row of a page is superior or harmful, and whether the first one is non-inferior."""
    found = doubts(list(gains), [bool(collapsed_seeds(row, margin, len(gains))) for row in gains])
    pairs = list(zip(gains, found, strict=True))
    differ = adjust([p_two_sided(row, doubt) for row, doubt in pairs])
    fits = adjust([margin_p(row, margin, doubt)[NON_INFERIOR] for row, doubt in pairs[:1]], family=False)
    return min(differ) < ERROR, fits[0] < ERROR


def verdict_shapes(share: float) -> Iterator[Row]:
    """False verdicts on pages of equal arms, and non-inferiority at the margin, one standard deviation."""
    pages = ((10, 2), (10, 3), (10, 5), (10, 10), (30, 5))
    for (name, shape), (arms, seeds) in itertools.product(SHAPES.items(), pages):
        random, wrong, fits = generator("verdict shapes", name, arms, seeds), [], []
        many = shape(generator("verdict shapes", name), 100, 200)
        margin = float((many[1:] - many[0]).std()) or 0.1
        for _ in range(repetitions(600, share)):
            values = shape(random, arms + 1, seeds)
            gains = np.round(values[1:] - values[0], 12)  # equal differences are equal, as in a report
            wrong.append(claimed(gains, margin)[0])
            fits.append(claimed(np.vstack([gains[:1] - margin, gains[1:]]), margin)[1])
        setting = f"{arms} arms, {seeds} seeds, {name}"
        yield rate("verdict superior or harmful on an equal arm, by shape", setting, wrong, (0.0, ERROR))
        yield rate("non-inferior at a loss of one margin, by shape", setting, fits, (0.0, ERROR))


def answer_shapes(share: float) -> Iterator[Row]:
    """Pages of equal networks on which one is called worse than the best."""
    for (name, shape), networks, seeds in itertools.product(SHAPES.items(), (2, 6, 20), (3, 5, 10)):
        random, worse = generator("answer shapes", name, networks, seeds), []
        for _ in range(repetitions(400, share)):
            found = compare_with_best(shape(random, networks, seeds)) or ()
            worse.append(any(row.verdict == "worse" for row in found))
        setting = f"{networks} networks, {seeds} seeds, {name}"
        yield rate("answer of a search: a difference that does not exist, by shape", setting, worse, (0.0, ERROR))
