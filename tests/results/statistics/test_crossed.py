"""Intervals for other seeds and samples: the parts of a variance by an own ANOVA, coverage where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import scipy
from numpy.typing import NDArray

from ablate.results.front.answer import unselected_best
from ablate.results.statistics.crossed import Spread, difference_interval, sample_interval, spread, widened
from ablate.results.statistics.intervals import Interval, metric_interval, t_interval
from ablate.results.trials.sample_tables import SAMPLES, SAMPLES_TYPE, spread_of
from ablate.results.trials.study_warnings import few_errors, heavy_tail

Values = NDArray[np.float64]


def of(*parts: Values) -> Spread:
    found = spread(parts)
    assert found is not None
    return found


def planted(seeds: int, samples: int, sds: tuple[float, float, float], random: np.random.Generator) -> Values:
    shapes = ((seeds, 1), (1, samples), (seeds, samples))
    parts = [sd * random.standard_normal(shape) for shape, sd in zip(shapes, sds, strict=True)]
    return np.asarray(parts[0] + parts[1] + parts[2])


def graded(accuracy: float, seeds: int, samples: int, random: np.random.Generator) -> Values:
    """Return what is right, 0 or 1: samples differ in difficulty, seeds by half a point."""
    middle = float(scipy.special.ndtri(accuracy))
    own = 0.005 / math.exp(-(middle**2) / 2) * math.sqrt(2 * math.pi)
    rest = math.sqrt(1 - 0.6 - own**2)
    return np.asarray(middle + planted(seeds, samples, (own, math.sqrt(0.6), rest), random) > 0, dtype=np.float64)


def test_the_parts_of_a_variance_are_those_of_an_analysis_of_variance() -> None:
    values = planted(4, 30, (2.0, 1.0, 0.5), np.random.default_rng(0))
    n, m, whole = 4, 30, values.mean()
    squares = [0.0, 0.0, 0.0]
    for i in range(n):
        for j in range(m):
            row, column = values[i].mean() - whole, values[:, j].mean() - whole
            for k, part in enumerate((row, column, values[i, j] - whole - row - column)):
                squares[k] += part**2
    rows, columns, cells = (s / df for s, df in zip(squares, (n - 1, m - 1, (n - 1) * (m - 1)), strict=True))
    found = of(values)
    assert found.seeds == pytest.approx((rows - cells) / (n * m))
    assert found.samples == pytest.approx((columns - cells) / (n * m))
    assert found.both == pytest.approx(cells / (n * m))
    assert found.variance == pytest.approx((rows + columns - cells) / (n * m))
    terms = rows**2 / (n - 1) + columns**2 / (m - 1) + cells**2 / ((n - 1) * (m - 1))
    assert found.df == pytest.approx((rows + columns - cells) ** 2 / terms)


def test_parts_are_unbiased_also_over_two_data_sets() -> None:
    random, sds = np.random.default_rng(1), (0.5, 2.0, 1.0)
    found = []
    for _ in range(2000):
        seed = random.standard_normal((5, 1)) * sds[0]
        found.append(of(*(seed + planted(5, m, (0.0, *sds[1:]), random) for m in (40, 60))))
    expected = (0.25 / 5, 4 * (1 / 40 + 1 / 60) / 4, (1 / 200 + 1 / 300) / 4)
    for name, value in zip(("seeds", "samples", "both"), expected, strict=True):
        assert np.mean([getattr(each, name) for each in found]) == pytest.approx(value, rel=0.06)


@pytest.mark.parametrize("accuracy", [0.80, 0.93, 0.98])
@pytest.mark.parametrize("seeds", [5, 20])
def test_an_interval_holds_the_accuracy_of_the_population(accuracy: float, seeds: int) -> None:
    random, repetitions = np.random.default_rng(int(100 * accuracy) + seeds), 600
    both, alone = [], []
    for _ in range(repetitions):
        values = graded(accuracy, seeds, 359, random)
        for hits, each in (
            (both, sample_interval("test_accuracy", of(values))),
            (alone, metric_interval("test_accuracy", values.mean(axis=1).tolist(), samples=359)),
        ):
            hits.append(each.low <= accuracy <= each.high)
    assert 0.92 < np.mean(both) < 0.98
    assert np.mean(alone) < min(0.94, float(np.mean(both)))


def test_equal_networks_differ_in_at_most_one_page_of_twenty() -> None:
    random, wrong = np.random.default_rng(2), []
    for _ in range(800):
        hard = random.standard_normal((1, 359))
        pair = [(1.4 + 0.8 * hard + planted(10, 359, (0.02, 0.3, 0.5), random) > 0).astype(float) for _ in "ab"]
        found = difference_interval(of(pair[0] - pair[1]), share=True)
        wrong.append(not found.low <= 0 <= found.high)
    assert np.mean(wrong) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 800)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (np.ones((3, 200)), 0.97, 1.0),
        (np.zeros((3, 200)), 0.0, 0.03),
        (np.tile(np.arange(200) >= 4, (3, 1)).astype(float), 0.94, 0.995),
    ],
    ids=["all right", "none right", "the same errors in all seeds"],
)
def test_an_interval_at_the_edge_has_a_width_and_contains_its_mean(values: Values, low: float, high: float) -> None:
    found = sample_interval("test_accuracy", of(values))
    assert low <= found.low <= values.mean() <= found.high <= high
    assert found.high - found.low > 1 / 200
    apart = difference_interval(of(values - values), share=True)
    assert (apart.low, apart.high) == (pytest.approx(-0.0098, abs=1e-4), pytest.approx(0.0098, abs=1e-4))


def test_it_is_never_narrower_than_that_over_seeds_alone() -> None:
    random = np.random.default_rng(3)
    for _ in range(200):
        values = planted(3, 20, (1.0, 0.2, 1.0), random)
        own, wide = t_interval(values.mean(axis=1).tolist()), difference_interval(of(values), share=False)
        assert wide.low <= own.low + 1e-12
        assert own.high - 1e-12 <= wide.high


@pytest.mark.parametrize(("accuracy", "samples"), [(0.98, 100), (0.99, 100), (0.99, 359)])
def test_the_best_of_equal_networks_holds_its_population_on_few_errors(accuracy: float, samples: int) -> None:
    """Errors of a sample have one law for all networks: a probit, or most samples have none (Beta)."""
    random, repetitions = np.random.default_rng(samples), 200
    shape, middle = (6, 10, samples), float(scipy.special.ndtri(accuracy))
    for law in ("probit", "beta"):
        hits = []
        for _ in range(repetitions):
            hard = scipy.special.ndtr((-middle + math.sqrt(0.6) * random.standard_normal(samples)) / math.sqrt(0.4))
            if law == "beta":
                hard = random.beta(0.3 * (1 - accuracy), 0.3 * accuracy, samples)
            values = np.asarray(random.random(shape) > hard, dtype=np.float64)
            found, best = [of(each) for each in values], int(values.mean(axis=(1, 2)).argmax())
            number = unselected_best(values.mean(axis=2), "test_accuracy", samples=samples)
            interval = widened("test_accuracy", number, found[best], found)
            hits.append(interval.low <= accuracy <= interval.high)
        assert np.mean(hits) >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / repetitions), law


def test_the_best_number_is_no_wider_beside_networks_that_are_far_worse() -> None:
    random = np.random.default_rng(5)
    values = [graded(accuracy, 5, 359, random) for accuracy in (0.6, 0.75, 0.9, 0.98)]
    found = [of(each) for each in values]
    number = metric_interval("test_accuracy", values[-1].mean(axis=1).tolist())
    alone, beside = (widened("test_accuracy", number, found[-1], each) for each in (found[-1:], found))
    assert beside.high - beside.low < 1.3 * (alone.high - alone.low)


def test_a_corrected_number_is_widened_by_the_samples_alone() -> None:
    number = Interval(mean=2.0, low=1.6, high=2.3, n=5, sd=0.1)
    found = Spread(mean=2.1, n=5, count=100, seeds=9.0, samples=0.04, both=1.0, df=9.0, on_these=10.0)
    wider = widened("test_loss", number, found, [found])
    reach = 1.959964 * 0.2
    assert wider.mean == 2.0
    assert wider.low == pytest.approx(2.0 - math.hypot(0.4, reach), rel=1e-5)
    assert wider.high == pytest.approx(2.0 + math.hypot(0.3, reach), rel=1e-5)
    share = widened("test_accuracy", Interval(mean=0.99, low=0.97, high=1.0, n=5, sd=0.1), found, [found])
    assert 0 <= share.low <= 0.97
    assert share.high == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize("shape", [(1, 30), (3, 1), (3, 0)])
def test_one_seed_or_one_sample_says_nothing(shape: tuple[int, int]) -> None:
    assert spread([np.zeros(shape)]) is None
    assert spread([np.full((3, 4), math.nan)]) is None
    assert spread([]) is None


@pytest.mark.parametrize(
    ("splits", "lengths", "known"),
    [("aa", (3, 3), True), ("ab", (3, 3), False), ("aa", (3, 4), False), ("a", (3,), False)],
    ids=["same samples", "other samples", "other number", "a seed without"],
)
def test_seeds_are_crossed_only_on_the_same_samples(splits: str, lengths: tuple[int, ...], known: bool) -> None:
    cells = [
        [{"metric": "test_loss", "split": split, "values": [float(i) for i in range(length)]}]
        for split, length in zip(splits, lengths, strict=True)
    ]
    column = pl.Series(SAMPLES, [*cells, None][:2], SAMPLES_TYPE)
    rows = pl.DataFrame([pl.Series("trial", [1, 1]), pl.Series("seed", [0, 1]), column])
    assert (spread_of(rows, "test_loss") is not None) == known
    assert spread_of(rows, "test_accuracy") is None


def codes(shares: list[tuple[float, int]], losses: Values) -> list[str]:
    found = [*few_errors(shares), *heavy_tail([("test_loss", of(losses).tail)])]
    return [each.code for each in found]


def test_few_errors_and_heavy_tails_are_warned_of() -> None:
    random = np.random.default_rng(3)
    heavy, light = (np.exp(sd * random.standard_normal(359)) + np.zeros((3, 1)) for sd in (2, 0.5))
    assert codes([(0.95, 359), (0.6, 100)], light) == []
    assert codes([(0.95, 359), (0.98, 359)], light) == ["few-errors"]
    assert codes([(0.02, 100)], heavy) == ["few-errors", "heavy-tail"]
    assert of(light).tail == pytest.approx(abs(scipy.stats.skew(light[0])) / math.sqrt(359))
    assert [*heavy_tail([("test_accuracy", 1.0)])] == []
