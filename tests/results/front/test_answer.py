"""Error rates of the comparison with the best and of its number, in seeded simulations with a planted truth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from ablate.results.front.answer import compare_with_best, cross_fitted, unselected_best
from ablate.results.statistics.intervals import t_interval
from ablate.results.statistics.studentized_range import range_quantile
from ablate.results.statistics.two_way import lay_out

PAGES = 1500
MONTE_CARLO = 0.013  # 2.3 standard errors of a share of 0.05 of PAGES pages
EQUAL = np.zeros(6)
LAW = -4 * np.exp(-np.arange(6) * 2 / 3)  # quality that saturates with size, in standard deviations of a seed


@dataclass(frozen=True)
class Rates:
    """Shares of simulated pages, and biases in standard errors."""

    false_worse: float
    false_non_inferior: float
    bounds_hold: float
    covered: float
    naive_covered: float
    bias: float
    naive_bias: float


def simulate(
    truth: NDArray[np.float64], *, seeds: int = 5, sd: NDArray[np.float64] | float = 1.0, margin: float | None = None
) -> Rates:
    rng = np.random.default_rng([len(truth), seeds])
    spread = np.broadcast_to(sd, truth.shape)
    best_other = np.array([np.delete(truth, i).max() for i in range(len(truth))])
    counts, biases = np.zeros(5), np.zeros(2)
    for _ in range(PAGES):
        shared = 0.5 * rng.standard_normal(seeds)
        values = truth[:, None] + shared + spread[:, None] * rng.standard_normal((len(truth), seeds))
        rows = compare_with_best(values, margin=margin)
        assert rows is not None
        top, chosen = truth.max(), int(values.mean(axis=1).argmax())
        fair, naive = unselected_best(values), t_interval(values[chosen].tolist())
        verdicts = [row.verdict for row in rows]
        counts += (
            any(v == "worse" and t >= top for v, t in zip(verdicts, truth, strict=True)),
            any(v == "non-inferior" and t <= top - (margin or 0) for v, t in zip(verdicts, truth, strict=True)),
            all(r.low <= t - o <= r.high for r, t, o in zip(rows, truth, best_other, strict=True)),
            fair.low <= truth[chosen] <= fair.high,
            naive.low <= truth[chosen] <= naive.high,
        )
        biases += (fair.mean - truth[chosen], naive.mean - truth[chosen])
    error = math.hypot(float(spread.mean()), 0.5) / math.sqrt(seeds)
    return Rates(*(counts / PAGES).tolist(), *(biases / PAGES / error).tolist())


@pytest.mark.parametrize("seeds", [3, 5])
def test_equal_networks_are_called_different_on_at_most_5_percent_of_pages(seeds: int) -> None:
    found = simulate(EQUAL, seeds=seeds)
    assert found.false_worse <= 0.05 + MONTE_CARLO
    assert 0.94 <= found.bounds_hold <= 0.985


def test_the_number_of_the_best_is_not_biased_by_the_choice_and_its_interval_covers() -> None:
    equal, law = simulate(EQUAL), simulate(LAW)
    for found in (equal, law):
        assert 0.94 <= found.covered <= 0.98
        assert abs(found.bias) < 0.12
    # the mean of the network that is chosen by it, with its own t interval
    assert 0.9 < equal.naive_bias < 1.3
    assert equal.naive_covered < 0.92
    assert law.naive_bias > 0.5
    assert law.bounds_hold >= 0.95


@pytest.mark.parametrize(
    ("truth", "sd"),
    [
        (np.array([0.0, -1, -1, -1, -1, -1]), 1.0),
        (np.array([0.0, 0, 0, 0, 0, -1]), 0.4),
        (np.array([0.0, -1]), 0.5),
        (np.array([0.0, -1, -1, -1, -1, -1]), np.array([0.1, 0.2, 0.4, 0.6, 0.8, 1.0])),
    ],
    ids=["all at the margin", "one at the margin", "two networks", "unequal noise"],
)
def test_a_network_at_the_margin_is_called_non_inferior_on_at_most_5_percent_of_pages(
    truth: NDArray[np.float64], sd: NDArray[np.float64] | float
) -> None:
    assert simulate(truth, sd=sd, margin=1.0).false_non_inferior <= 0.05 + MONTE_CARLO


def test_what_is_far_apart_and_what_is_close_is_found() -> None:
    rng = np.random.default_rng(3)
    truth = np.array([0.80, 0.968, 0.97, 0.97])
    values = truth[:, None] + 0.002 * rng.standard_normal((4, 5))
    rows = compare_with_best(values, margin=0.01)
    assert rows is not None
    assert [row.verdict for row in rows].count("best") == 1
    assert rows[0].verdict == "worse"
    assert {rows[i].verdict for i in (1, 2, 3)} == {"best", "non-inferior"}
    without = compare_with_best(values)
    assert without is not None
    assert {row.verdict for row in without[1:]} == {"best", "not distinguished"}
    assert [(row.low, row.high) for row in without] == [(row.low, row.high) for row in rows]


def test_two_networks_are_compared_by_the_paired_t_test() -> None:
    from scipy import stats

    values = np.array([[0.81, 0.84, 0.79, 0.86, 0.83], [0.85, 0.86, 0.84, 0.87, 0.88]])
    rows = compare_with_best(values)
    assert rows is not None
    expected = stats.ttest_rel(values[0], values[1]).confidence_interval(0.96)  # the first look has 80% of the error
    assert (rows[0].low, rows[0].high) == pytest.approx((expected.low, expected.high), rel=1e-6)
    assert rows[1].verdict == "best"
    assert (rows[1].mean, rows[1].low) == (0.0, pytest.approx(-expected.high))


def test_no_comparison_where_seeds_say_nothing_of_noise() -> None:
    assert compare_with_best(np.array([[0.9, 0.9], [0.8, 0.8]])) is None
    assert compare_with_best(np.array([[0.9], [0.8]])) is None
    assert compare_with_best(np.array([[0.9, 0.8]])) is None
    assert compare_with_best(np.array([[0.9, math.nan], [0.8, 0.7]])) is None
    equal = unselected_best(np.array([[0.9, 0.9], [0.8, 0.8]]))
    assert (equal.mean, equal.low, equal.high) == (0.9, 0.9, 0.9)


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("networks", [2, 20])
@pytest.mark.parametrize("law", ["one varies five times", "heavy tails", "skewed", "lognormal near 1", "359 samples"])
def test_the_best_s_interval_covers_where_seeds_are_not_alike(law: str, networks: int, seeds: int) -> None:
    rng, covered = np.random.default_rng([networks, seeds]), []
    for _ in range(PAGES // 3):
        z, truth, metric = rng.standard_normal((networks, seeds)), 0.0, ""
        if law == "one varies five times":
            z[0] *= 5
        elif law == "heavy tails":
            z = rng.standard_t(3, z.shape)
        elif law == "skewed":
            z = math.exp(0.5**2 / 2) - np.exp(0.5 * z)
        else:
            near = law == "lognormal near 1"
            metric, truth = "test_accuracy", 1 - 0.01 * math.exp(0.5**2 / 2) if near else 0.95
            z = 1 - 0.01 * np.exp(0.5 * z) if near else rng.binomial(359, truth, z.shape) / 359
        found = unselected_best(z, metric, samples=359 if metric else None)
        assert found.low <= found.mean <= found.high
        covered.append(found.low <= truth <= found.high)
    assert np.mean(covered) >= 0.93 - 1.5 * MONTE_CARLO


@pytest.mark.parametrize("shared", [0.5, 0.9])
def test_two_seeds_are_not_corrected(shared: float) -> None:
    rng = np.random.default_rng(763)
    for _ in range(PAGES):
        seeds = math.sqrt(shared) * rng.standard_normal(2) + math.sqrt(1 - shared) * rng.standard_normal((6, 2))
        values = np.minimum(0.93 + 0.01 * seeds, 1.0)
        found = unselected_best(values, "test_accuracy", samples=359)
        assert found.mean == values.mean(axis=1).max()
        assert 0 <= found.low <= found.mean <= found.high <= 1


def test_complete_tables_have_the_numbers_of_plain_means() -> None:
    """Numbers of the rule over shared seeds, before networks could have unequal ones."""
    values = np.array([[61, 64, 62, 66, 60], [63, 67, 62, 69, 65], [55, 52, 57, 58, 50], [66, 63, 64, 69, 64]]) / 100
    rows = compare_with_best(values, margin=0.05)
    assert rows is not None
    assert [row.verdict for row in rows] == ["not distinguished", "non-inferior", "worse", "best"]
    assert [row.mean for row in rows] == pytest.approx([-0.026, 0, -0.108, 0], abs=1e-12)
    lows = np.array([-0.06421319062343284, -0.038213190623433035, -0.16617834275464566, -0.03821319062343281])
    means = np.array([-0.026, 0, -0.108, 0])
    first = range_quantile(0.96, 4, 12) / range_quantile(0.95, 4, 12)  # the first look has 80% of the error
    assert [row.low for row in rows] == pytest.approx((means + first * (lows - means)).tolist(), abs=1e-12)
    assert rows[2].high == pytest.approx(-0.108 + first * (0.108 - 0.06978680937656706), abs=1e-12)
    number = unselected_best(values)
    assert (number.mean, number.low, number.high) == pytest.approx((0.642, 0.596072671297499, 0.642), abs=1e-12)


def unequal(rng: np.random.Generator, shared: float, counts: list[int]) -> NDArray[np.float64]:
    """Return values of equal networks, seed variance 1, NaN after the first `counts` seeds of each."""
    seeds, own = rng.standard_normal(max(counts)), rng.standard_normal((len(counts), max(counts)))
    values = math.sqrt(shared) * seeds + math.sqrt(1 - shared) * own
    return np.where(np.arange(max(counts)) < np.array(counts)[:, None], values, np.nan)


def test_unequal_seeds_are_fitted_as_by_least_squares_on_networks_and_seeds() -> None:
    from statsmodels.formula.api import ols

    values = unequal(np.random.default_rng(4), 0.5, [3, 7, 5, 7])
    values[1, 2] = np.nan
    rows = [(i, j, values[i, j]) for i, j in zip(*np.nonzero(np.isfinite(values)), strict=True)]
    network, seed, value = zip(*rows, strict=True)
    fit = ols("v ~ C(n) + C(s)", {"v": value, "n": [f"n{i}" for i in network], "s": [f"s{j}" for j in seed]}).fit()
    found = lay_out(values)
    assert (found.residual, found.residual_df) == (pytest.approx(fit.mse_resid), fit.df_resid)
    for i in (1, 2, 3):
        name = f"C(n)[T.n{i}]"
        error = math.sqrt(found.residual * (found.own[0, 0] + found.own[i, i] - 2 * found.own[0, i]))
        expected = fit.params[name], fit.bse[name]
        assert (found.means[i] - found.means[0], error) == pytest.approx(expected)
    adjusted = found.means[:, None] + found.effects
    assert adjusted[np.isfinite(values)] == pytest.approx(fit.fittedvalues.to_numpy())
    assert found.effects.sum() == pytest.approx(0, abs=1e-12)
    apart = np.array([[1.0, 2, np.nan, np.nan], [np.nan, np.nan, 3, 4]])
    assert compare_with_best(apart) is None


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_unequal_seeds_keep_the_error_rate_and_the_coverage(shared: float) -> None:
    rng, worse, covered, bias = np.random.default_rng(2), [], [], []
    for _ in range(PAGES // 3):
        values = unequal(rng, shared, [3, 20, 20, 20])
        worse.append(any(row.verdict == "worse" for row in compare_with_best(values) or ()))
        found = unselected_best(values)
        covered.append(found.low <= 0 <= found.high)
        bias.append(found.mean)
    assert np.mean(worse) <= 0.05 + 1.7 * MONTE_CARLO
    assert 0.94 - 1.7 * MONTE_CARLO <= np.mean(covered) <= 0.99
    assert abs(np.mean(bias)) < 0.05


def test_further_seeds_make_differences_more_certain() -> None:
    values = unequal(np.random.default_rng(1), 0.5, [3, 20, 20, 20])
    few, all_of_them = (compare_with_best(each) for each in (values[:, :3], values))
    assert few is not None
    assert all_of_them is not None
    widths = [[row.high - row.low for row in rows[1:]] for rows in (few, all_of_them)]
    assert np.mean(widths[1]) < 0.6 * np.mean(widths[0])


def test_a_number_is_cross_fitted() -> None:
    lacking = np.array([[1.0, 0.2, np.nan, np.nan], [0.3, 0.6, 0.4, 0.6]])
    # parts: seeds 0 and 3, where the first network is better by 0.7, and 1 and 2, where the second is by 0.4
    assert cross_fitted(lacking) == pytest.approx(((0.3 + 0.6) / 2 + (0.2 + 0.2 - 0.2) / 2) / 2)
    values = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.6]])
    assert cross_fitted(values) == pytest.approx(0.0)  # seed 1: the second network; seeds 2, 3: the first
    assert cross_fitted(values[:1]) == pytest.approx(1 / 3)


def test_noise_that_all_networks_share_is_told_from_their_own() -> None:
    rng = np.random.default_rng(0)
    shared, own = rng.standard_normal(4000), rng.standard_normal((4, 4000))
    found = lay_out(3 * shared + own)
    assert found.total == pytest.approx(10, rel=0.05)
    assert found.residual == pytest.approx(1, rel=0.05)
    assert found.shared == pytest.approx(0.9, abs=0.01)
    assert found.total_df == pytest.approx(4 * 3999 / (1 + 3 * found.shared**2))


def test_a_later_look_needs_more_and_says_worse_on_fewer_pages() -> None:
    rng, called = np.random.default_rng(9), np.zeros(3)
    for _ in range(PAGES):
        values = rng.standard_normal((4, 5))
        found = [compare_with_best(values, margin=2.0, look=look) for look in (1, 2, 3)]
        for place, rows in enumerate(found):
            assert rows is not None
            called[place] += any(row.verdict == "worse" for row in rows)
        assert all(b.low <= a.low and a.high <= b.high for a, b in zip(found[0] or (), found[1] or (), strict=True))
    assert called[0] > called[1] >= called[2]
    assert called.sum() / PAGES <= 0.05 + MONTE_CARLO
