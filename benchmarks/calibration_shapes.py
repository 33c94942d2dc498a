"""Rows on the shapes that seeds may have: verdicts on equal arms, and answers of a search about equal networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import polars as pl
from calibration_rows import Row, at_most, generator

from ablate.results.comparison.runs import Runs, measure, pair
from ablate.results.comparison.verdicts import NON_INFERIOR, adjust, margin_p, p_two_sided, settled
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


def p_of(gains: np.ndarray, margin: float) -> tuple[list[float], float]:
    """Return the adjusted p-values of a page's rows, and that of non-inferiority of the first one."""
    found = doubts(list(gains), [bool(collapsed_seeds(row, margin, len(gains))) for row in gains])
    differ = adjust([p_two_sided(row, doubt) for row, doubt in zip(gains, found, strict=True)])
    return differ, adjust([margin_p(gains[0], margin, found[0])[NON_INFERIOR]], family=False)[0]


def verdict_shapes(share: float) -> Iterator[Row]:
    """False verdicts on pages of equal arms, and non-inferiority at the margin, one standard deviation."""
    pages = ((10, 2), (10, 3), (10, 5), (10, 10), (30, 5))
    for (name, shape), (arms, seeds) in itertools.product(SHAPES.items(), pages):
        random, setting = generator("verdict shapes", name, arms, seeds), f"{arms} arms, {seeds} seeds, {name}"
        many = shape(generator("verdict shapes", name), 100, 200)
        margin = float((many[1:] - many[0]).std()) or 0.1
        gains = partial(gains_of, random, shape, arms, seeds)
        wrong, fits = (partial(is_wrong, gains, margin, at_margin=each) for each in (False, True))
        yield at_most("verdict superior or harmful on an equal arm, by shape", setting, wrong, ERROR, share)
        yield at_most("non-inferior at a loss of one margin, by shape", setting, fits, ERROR, share)


def gains_of(random: np.random.Generator, shape: Shape, arms: int, seeds: int) -> np.ndarray:
    """Return the gains [arms, seeds] of equal arms over their baseline; equal ones are equal, as in a report."""
    values = shape(random, arms + 1, seeds)
    return np.round(values[1:] - values[0], 12)


def is_wrong(draw: Callable[[], np.ndarray], margin: float, *, at_margin: bool) -> bool:
    """Return whether a page has a wrong superior or harmful; or calls the first row, at the margin, non-inferior."""
    gains = draw()
    if at_margin:
        gains[0] -= margin
    differ, fits = p_of(gains, margin)
    return (fits if at_margin else min(differ)) < ERROR


def answer_shapes(share: float) -> Iterator[Row]:
    """Pages of equal networks on which one is called worse than the best."""
    for (name, shape), networks, seeds in itertools.product(SHAPES.items(), (2, 6, 20), (3, 5, 10)):
        random, setting = (
            generator("answer shapes", name, networks, seeds),
            f"{networks} networks, {seeds} seeds, {name}",
        )
        # variances that differ by a factor of 10 are a known limit
        page, limit = partial(calls_worse, random, shape, networks, seeds), 0.06 if "variances" in name else ERROR
        what = "answer of a search: a difference that does not exist, by shape"
        yield at_most(what + " (a known limit)" * (limit > ERROR), setting, page, limit, share)


def calls_worse(random: np.random.Generator, shape: Shape, networks: int, seeds: int) -> bool:
    """Return whether a page of equal networks calls one worse than the best."""
    found = compare_with_best(shape(random, networks, seeds)) or ()
    return any(row.verdict == "worse" for row in found)


def several_metrics(share: float) -> Iterator[Row]:
    """False verdicts of one metric, and of any metric of a page: Holm's family is a metric's."""
    for metrics, limit in ((1, ERROR), (2, 0.1), (4, 0.2)):
        random, many = generator("several metrics", metrics), f"{metrics} metrics that share nothing"

        def page(random: np.random.Generator = random, metrics: int = metrics) -> bool:
            draws = [gains_of(random, correlated(0.0), 10, 5) for _ in range(metrics)]
            return min(min(adjust([p_two_sided(row) for row in gains])) for gains in draws) < ERROR

        what = "verdict superior or harmful on an equal arm, in any metric of a page"
        setting = f"10 arms, 5 seeds, {many if metrics > 1 else '1 metric'}"
        yield at_most(what, setting, page, limit, share)


def equal_seeds(share: float) -> Iterator[Row]:
    """Claims on ten arms that ignore their seed, beside seconds that vary."""
    for seeds in (3, 6, 10):
        random = generator("equal seeds", seeds)

        def page(random: np.random.Generator = random, seeds: int = seeds) -> bool:
            accuracy = np.repeat(np.round(random.uniform(0.5, 1, (11, 1)), 3), seeds, axis=1)
            columns = {"val_accuracy": accuracy.ravel(), "val_seconds": random.random(11 * seeds)}
            place, seed = (each.ravel() for each in np.indices(accuracy.shape))
            last = pl.DataFrame({"place": place, "seed": seed, **columns}).with_columns(
                final=pl.lit(True), diverged=pl.lit(False), of_complete=pl.lit(True)
            )
            table = pl.DataFrame({"place": np.arange(11), "state": ["COMPLETE"] * 11})
            runs = Runs(table=table, last=last, seeds=tuple(range(seeds)))
            measured = measure(runs, "val_accuracy")
            pairs = [pair(runs, measured, [{"": {"": arm}}], [{"": {"": 0}}]) for arm in range(1, 11)]
            return any(not each.alike and p_two_sided(settled(each)) < ERROR for each in pairs)

        what = "claim on arms that ignore their seed, beside seconds that vary"
        yield at_most(what, f"10 arms, {seeds} seeds", page, 0.0, share)
