"""Coverage of the hypervolume's interval, probabilities of being on the front, and attained surfaces."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ablate.analysis.front_uncertainty import attainment, draw_means, front_probabilities, volume, volume_interval
from ablate.base.randomness import stream

COSTS = np.linspace(2.5, 5, 10)
TRUTH = 0.02 + 2 * 10 ** (-0.5 * COSTS)  # errors by log10 of the parameters
CORNER = np.array([0.4, 5.5])


def test_the_basic_interval_of_the_hypervolume_covers_and_the_percentile_interval_does_not() -> None:
    rng, repeats, covered, percentile = np.random.default_rng(5), 400, 0, 0
    true = volume(TRUTH, COSTS[:, None], CORNER)
    for _ in range(repeats):
        losses = TRUTH[:, None] + 0.03 * rng.standard_normal((10, 5))
        value = volume(losses.mean(axis=1), COSTS[:, None], CORNER)
        drawn = [volume(row, COSTS[:, None], CORNER) for row in draw_means(losses, rng, draws=300)]
        low, high = np.quantile(drawn, (0.025, 0.975))
        covered += 2 * value - high <= true <= 2 * value - low
        percentile += low <= true <= high
    assert 0.92 <= covered / repeats <= 0.98
    assert percentile / repeats < 0.87


def test_the_interval_is_the_basic_one_of_the_draws_and_the_same_twice() -> None:
    losses = TRUTH[:, None] + 0.01 * np.random.default_rng(0).standard_normal((10, 5))
    found = volume_interval(losses, COSTS[:, None], CORNER, stream(0, "digits", 0, "front"))
    assert found == volume_interval(losses, COSTS[:, None], CORNER, stream(0, "digits", 0, "front"))
    assert found is not None
    drawn = [volume(m, COSTS[:, None], CORNER) for m in draw_means(losses, stream(0, "digits", 0, "front"))]
    assert found.high == pytest.approx(2 * found.value - np.quantile(drawn, 0.025))
    assert found.low < found.value < found.high


def test_draws_vary_as_means_over_other_seeds_do() -> None:
    rng = np.random.default_rng(0)
    losses = 2 * rng.standard_normal(200) + rng.standard_normal((3, 200))
    drawn = draw_means(losses, rng, draws=20_000)
    assert drawn.mean(axis=0) == pytest.approx(losses.mean(axis=1), abs=0.01)
    assert np.cov(drawn.T) * 200 == pytest.approx(4 + np.eye(3), rel=0.25)


def test_probabilities_of_a_planted_front() -> None:
    spread = 0.01 * np.array([-1.0, 1, -1, 1, -1, 1])
    losses = np.array([0.5, 0.3, 0.31, 0.9])[:, None] + np.stack([spread, -spread, spread[::-1], spread * 0.5])
    costs = np.array([1.0, 2, 2, 3])[:, None]
    found = front_probabilities(losses, costs, stream(0, "digits", 0, "front"))
    assert found is not None
    assert (found[0], found[3]) == (1.0, 0.0)
    assert found[1] + found[2] == pytest.approx(1.0)
    assert 0.8 < found[1] < 1
    assert front_probabilities(losses[:, :1], costs, stream(0, "digits", 0, "front")) is None
    assert front_probabilities(np.full((2, 3), 0.5), costs[:2], stream(0, "digits", 0, "front")) is None


def test_equal_networks_of_equal_cost_share_the_front_evenly() -> None:
    losses = 0.1 * np.random.default_rng(1).standard_normal((4, 5))
    losses -= losses.mean(axis=1, keepdims=True)
    found = front_probabilities(losses, np.ones((4, 1)), stream(0, "digits", 0, "front"))
    assert found == pytest.approx(0.25, abs=0.04)


def test_attained_losses_are_order_statistics_of_each_seed_s_best() -> None:
    losses = np.random.default_rng(2).uniform(size=(5, 8))
    found = attainment(losses, np.array([1.0, 2, 3, 4, 5]))
    best = np.sort(np.minimum.accumulate(losses, axis=0), axis=1)
    for column, share in enumerate((0.25, 0.5, 0.75)):
        assert found[:, column] == pytest.approx(best[:, math.ceil(share * 8) - 1])
