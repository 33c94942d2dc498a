from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ablate.results.fits.curves import Fitted, aicc, fit_form, refine, resampled
from ablate.results.fits.fits import fit_curve
from ablate.results.fits.misfit import SCATTER, _lack_of_fit, _order, contradiction, network_means
from ablate.results.statistics.intervals import natural_bounds, smallest_effect, t_interval

ALPHA, FLOOR = 0.5, 0.02


def planted(rng, *, sizes=8, seeds=5, decades=3.0, noise=0.018, offset=0.0, law=None):
    size = np.repeat(np.logspace(3, 3 + decades, sizes), seeds)
    law = law or (lambda n: FLOOR + 0.3 * (n / 1e3) ** -ALPHA)
    between = np.repeat(offset * rng.standard_normal(sizes), seeds) if offset else 0.0
    return size, law(size) * np.exp(between + noise * rng.standard_normal(len(size)))


def points_of(size, error):
    return network_means(size, error, np.unique(size, return_inverse=True)[1])


def test_interval_is_that_of_scipy():
    values = [0.91, 0.93, 0.90, 0.95]
    found = t_interval(values)
    expected = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.n == 4


def test_interval_of_few_values_and_of_diverged_ones():
    one = t_interval([0.9])
    assert (one.mean, one.n) == (0.9, 1)
    assert math.isnan(one.low)
    assert math.isnan(t_interval([]).mean)
    assert math.isnan(t_interval([0.9, math.nan, 0.8]).mean)
    assert math.isnan(t_interval([0.9, math.inf]).low)


def test_interval_of_a_share_stays_within_0_and_1():
    found = t_interval([0.99, 0.999, 0.97], within=natural_bounds("test_accuracy"))
    assert found.high == 1.0
    assert 0 < found.low < found.mean
    assert natural_bounds("val_loss") == (0.0, math.inf)
    assert natural_bounds("val_margin") == (-math.inf, math.inf)


def test_smallest_detectable_effect_is_found_with_that_power():
    rng = np.random.default_rng(0)
    samples = smallest_effect(5) + rng.standard_normal((20_000, 5))
    share = (stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.04).mean()  # the first look
    assert share == pytest.approx(0.8, abs=0.012)
    assert smallest_effect(1) == math.inf


def test_aicc_is_the_hand_formula():
    residuals = np.array([0.1, -0.2, 0.3, -0.1, 0.05, 0.15, -0.25, 0.05])
    width = np.abs(residuals).mean()
    log_likelihood = (-np.log(2 * width) - np.abs(residuals) / width).sum()
    k, n = 4, 8
    assert aicc(residuals, 3) == pytest.approx(-2 * log_likelihood + 2 * k + 2 * k * (k + 1) / (n - k - 1))
    assert aicc(residuals[:5], 3) == math.inf


def test_a_planted_curve_is_found_exactly_without_noise():
    size, error = planted(np.random.default_rng(0), noise=0.0)
    fit = fit_curve(size, error)
    assert fit.label == "power"
    assert (fit.floor, fit.exponent) == pytest.approx((FLOOR, ALPHA), rel=1e-3)
    assert fit.amplitude == pytest.approx(0.3 * 1e3**ALPHA, rel=1e-2)
    np.testing.assert_allclose(fit.predict(size), error, rtol=1e-3)


def test_one_wild_replicate_does_not_bend_the_curve():
    size, error = planted(np.random.default_rng(1), noise=0.005)
    error[7] *= 3
    fit = fit_curve(size, error)
    assert fit.exponent == pytest.approx(ALPHA, abs=0.02)


@pytest.mark.services
@pytest.mark.parametrize(("offset", "width"), [(0.0, 0.025), (0.04, 0.138)])
def test_interval_of_the_exponent_covers_also_where_networks_differ_from_the_law(offset, width):
    rng = np.random.default_rng(2)
    fits = [fit_curve(*planted(rng, offset=offset), bootstraps=60) for _ in range(20)]
    kept = [fit for fit in fits if fit.label == "power"]
    covered = sum(fit.exponent_low <= ALPHA <= fit.exponent_high for fit in kept)
    assert len(kept) >= 16
    assert covered / len(kept) >= 0.85  # with every replicate as a separate point: .57 at an offset of 4%
    assert np.median([fit.exponent_high - fit.exponent_low for fit in kept]) == pytest.approx(width, rel=0.3)


@pytest.mark.services
@pytest.mark.parametrize(
    "law",
    [
        lambda n: 0.3 * (n / 10**4.5) ** np.where(n < 10**4.5, -0.3, -0.4),
        lambda n: np.where(n < 10**4.5, 0.3, 0.2),
        lambda n: 0.02 + 0.3 / (1 + np.exp(3 * (np.log10(n) - 4.5))),
    ],
    ids=["broken", "step", "logistic"],
)
def test_a_law_of_another_form_is_refused(law):
    rng = np.random.default_rng(4)
    for _ in range(4):
        assert fit_curve(*planted(rng, law=law), bootstraps=20).label == "not identifiable"


def test_lack_of_fit_is_the_textbook_comparison_of_a_line_with_one_mean_per_size():
    from statsmodels.formula.api import ols
    from statsmodels.stats.api import anova_lm

    size, error = planted(np.random.default_rng(11), noise=0.1, law=lambda n: 0.3 * (n / 1e3) ** -0.25)
    points = points_of(size, error)
    fit = fit_form("log-linear", points.sizes, points.errors)
    data = {"y": np.log(error), "x": np.log(size)}
    table = anova_lm(ols("y ~ x", data).fit(), ols("y ~ C(x)", data).fit())
    assert _lack_of_fit(fit, points, 0.0) == pytest.approx(table["Pr(>F)"].iloc[1], rel=1e-6)
    assert _lack_of_fit(fit, points, SCATTER) > _lack_of_fit(fit, points, 0.0)


def test_order_is_the_textbook_comparison_with_further_powers():
    from statsmodels.formula.api import ols

    size, error = planted(np.random.default_rng(12), law=lambda n: 0.3 * (n / 1e3) ** -0.25)
    points = points_of(size, error)
    x = np.log(points.sizes) - np.log(points.sizes).mean()
    data = {"y": np.log(points.errors), "x": x}
    line = ols("y ~ x", data).fit()
    further = [ols(f"y ~ x + {terms}", data).fit() for terms in ("I(x**2)", "I(x**2) + I(x**3)")]
    expected = min(bigger.compare_f_test(line)[1] for bigger in further)
    assert _order(fit_form("log-linear", points.sizes, points.errors), points) == pytest.approx(expected, rel=1e-5)


def test_a_misfit_in_order_of_size_is_told_from_the_same_misfit_without_order():
    size = np.logspace(3, 6, 8)
    law = 0.3 * (size / 1e3) ** -0.25
    seeds = 0.004 * np.random.default_rng(13).standard_normal((8, 5))
    bent = 0.03 * np.array([1.4, 0.1, -0.8, -1.1, -0.9, -0.6, 0.3, 1.5])
    jagged = bent[[5, 0, 2, 7, 3, 6, 1, 4]]
    reasons = {}
    for name, misfit in (("bent", bent), ("jagged", jagged)):
        error = law[:, None] * np.exp(misfit[:, None] + seeds)
        points = points_of(np.repeat(size, 5), error.ravel())
        reasons[name] = contradiction(fit_form("log-linear", points.sizes, points.errors), points)
    assert "in an order of size" in reasons["bent"]
    assert reasons["jagged"] == ""


def test_networks_of_one_size_are_points_of_their_own_and_seeds_are_not():
    size, error = planted(np.random.default_rng(14), sizes=16, seeds=3)
    paired = np.repeat(np.unique(size)[::2], 6)
    fit = fit_curve(paired, error, networks=np.repeat(np.arange(16), 3).tolist(), bootstraps=20)
    assert (fit.sizes, fit.networks, fit.points) == (8, 16, 48)
    points = network_means(paired, error, np.repeat(np.arange(16), 3))
    log_error = np.log(error).reshape(16, 3)
    np.testing.assert_allclose(np.log(points.errors), log_error.mean(axis=1))
    assert points.pure == pytest.approx(log_error.var(axis=1, ddof=1).mean())
    assert points.freedom == 32


def test_bootstrap_spreads_as_the_estimate_does_over_new_data():
    rng = np.random.default_rng(3)
    estimates, spreads = [], []
    for _ in range(60):
        size, error = planted(rng)
        scale = float(np.exp(np.log(size).mean()))
        truth = np.array([math.log(FLOOR), math.log(0.3 * (scale / 1e3) ** -ALPHA), ALPHA])
        found = refine("power", truth, np.log(size / scale), np.log(error))
        fit = Fitted(form="power", parameters=found, aicc=0.0, scale=scale)
        estimates.append(found)
        spreads.append(resampled(fit, size, error, 60).std(axis=0, ddof=1))
    np.testing.assert_allclose(np.mean(spreads, axis=0), np.std(estimates, axis=0, ddof=1), rtol=0.3)


@pytest.mark.services
def test_constant_and_straight_laws_are_told_from_a_curve():
    rng = np.random.default_rng(6)
    flat = fit_curve(*planted(rng, law=lambda n: np.full_like(n, 0.1)))
    assert flat.label == "constant"
    assert flat.floor == pytest.approx(0.1, rel=0.02)
    assert math.isnan(flat.exponent)
    straight = fit_curve(*planted(rng, law=lambda n: 0.3 * (n / 1e3) ** -0.25))
    assert straight.label == "log-linear"
    assert straight.exponent_low < 0.25 < straight.exponent_high
    assert straight.aicc["log-linear"] < straight.aicc["constant"]


@pytest.mark.parametrize(
    ("design", "reason"),
    [
        ({"sizes": 5, "seeds": 3, "decades": 1.5}, "5 distinct sizes, 6 are needed"),
        ({"sizes": 8, "decades": 1.0}, "1.00 decades, 1.5 are needed"),
        ({"sizes": 1}, "1 distinct size, 6"),
    ],
)
def test_too_few_sizes_are_labelled(design, reason):
    fit = fit_curve(*planted(np.random.default_rng(6), **design))
    assert fit.label == "not identifiable"
    assert reason in fit.reason
    assert not fit.identifiable
    with pytest.raises(ValueError, match="no curve to predict from"):
        fit.predict([1e3])


def test_a_law_that_turns_at_the_largest_size_is_labelled():
    size, error = planted(np.random.default_rng(7))
    error[size == size.max()] *= 2
    fit = fit_curve(size, error)
    assert fit.label == "not identifiable"
    assert "without the largest size" in fit.reason


def test_errors_of_zero_and_missing_numbers_are_named_or_left_out():
    size, error = planted(np.random.default_rng(8))
    assert "error of 0" in fit_curve(size, np.where(size == size.max(), 0.0, error)).reason
    spoiled = error.copy()
    spoiled[3] = math.nan
    assert fit_curve(size, spoiled).points == len(size) - 1
    assert fit_curve([], []).reason.startswith("0 distinct sizes")
    assert fit_curve([0, 10], [0.1, 0.1]).points == 1


def test_no_extrapolation_past_four_times():
    fit = fit_curve(*planted(np.random.default_rng(10)))
    assert fit.predict([4e6])[0] < fit.predict([1e3])[0]
    with pytest.raises(ValueError, match="no extrapolation past 4x"):
        fit.predict([4.1e6])
    with pytest.raises(ValueError, match="no extrapolation past 4x"):
        fit.predict([200.0])


def test_equal_data_give_equal_intervals():
    data = planted(np.random.default_rng(10))
    first, second = fit_curve(*data), fit_curve(*data)
    assert (first.exponent_low, first.exponent_high) == (second.exponent_low, second.exponent_high)
