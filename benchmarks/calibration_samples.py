"""Rows on intervals for other seeds and samples: one accuracy, the difference of two networks, the best of several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import scipy
from calibration_rows import Row, generator, rate, repetitions

from ablate.results.front.answer import unselected_best
from ablate.results.statistics.crossed import Spread, difference_interval, sample_interval, spread, widened
from ablate.results.statistics.intervals import Interval, metric_interval, t_interval

SAMPLES = 359  # as in the test split of the digits
SEED_SD = 0.005  # of a network's accuracy on infinitely many samples
SHARED, OWN = 0.55, 0.1  # parts of a sample's difficulty: for every network, for one network
METRIC = "test_accuracy"
FOUND, TODAY = "interval over seeds and samples", "interval over seeds (for these samples only)"


def right(random: np.random.Generator, accuracies: list[float], seeds: int, samples: int = SAMPLES) -> np.ndarray:
    """Return 0 or 1 by network, seed and sample, [networks, seeds, samples]; each is a probit of its population."""
    hard = math.sqrt(SHARED) * random.standard_normal((1, samples))
    found = []
    for accuracy in accuracies:
        middle = float(scipy.special.ndtri(accuracy))
        by_seed = SEED_SD * math.sqrt(2 * math.pi) * math.exp(middle**2 / 2)
        own = math.sqrt(OWN) * random.standard_normal((1, samples))
        rest = math.sqrt(1 - SHARED - OWN - by_seed**2) * random.standard_normal((seeds, samples))
        found.append(middle + by_seed * random.standard_normal((seeds, 1)) + hard + own + rest > 0)
    return np.array(found, dtype=np.float64)


def mostly_easy(random: np.random.Generator, accuracies: list[float], seeds: int, samples: int) -> np.ndarray:
    """Return the same where most samples have no error, and few have many: errors are Beta, alike for all networks."""
    quantiles = random.random(samples)
    errors = [scipy.special.betaincinv(0.3 * (1 - each), 0.3 * each, quantiles) for each in accuracies]
    return np.array([random.random((seeds, samples)) > each for each in errors], dtype=np.float64)


def spread_of(values: np.ndarray) -> Spread:
    """Return the spread of values [seeds, samples]."""
    found = spread([values])
    assert found is not None
    return found


def pigeonhole(values: np.ndarray, random: np.random.Generator, draws: int = 200) -> Interval:
    """Return the percentile interval of a bootstrap that draws seeds and samples independently (Owen 2007)."""
    seeds, samples = values.shape
    rows, columns = (random.multinomial(n, np.full(n, 1 / n), draws) / n for n in (seeds, samples))
    low, high = np.quantile(((rows @ values) * columns).sum(axis=1), (0.025, 0.975))
    return Interval(mean=float(values.mean()), low=low, high=high, n=seeds, sd=math.nan)


def populations(share: float) -> Iterator[Row]:
    """Coverage of the accuracy in the population: seeds and samples, a bootstrap of both, seeds alone."""
    for accuracy in (0.80, 0.93, 0.98):
        for seeds in (5, 10, 20):
            random = generator("population", str(accuracy), seeds)
            hits: dict[str, list[bool]] = {FOUND: [], "pigeonhole bootstrap (not used)": [], TODAY: []}
            for _ in range(repetitions(2_000, share)):
                values = right(random, [accuracy], seeds)[0]
                found = (
                    sample_interval(METRIC, spread_of(values)),
                    pigeonhole(values, random),
                    metric_interval(METRIC, values.mean(axis=1).tolist(), samples=SAMPLES),
                )
                for list_of, each in zip(hits.values(), found, strict=True):
                    list_of.append(each.low <= accuracy <= each.high)
            setting = f"accuracy {accuracy:g}, {seeds} seeds, {SAMPLES} samples"
            targets = ((0.94, 0.965), (0.92, 0.985), (0.40, 0.92))
            for (name, found_in), target in zip(hits.items(), targets, strict=True):
                yield rate(f"{name}: coverage of the population", setting, found_in, target)


def other_samples(share: float) -> Iterator[Row]:
    """Two networks on the same samples: differences that do not exist in the population, and power."""
    for seeds in (5, 10, 20):
        for gap, what in ((0.0, "equal networks differ"), (0.03, "networks 3 points apart differ")):
            random, both, alone = generator("other samples", seeds, str(gap)), [], []
            for _ in range(repetitions(2_000, share)):
                values = right(random, [0.93, 0.93 - gap], seeds)
                apart = values[0] - values[1]
                own = t_interval(apart.mean(axis=1).tolist())
                for list_of, each in ((both, difference_interval(spread_of(apart), share=True)), (alone, own)):
                    list_of.append(not each.low <= 0 <= each.high)
            setting = f"accuracy 0.93, {seeds} seeds, {SAMPLES} samples"
            yield rate(f"{FOUND}: {what}", setting, both, (0.5, 1.0) if gap else (0.0, 0.05))
            if not gap:
                yield rate(f"{TODAY}: {what}", setting, alone, (0.05, 0.5))


def few_errors(share: float) -> Iterator[Row]:
    """Coverage where a page warns of few errors: an accuracy in the population, and a difference of 0."""
    cases = itertools.product((right, mostly_easy), ((0.98, 100), (0.99, 359), (0.98, 359)), (3, 5, 10))
    for draw, (accuracy, samples), seeds in cases:
        random, covered, equal = generator("few errors", draw.__name__, str(accuracy), samples, seeds), [], []
        for _ in range(repetitions(1_000, share)):
            values = draw(random, [accuracy, accuracy], seeds, samples)
            own, apart = sample_interval(METRIC, spread_of(values[0])), spread([values[0] - values[1]])
            covered.append(own.low <= accuracy <= own.high)
            gap = None if apart is None else difference_interval(apart, share=True)
            equal.append(gap is None or gap.low <= 0 <= gap.high)
        setting = f"accuracy {accuracy:g}, {seeds} seeds, {samples} samples"
        setting += ", most samples without errors" * (draw is mostly_easy)
        yield rate(f"{FOUND}, few errors: coverage of the population", setting, covered, (0.92, 1.0))
        yield rate(f"{FOUND}, few errors: equal networks do not differ", setting, equal, (0.92, 1.0))


def best_of_several(share: float) -> Iterator[Row]:
    """Coverage of the best network's accuracy in the population, as the answer gives it."""
    worlds = {"6 equal networks": [0.93] * 6, "6 networks": [0.88, 0.90, 0.915, 0.92, 0.925, 0.93]}
    for (names, accuracies), seeds in itertools.product(worlds.items(), (5, 10)):
        setting = f"{names}, {seeds} seeds, {SAMPLES} samples"
        hits, alone = best_numbers(generator("best", names, seeds), right, accuracies, seeds, SAMPLES, share)
        yield rate("number of the best network, with its samples: coverage", setting, hits, (0.93, 1))
        yield rate("number of the best network, of these samples only: coverage", setting, alone, (0.40, 0.93))
    laws = {"": right, ", most samples without errors": mostly_easy}
    for (law, draw), accuracy, samples, seeds in itertools.product(laws.items(), (0.98, 0.99), (100, 359), (5, 10)):
        random = generator("best near 1", law, str(accuracy), samples, seeds)
        hits, _ = best_numbers(random, draw, [accuracy] * 6, seeds, samples, share)
        setting = f"6 equal networks, accuracy {accuracy:g}, {seeds} seeds, {samples} samples{law}"
        yield rate("number of the best network, with its samples, near 1: coverage", setting, hits, (0.93, 1))


def best_numbers(
    random: np.random.Generator,
    draw: Callable[..., np.ndarray],
    accuracies: list[float],
    seeds: int,
    samples: int,
    share: float,
) -> tuple[list[bool], list[bool]]:
    """Return by page whether the best network's number holds its accuracy: as the answer gives it, and seeds alone."""
    hits, alone = [], []
    for _ in range(repetitions(1_000, share)):
        values = draw(random, accuracies, seeds, samples)
        by_seed, spreads = values.mean(axis=2), [spread_of(each) for each in values]
        best, number = int(by_seed.mean(axis=1).argmax()), unselected_best(by_seed, METRIC, samples=samples)
        wide = widened(METRIC, number, spreads[best], spreads)
        for list_of, each in ((hits, wide), (alone, number)):
            list_of.append(each.low <= accuracies[best] <= each.high)
    return hits, alone
