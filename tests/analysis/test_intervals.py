"""Coverage of intervals of accuracies near 1, where errors are skewed, and seeds that are named as outlying."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ablate.analysis import metric_interval, natural_bounds, outlying, t_interval

METRIC = "test_accuracy"


@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_lognormal_errors_are_covered_where_a_plain_t_interval_fails(spread: float) -> None:
    rng, repeats = np.random.default_rng(0), 2000
    covered = plain = 0
    typical, mean = 0.01, 0.01 * math.exp(spread**2 / 2)
    for _ in range(repeats):
        values = (1 - 0.01 * np.exp(spread * rng.standard_normal(5))).tolist()
        found = metric_interval(METRIC, values)
        covered += found.low <= 1 - typical <= found.high
        old = t_interval(values, within=(0, 1))
        plain += old.low <= 1 - mean <= old.high
    assert 0.94 <= covered / repeats <= 0.96
    assert plain / repeats < 0.93


def test_the_interval_near_1_is_that_of_the_log_errors() -> None:
    values = [0.991, 0.987, 0.995, 0.990]
    low, high = stats.t.interval(
        0.95, 3, loc=np.log(1 - np.array(values)).mean(), scale=stats.sem(np.log(1 - np.array(values)))
    )
    found = metric_interval(METRIC, values)
    assert (found.low, found.high) == pytest.approx((1 - math.exp(high), 1 - math.exp(low)))
    assert found.mean == pytest.approx(np.mean(values))


def test_a_seed_without_errors_counts_with_half_an_image() -> None:
    values = [1.0, 0.99, 0.98]
    logs = np.log(np.array([0.0, 0.01, 0.02]) + 0.005)
    low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
    found = metric_interval(METRIC, values, samples=100)
    assert (found.low, found.high) == pytest.approx((max(1.005 - math.exp(high), 0.0), min(1.005 - math.exp(low), 1.0)))
    unknown, plain = metric_interval(METRIC, values), t_interval(values, within=(0, 1))
    assert (unknown.low, unknown.high) == (plain.low, plain.high)


@pytest.mark.parametrize(
    ("metric", "values"),
    [(METRIC, [0.85, 0.9, 0.94]), ("val_loss", [0.91, 0.95, 0.99]), ("val_accuracy", [0.95]), (METRIC, [1.0, 1.0])],
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
    false = sum(bool(outlying("val_score", rng.standard_normal(5).tolist())) for _ in range(2000))
    assert false / 2000 < 0.02
