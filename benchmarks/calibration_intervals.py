"""Rows on intervals, tests, margins, and on what selection does."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from calibration_rows import Row, average, generator, rate, repetitions
from scipy import stats

from ablate.results.comparison.power import ALPHA
from ablate.results.statistics.intervals import seeds_needed, smallest_effect, t_interval


def covered(samples: np.ndarray, truth: float, level: float = 0.95) -> list[bool]:
    """Return for each row of `samples` [n, seeds] whether its t interval holds the truth."""
    found = (t_interval(values, level=level) for values in samples.tolist())
    return [interval.low <= truth <= interval.high for interval in found]


def t_intervals(share: float) -> Iterator[Row]:
    """Coverage of the t interval for normal seeds."""
    for seeds in (3, 5, 10):
        samples = generator("t", seeds).standard_normal((repetitions(20_000, share), seeds))
        yield rate("t interval, 95%: coverage", f"{seeds} seeds, normal", covered(samples, 0.0), (0.94, 0.96))


def bootstrap(share: float) -> Iterator[Row]:
    """Coverage of the percentile bootstrap, which the reports do not use."""
    for seeds, target in ((3, (0.67, 0.73)), (10, (0.88, 0.90))):
        random = generator("bootstrap", seeds)
        hits = []
        for values in random.standard_normal((repetitions(4_000, share), seeds)):
            means = random.choice(values, (1_000, seeds)).mean(axis=1)
            low, high = np.percentile(means, [2.5, 97.5])
            hits.append(bool(low <= 0 <= high))
        yield rate("percentile bootstrap (not used): coverage", f"{seeds} seeds, normal", hits, target)


def lognormal(share: float) -> Iterator[Row]:
    """Coverage of the plain t interval for an accuracy near 1 whose error is lognormal."""
    for seeds in (3, 5, 10):
        for spread in (0.5, 1.0):
            shape = (repetitions(10_000, share), seeds)
            accuracy = 1 - 0.01 * np.exp(spread * generator("lognormal", seeds, str(spread)).standard_normal(shape))
            hits = covered(accuracy, 1 - 0.01 * math.exp(spread**2 / 2))
            setting = f"{seeds} seeds, log sd {spread:g}"
            yield rate("t interval of an accuracy with lognormal errors: coverage", setting, hits, (0.80, 0.94))


def one_in_ten_collapses(share: float) -> Iterator[Row]:
    """Coverage of the plain t interval where one seed in ten collapses to chance."""
    for seeds in (3, 5, 10):
        random, shape = generator("collapse", seeds), (repetitions(10_000, share), seeds)
        fallen = random.random(shape) < 0.1
        accuracy = np.where(fallen, 0.1, 0.95) + 0.005 * random.standard_normal(shape)
        hits = covered(accuracy, 0.1 * 0.1 + 0.9 * 0.95)
        yield rate("t interval where one seed in ten collapses: coverage", f"{seeds} seeds", hits, (0.26, 0.65))


def family_wise(share: float) -> Iterator[Row]:
    """Share of studies of ten equal arms in which at least one differs from the baseline."""
    n, seeds = repetitions(10_000, share), 5
    values = generator("family").standard_normal((n, 11, seeds))
    p = stats.ttest_1samp(values[:, 1:] - values[:, :1], 0, axis=2).pvalue
    setting = "10 equal arms, one baseline, 5 seeds"
    yield rate("a signed difference that does not exist: raw p < .05", setting, (p < 0.05).any(axis=1), (0.30, 0.36))
    holm = p.min(axis=1) * p.shape[1] <= 0.05  # Holm rejects something exactly if Bonferroni does
    yield rate("a signed difference that does not exist: Holm", setting, holm, (0.0, 0.05))


def margins(share: float) -> Iterator[Row]:
    """Errors at the margin, and power at a difference of 0, of the rules for a margin."""
    for seeds in (3, 5, 10):
        margin = 4.0 / math.sqrt(seeds)
        samples = generator("margin", seeds).standard_normal((repetitions(20_000, share), seeds)) - margin
        for question in ("non-inferiority", "equivalence"):
            hits = settled(samples, margin, question)
            yield rate(f"{question} claimed at a true difference of one margin", f"{seeds} seeds", hits, (0.0, 0.05))
    for margin in (0.5, 1.0, 2.0):
        pairs = seeds_needed(margin, level=1 - 2 * ALPHA)
        assert pairs is not None
        samples = generator("power", str(margin)).standard_normal((repetitions(10_000, share), pairs))
        setting = f"margin {margin:g} sd(d), {pairs} seeds as planned"
        hits = settled(samples, margin, "non-inferiority")
        yield rate("non-inferiority: power at a true difference of 0", setting, hits, (0.80, 0.90))


def settled(samples: np.ndarray, margin: float, question: str) -> list[bool]:
    """Return for each row whether the interval of the first look settles the question."""
    found = [t_interval(values, level=1 - 2 * ALPHA) for values in samples.tolist()]
    return [i.low > -margin and (question == "non-inferiority" or i.high < margin) for i in found]


def smallest_effects(share: float) -> Iterator[Row]:
    """Power of the paired t test at the smallest detectable effect."""
    for seeds in (3, 5, 10, 20):
        effect = smallest_effect(seeds)
        samples = generator("effect", seeds).standard_normal((repetitions(50_000, share), seeds)) + effect
        hits = stats.ttest_1samp(samples, 0, axis=1).pvalue < ALPHA
        yield rate("smallest detectable effect: power", f"{seeds} seeds, {effect:.2f} sd(d)", hits, (0.80, 0.80))


def winners_curse(share: float) -> Iterator[Row]:
    """How much better the best of K equal configurations looks, before and after fresh seeds."""
    for count, bias in ((10, 1.54), (30, 2.04), (100, 2.51)):
        random, n = generator("winner", count), repetitions(20_000, share)
        best = random.standard_normal((n, count)).max(axis=1)
        setting = f"best of {count} equal configurations, in seed sd"
        yield average("winner's curse: bias of the search value", setting, best, (bias - 0.005, bias + 0.005))
        fresh = random.standard_normal((n, 3)).mean(axis=1)
        yield average("winner's curse: bias after confirmation on 3 fresh seeds", setting, fresh, (0.0, 0.0))


def unequal_tuning(share: float) -> Iterator[Row]:
    """Share of comparisons that the arm with more trials wins although the arms are equal."""
    random, n = generator("tuning"), repetitions(20_000, share)
    for trials, target in ((100, (0.905, 0.915)), (10, (0.495, 0.505))):
        wins = random.standard_normal((n, trials)).max(axis=1) > random.standard_normal((n, 10)).max(axis=1)
        yield rate(
            "equal arms, each tuned: the first one wins",
            f"{trials} against 10 trials",
            wins,
            target,
        )
