"""Intervals of accuracies near 1, where errors are skewed; outlying seeds; the studentized range beside scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from ablate.results.statistics.intervals import metric_interval, natural_bounds, outlying, t_interval
from ablate.results.statistics.studentized_range import range_quantile

METRIC = "test_accuracy"


@pytest.mark.parametrize("seeds", [3, 5, 20])
@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_the_mean_of_lognormal_errors_is_covered(spread: float, seeds: int) -> None:
    rng, repeats, mean = np.random.default_rng(0), 2000, 0.01 * math.exp(spread**2 / 2)
    covered = plain = 0
    for _ in range(repeats):
        values = (1 - 0.01 * np.exp(spread * rng.standard_normal(seeds))).tolist()
        found = metric_interval(METRIC, values)
        assert found.low <= found.mean <= found.high
        covered += found.low <= 1 - mean <= found.high
        old = t_interval(values, within=(0, 1))
        plain += old.low <= 1 - mean <= old.high
    assert 0.935 <= covered / repeats <= 0.985
    assert plain / repeats < 0.95 if spread > 0.1 else plain / repeats > 0.93


def _recovered(logs: list[float]) -> tuple[float, float]:
    """Return the interval of the log of a lognormal mean (Zou, Huo and Taleban 2009, equations 9 and 10)."""
    n, mean, variance = len(logs), np.mean(logs), np.var(logs, ddof=1)
    theta = stats.t.ppf(0.975, n - 1) ** 2 * variance / n
    lower = mean + variance / 2 - math.sqrt(theta + (variance / 2 * (1 - (n - 1) / stats.chi2.ppf(0.975, n - 1))) ** 2)
    upper = mean + variance / 2 + math.sqrt(theta + (variance / 2 * ((n - 1) / stats.chi2.ppf(0.025, n - 1) - 1)) ** 2)
    return lower, upper


def test_the_interval_near_1_is_that_of_the_mean_of_lognormal_errors() -> None:
    values = [0.991, 0.987, 0.995, 0.990]
    low, high = _recovered(np.log(1 - np.array(values)).tolist())
    found = metric_interval(METRIC, values)
    assert (found.low, found.high) == pytest.approx((1 - math.exp(high), 1 - math.exp(low)))
    assert found.mean == pytest.approx(np.mean(values))


def test_a_seed_without_errors_counts_with_half_an_image() -> None:
    values = [1.0, 0.99, 0.98, 0.985]
    low, high = _recovered(np.log(1 - np.array(values) + 0.005).tolist())
    found = metric_interval(METRIC, values, samples=100)
    assert (found.low, found.high) == pytest.approx((max(1.005 - math.exp(high), 0.0), min(1.005 - math.exp(low), 1.0)))
    unknown, plain = metric_interval(METRIC, values), t_interval(values, within=(0, 1))
    assert (unknown.low, unknown.high) == (plain.low, plain.high)


def test_seeds_far_apart_do_not_move_the_mean_out_of_its_interval() -> None:
    for values in ([0.99] * 9 + [0.4], [0.9999, 0.9999, 0.75], [0.95, 0.999999]):
        found = metric_interval(METRIC, values, samples=359)
        assert 0 <= found.low <= found.mean <= found.high <= 1


@pytest.mark.parametrize(
    ("metric", "values"),
    [(METRIC, [0.85, 0.9, 0.94]), ("val_loss", [0.91, 0.95, 0.99]), ("val_accuracy", [0.95]), (METRIC, [0.97, 0.98])],
)
def test_other_metrics_and_lower_accuracies_keep_student_s_t(metric: str, values: list[float]) -> None:
    found, plain = metric_interval(metric, values), t_interval(values, within=natural_bounds(metric))
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), nan_ok=True)


def test_a_diverged_seed_makes_everything_nan() -> None:
    assert math.isnan(metric_interval(METRIC, [0.99, math.nan]).low)


def test_seeds_that_collapse_are_named_and_normal_ones_are_not() -> None:
    assert outlying(METRIC, [0.98, 0.985, 0.52, 0.979, 0.983]) == [2]
    assert outlying("val_loss", [0.3, 0.31, 0.29, 0.30, 2.3]) == [4]
    assert outlying(METRIC, [0.9, 0.9, 0.9, 0.1]) == [3]
    assert outlying(METRIC, [0.98, 0.985, 0.52]) == []
    assert outlying(METRIC, [0.9, 0.9, 0.9, 0.9]) == []
    rng = np.random.default_rng(0)
    pages = [[outlying("val_score", row.tolist(), rows=10) for row in rng.standard_normal((10, 5))] for _ in range(500)]
    assert np.mean([any(rows) for rows in pages]) < 0.08, "5% of pages of ten networks"


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
@pytest.mark.parametrize(("groups", "df"), [(3, 2), (3, 24), (6, 20), (12, 11), (12, 1000), (40, 39), (100, 400)])
def test_it_is_scipys(level: float, groups: int, df: int) -> None:
    expected = stats.studentized_range.ppf(level, groups, df)
    assert range_quantile(level, groups, df) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("df", [1, 2, 4, 30, 10_000])
def test_the_range_of_two_is_students_t(df: int) -> None:
    expected = math.sqrt(2) * special.stdtrit(df, 0.975)
    assert range_quantile(0.95, 2, df) == pytest.approx(expected, rel=1e-10)
