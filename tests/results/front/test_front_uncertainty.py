"""Probabilities of being on the front, and the draws that they come from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ablate.base.randomness import stream
from ablate.results.front.front_uncertainty import draw_means, front_probabilities
from ablate.results.statistics.two_way import lay_out


def measured(rng: np.random.Generator, errors: np.ndarray, seeds: int = 3) -> np.ndarray:
    return errors[:, None] + 0.015 * rng.standard_normal((len(errors), seeds))


def about(rng: np.random.Generator, means: np.ndarray, draws: int = 300) -> np.ndarray:
    """Return draws about the measured means, which add the seeds' noise a second time."""
    return means + 0.015 / math.sqrt(3) * rng.standard_normal((draws, len(means)))


def test_a_said_probability_of_the_front_is_the_true_share() -> None:
    """400 studies of 20 networks whose true means are .01 about a law; draws about the means say too little."""
    rng, said, doubled, true = np.random.default_rng(6), [], [], []
    for _ in range(400):
        costs = np.sort(rng.uniform(2.5, 5, 20))
        errors = 0.02 + 2 * 10 ** (-0.5 * costs) + 0.01 * rng.standard_normal(20)
        losses = measured(rng, errors)
        true.append(lowest(errors[None])[0])
        said.append(lowest(draw_means(losses, costs[:, None], rng, draws=300)).mean(axis=0))
        doubled.append(lowest(about(rng, losses.mean(axis=1))).mean(axis=0))
    for low, high in ((0.02, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 0.98)):
        inside = (np.array(said) > low) & (np.array(said) <= high)
        assert np.array(true)[inside].mean() == pytest.approx(np.array(said)[inside].mean(), abs=0.05)
    inside = (np.array(doubled) > 0.05) & (np.array(doubled) < 0.5)
    assert np.array(true)[inside].mean() > np.array(doubled)[inside].mean() + 0.08


def lowest(losses: np.ndarray) -> np.ndarray:
    """Return which networks have a smaller loss than every cheaper one, the cheapest first."""
    before = np.minimum.accumulate(losses, axis=1)[:, :-1]
    return np.column_stack([np.ones(len(losses), dtype=bool), losses[:, 1:] < before])


def test_draws_vary_as_means_over_other_seeds_do_where_networks_are_far_apart() -> None:
    rng = np.random.default_rng(0)
    losses = np.array([[0.0], [30.0], [-20.0]]) + 2 * rng.standard_normal(200) + rng.standard_normal((3, 200))
    losses[2, 50:] = np.nan  # a quarter of the seeds: four times the variance of the noise that is not shared
    drawn = draw_means(losses, np.arange(3.0)[:, None], rng, draws=20_000)
    assert drawn.mean(axis=0) == pytest.approx(lay_out(losses).means, abs=0.02)
    assert np.cov(drawn.T) * 200 == pytest.approx(4 + np.diag([1.0, 1, 4]), rel=0.25)


def test_draws_are_those_of_the_posterior_by_weighted_samples_of_the_prior() -> None:
    """Walk and scatter of the grid, a flat level and normal noise of known variance: 500,000 samples of the prior."""
    rng = np.random.default_rng(8)
    noise = rng.standard_normal((4, 400))
    noise -= noise.mean(axis=1, keepdims=True)
    losses = np.array([0.02, 0.10, 0.05, 0.30])[:, None] + noise
    drawn = draw_means(losses, np.array([[4.0], [1.0], [2.0], [3.0]]), rng, draws=40_000)
    means, error = losses.mean(axis=1), math.sqrt(lay_out(losses).residual / 400)
    steps = np.array([0.0, *np.geomspace(0.2 * error, 2 * np.ptp(means), 6)])
    weight = np.array([4, 1, 1, 1, 1, 1, 1]) / 10
    trend, scatter = (rng.choice(steps, 500_000, p=weight) for _ in range(2))
    walk = np.concatenate([np.zeros((500_000, 1)), rng.standard_normal((500_000, 3)).cumsum(axis=1)], axis=1)
    prior = trend[:, None] * walk[:, [3, 0, 1, 2]] / math.sqrt(3) + scatter[:, None] * rng.standard_normal((500_000, 4))
    rest = (means - prior) / error
    level = error * (rest.mean(axis=1) + rng.standard_normal(500_000) / 2)  # flat prior: its posterior given the others
    chance = np.exp(-0.5 * ((rest - rest.mean(axis=1, keepdims=True)) ** 2).sum(axis=1))
    expected = (chance[:, None] * (prior + level[:, None])).sum(axis=0) / chance.sum()
    spread = np.sqrt((chance[:, None] * (prior + level[:, None] - expected) ** 2).sum(axis=0) / chance.sum())
    assert drawn.mean(axis=0) == pytest.approx(expected, abs=0.05 * error)
    assert drawn.std(axis=0) == pytest.approx(spread, rel=0.05)


def test_probabilities_of_a_planted_front() -> None:
    spread = 0.01 * np.array([-1.0, 1, -1, 1, -1, 1])
    losses = np.array([0.5, 0.3, 0.32, 0.9])[:, None] + np.stack([spread, -spread, spread[::-1], spread * 0.5])
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
