"""The law of error against size: planted laws, closed forms, recorded networks, odd inputs."""

from __future__ import annotations

import math
import re
import warnings

import numpy as np
import polars as pl
import pytest
from statsmodels.stats.multitest import multipletests

from ablate.results.front.curve import Network, ends, fit_networks, slope_difference
from ablate.results.front.curve_words import difference_sentences, fit_sentences, fit_values, reading_sentence
from ablate.results.front.fitted import Fit, fits_table
from support.paths import REPOSITORY

# paper A, Table 2, of docs/measured/papers.md: accuracies of three seeds, the middle one from the mean, by parameters
TABLE_2 = {
    279106: (98.82, 98.89, 98.93),
    92890: (97.61, 97.73, 97.91),
    69910: (97.58, 97.70, 97.76),
    26650: (95.13, 95.28, 95.52),
}


def planted(law, sizes, *, seeds=5, noise=0.01, scatter=0.0, seed=1):
    rng = np.random.default_rng(seed)
    errors = [law(n) * np.exp(scatter * rng.standard_normal() + noise * rng.standard_normal(seeds)) for n in sizes]
    return [Network(size=float(n), errors=e) for n, e in zip(sizes, errors, strict=True)]


def fit_of(networks, **changes):
    return Fit(**{"dataset": "planted", "metric": "test_accuracy", "size": "params", "count": 1000, **changes},
               networks=tuple(networks))  # fmt: skip


def recorded(name):
    """The front of the networks of benchmarks/results/curves_NAME.csv.gz by mean accuracy at the end of training."""
    table = pl.read_csv(REPOSITORY / "benchmarks" / "results" / f"curves_{name}.csv.gz")
    seeds = [column for column in table.columns if column.startswith("val_accuracy/")]
    last = table.sort("epoch").group_by("trial").last().with_columns(mean=pl.mean_horizontal(seeds))
    best, networks = -1.0, []
    for row in last.sort("params", "mean", descending=[False, True]).iter_rows(named=True):
        if row["mean"] > best:
            best = row["mean"]
            networks.append(Network(size=row["params"], errors=1 - np.array([row[column] for column in seeds])))
    return networks


def whole_slope(networks):
    curve = fit_networks(networks)
    return [round(each, 2) for each in ends(curve.change(curve.smallest, curve.largest, 10))]


def test_a_planted_power_law_is_found() -> None:
    curve = fit_networks(planted(lambda n: 0.2 * (n / 1e3) ** -0.3, np.geomspace(1e3, 1e5, 9)))
    middle, low, high = ends(curve.slope(1e3, 1e5))
    assert low < 0.3 < high
    error = 0.01 / math.sqrt(5) / math.sqrt(9 * np.log(np.geomspace(1e3, 1e5, 9)).var())  # of least squares
    assert (middle, high - low) == (pytest.approx(0.3, abs=0.01), pytest.approx(2 * 1.96 * error, rel=0.5))
    assert ends(curve.error(1e4))[0] == pytest.approx(0.2 * 10**-0.3, rel=0.02)


def test_a_planted_floor_is_found_and_told() -> None:
    law = lambda n: 0.03 + 0.2 * (n / 1e3) ** -0.8  # noqa: E731
    fit = fit_of(planted(law, np.geomspace(1e3, 1e5, 12)))
    curve = fit.curve
    middle, low, high = ends((curve.floor * np.exp(curve.level))[curve.floor > 0])
    assert (curve.floor > 0).mean() > 0.95
    assert low < 0.03 < high
    assert middle == pytest.approx(0.03, rel=0.1)
    first, second = (math.log10(law(a) / law(10 * a)) for a in (1e3, 1e4))  # two decades, halves of one each
    told = fit_sentences(fit)
    assert told[1].startswith("It falls more slowly at the large end, as if towards a floor: test accuracy at most 9")
    factors = re.search(r"Up to 10k ten times the parameters is × (\S+), above it × (\S+)\.$", told[1])
    assert [float(each) for each in factors.groups()] == pytest.approx([10**-first, 10**-second], abs=0.03)


@pytest.mark.parametrize("floor", [-1.0, 0.0, 0.5])
def test_the_size_for_an_error_is_the_closed_form_and_the_inverse_of_the_error_at_a_size(floor: float) -> None:
    curve = fit_networks(planted(lambda n: 0.1 * (n / 1e3) ** -0.3, [1e3, 3e3, 1e4, 3e4]))
    some = curve.floor == floor
    assert some.any()
    error = 0.07
    share = (error / np.exp(curve.level) - curve.floor) / (1 - curve.floor)
    expected = curve.largest * share ** (-1 / curve.exponent)  # e = e^a (φ + (1 - φ) (N / N_max)^-α), solved for N
    found = curve.size_for(error)
    assert found[some] == pytest.approx(expected[some])
    back = [float(curve.error(size)[place]) for place, size in enumerate(found[:200])]
    assert back == pytest.approx([error] * 200)


def test_an_error_below_the_floor_needs_no_finite_size_and_that_of_a_rising_law_none_or_any() -> None:
    curve = fit_networks(planted(lambda n: 0.03 + 0.2 * (n / 1e3) ** -1.0, np.geomspace(1e3, 1e5, 12)))
    assert np.isinf(curve.size_for(0.01)[curve.floor > 0]).all()
    rising = fit_networks(planted(lambda n: 0.1 * (n / 1e3) ** 0.3, [1e3, 3e3, 1e4, 3e4]))
    assert ends(rising.size_for(0.01)) == (math.inf,) * 3
    assert ends(rising.size_for(0.9)) == (0.0,) * 3


def test_the_exponent_of_exact_errors_is_that_of_least_squares() -> None:
    sizes = np.geomspace(1e3, 1e5, 10)
    networks = planted(lambda n: 0.2 * (n / 1e3) ** -0.4, sizes, scatter=0.05, noise=0.0, seed=3)
    y = np.log([each.errors.mean() for each in networks])
    slope = -np.polyfit(np.log(sizes), y, 1)[0]
    curve = fit_networks(networks)
    assert ends(curve.slope(1e3, 1e5)[curve.floor == 0])[0] == pytest.approx(slope, abs=0.02)


def test_shared_samples_widen_the_level_and_hardly_the_slope() -> None:
    rng = np.random.default_rng(4)
    sizes, m = np.geomspace(1e3, 3e4, 8), 500
    hard = rng.random(m)  # every network is wrong on the hardest samples
    wrong = [(hard < 0.2 * (n / 1e3) ** -0.3).astype(float) for n in sizes]
    networks = [
        Network(size=n, errors=w.mean() * np.exp(0.02 * rng.standard_normal(5)), samples=w)
        for n, w in zip(sizes, wrong, strict=True)
    ]
    alone = [Network(size=each.size, errors=each.errors) for each in networks]
    widths = []
    for each in (networks, alone):
        curve = fit_networks(each)
        widths.append([np.ptp(ends(np.log(curve.error(size)))[1:]) for size in (1e3, 3e4)])
        widths[-1].append(np.ptp(ends(curve.slope(1e3, 3e4))[1:]))
    share = 0.2 * 30**-0.3
    assert widths[0][1] == pytest.approx(2 * 1.96 * math.sqrt((1 - share) / share / m), rel=0.35)  # binomial
    assert widths[0][1] > 3 * widths[1][1]


def test_seeds_of_a_network_are_drawn_to_those_of_all() -> None:
    quiet = planted(lambda n: 0.2 * (n / 1e3) ** -0.3, np.geomspace(1e3, 1e5, 6), seeds=2, noise=0.1, seed=5)
    quiet[-1] = Network(size=quiet[-1].size, errors=np.full(2, 0.02))  # two equal seeds prove nothing
    curve = fit_networks(quiet)
    assert np.ptp(ends(curve.slope(1e3, 1e5))[1:]) > 0.03


def test_table_2_of_paper_a() -> None:
    """The numbers of an independent fit: × 0.25 (0.16 to 0.39); 98% needs 103k (73k to 148k), 99% 342k (from 223k)."""
    networks = [Network(size=n, errors=1 - np.array(each) / 100) for n, each in TABLE_2.items()]
    assert whole_slope(networks) == pytest.approx([0.25, 0.16, 0.39], abs=0.011)
    curve = fit_networks(networks)
    assert ends(curve.size_for(0.02)) == pytest.approx((103e3, 73e3, 148e3), rel=0.02)
    assert ends(curve.size_for(0.01))[:2] == pytest.approx((342e3, 223e3), rel=0.02)
    fit = fit_of(networks, metric="val_accuracy")
    assert fit.warnings == ("scatter",)
    assert fit_sentences(fit)[0] == (
        "Ten times the parameters: error × 0.25 (0.16 to 0.39), on average from 26.6k to 279k "
        "(4 networks, 3 seeds, these validation samples)."
    )
    assert fit_sentences(fit)[-1] == "Warning: beyond seeds, networks lie 8% of the error off it (at most 32%)."
    assert reading_sentence(fit, False, 0.99, ends(curve.size_for(0.01))) == (
        "99% validation accuracy needs 341k parameters on average (222k to more than 1.1M; 4 networks, "
        "3 seeds, these validation samples, extrapolated)."
    )
    printed = dict(zip(TABLE_2, (98.38, 97.49, 97.80, 95.32), strict=True))
    one_seed = [Network(size=n, errors=np.array([1 - a / 100])) for n, a in printed.items()]
    assert whole_slope(one_seed) == pytest.approx([0.36, 0.19, 0.70], abs=0.06)


def test_recorded_networks_of_digits_and_fashion_mnist() -> None:
    """× 0.16 (0.12 to 0.22) on digits, × 0.56 (0.41 to 0.75) on Fashion-MNIST, p = .005, .39 (.13 to .65)."""
    digits, fashion = recorded("digits"), recorded("fashion_mnist")
    assert (len(digits), len(fashion)) == (12, 14)
    assert whole_slope(digits) == pytest.approx([0.16, 0.12, 0.22], abs=0.01)
    assert whole_slope(fashion) == pytest.approx([0.56, 0.41, 0.75], abs=0.02)
    fits = [fit_of(each, dataset=name, count=None) for name, each in (("digits", digits), ("fashion", fashion))]
    told = " ".join(fit_sentences(fits[0]))
    assert (
        "accuracy at most 97.4% (96.0 to 99.4). Up to 1,200 ten times the parameters is × 0.10, above it × 0.26."
        in told
    )
    assert fits[1].warnings == ("scatter",)
    difference, p = slope_difference(fits[0].curve, fits[1].curve)
    assert difference == pytest.approx((0.39, 0.13, 0.65), abs=0.02)
    assert p == pytest.approx(0.005, abs=0.002)
    (sentence,) = difference_sentences(fits)
    assert sentence.startswith("digits and fashion, 666 to 4.21k parameters: their exponents differ by +0.39 (+0.1")


def test_pairs_of_data_sets_are_adjusted_by_holm_and_need_common_sizes() -> None:
    law = lambda a: lambda n: 0.2 * (n / 1e3) ** -a  # noqa: E731
    fits = [
        fit_of(planted(law(exponent), sizes, noise=0.03, seed=k), dataset=name)
        for k, (name, exponent, sizes) in enumerate(
            [
                ("a", 0.3, [1e3, 3e3, 1e4, 3e4]),
                ("b", 0.4, [1e3, 3e3, 1e4, 3e4]),
                ("c", 0.3, [1e3, 3e3, 1e4, 3e4]),
                ("far", 0.3, [2e4, 6e4, 2e5, 6e5]),
            ]
        )
    ]
    raw = [slope_difference(fits[a].curve, fits[b].curve)[1] for a, b in ((0, 1), (0, 2), (1, 2))]
    told = difference_sentences(fits)
    assert told[3:] == ["Not compared, with less than half a decade of sizes in common: 3 pairs of data sets."]
    shown = [float(each.split("p = ")[1].rstrip(".")) for each in told[:3]]
    adjusted = np.sort(multipletests(raw, method="holm")[1])
    assert shown == pytest.approx(adjusted, rel=0.06)


def test_of_many_pairs_the_surest_are_told() -> None:
    fits = [
        fit_of(planted(lambda n, a=a: 0.2 * (n / 1e3) ** -a, [1e3, 3e3, 1e4, 3e4]), dataset=f"set-{a}")
        for a in (0.1, 0.2, 0.3, 0.31, 0.32, 0.33)
    ]
    told = difference_sentences(fits)
    assert told[10:] == ["5 pairs of data sets more differ less surely."]
    shown = [float(each.split("p = ")[1][:-1]) for each in told[:10]]
    assert shown == sorted(shown)
    assert told[0].startswith("set-0.1 and set-0.")


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([1e3, 2e3, 4e3], "under 4 sizes"),
        ([1e3, 1e3, 2e3, 4e3, 4e3], "under 4 sizes"),
        ([1e3, 2e3, 2.5e3, 3e3], "under half a decade"),
        ([], "under 4 sizes"),
        ([1e3, 2e3, 2.5e3, 3.17e3], ""),
    ],
)
def test_a_curve_needs_four_sizes_over_half_a_decade_and_nothing_else(sizes: list[float], reason: str) -> None:
    fit = fit_of(planted(lambda n: 0.2 * (n / 1e3) ** -0.3, sizes))
    assert fit.reason == reason
    assert bool(fit_sentences(fit)) != bool(reason)
    assert (fit_values(fit) is None) == bool(reason)
    assert fits_table([fit])["reason"].to_list() == [reason]


def test_what_is_said_of_trend_and_end() -> None:
    sizes = np.geomspace(1e3, 1e5, 8)

    def told(law, **changes):
        return " ".join(fit_sentences(fit_of(planted(law, sizes, **changes))))

    assert "No trend is established." in told(lambda n: 0.1, noise=0.2, seeds=3)
    assert "Warning: it rises with size." in told(lambda n: 0.01 * (n / 1e3) ** 0.3)
    steeper = told(lambda n: 0.2 * (n / 1e4) ** np.where(n < 1e4, -0.1, -0.8))
    assert "Warning: it falls faster at the large end; no power law does. Do not extrapolate." in steeper
    assert "floor" not in steeper
    assert "Whether it flattens towards a floor is open." in told(
        lambda n: 0.2 * (n / 1e3) ** -0.3, noise=0.1, scatter=0.1
    )
    narrow = fit_of(planted(lambda n: 0.2 * (n / 1e3) ** -0.3, [1e3, 2e3, 3e3, 6e3]))
    assert fit_sentences(narrow)[0].startswith("Twice the parameters: error × 0.8")
    assert "identifiable" not in steeper


def test_a_law_that_falls_faster_is_not_extrapolated() -> None:
    fit = fit_of(planted(lambda n: 0.2 * (n / 1e4) ** np.where(n < 1e4, -0.1, -0.8), np.geomspace(1e3, 1e5, 8)))
    assert fit.reach == (1e3, 1e5)
    assert "extrapolated" not in str(fit_values(fit))


def test_a_loss_is_fitted_as_it_is() -> None:
    networks = planted(lambda n: 2.0 * (n / 1e3) ** -0.2, np.geomspace(1e3, 1e5, 6))
    fit = fit_of(networks, metric="val_loss", size="flops", count=None)
    assert fit_sentences(fit)[0].startswith("Ten times the FLOPs per sample: validation loss × 0.63 (0.6")
    assert fit.quality_ends(1e4)[0] == pytest.approx(2.0 * 10**-0.2, rel=0.02)
    assert fit_values(fit)["qualities"][1][0][:2] == ["500 (extrapolated)", "2.31"]


def odd_inputs():
    """Yield networks of 805 kinds: 1 to 10 seeds, rising, flat, all zero, doubled sizes, few samples, huge and tiny."""
    rng = np.random.default_rng(7)
    for number in range(805):
        k, seeds, m = int(rng.integers(4, 20)), int(rng.integers(1, 11)), int(rng.integers(2, 60))
        sizes = 10 ** np.sort(rng.uniform(0, 12) + rng.uniform(0.5, 6) * np.r_[0, rng.random(k - 2), 1])
        sizes[1] = sizes[0] if number % 5 == 0 else sizes[1]
        if len(set(sizes)) < 4:
            continue
        kind = number % 7
        base = {0: np.zeros(k), 1: np.full(k, rng.random()), 2: np.linspace(0.1, 1, k), 3: np.linspace(1, 0, k)}.get(
            kind, rng.random(k) ** 4
        )
        wrong = (rng.random((k, seeds, m)) < base[:, None, None]).astype(float)
        known = number % 3 > 0
        yield (
            [
                Network(size=size, errors=each.mean(axis=1), samples=each.mean(axis=0) if known else None)
                for size, each in zip(sizes, wrong, strict=True)
            ],
            (m if number % 2 else None),
        )


def test_odd_inputs_give_finite_numbers_and_sentences() -> None:
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for networks, samples in odd_inputs():
            fit = fit_of(networks, count=samples)
            if fit.reason:
                continue
            row = fits_table([fit]).row(0, named=True)
            assert all(math.isfinite(row[name]) for name in row if name.startswith(("factor", "exponent", "scatter")))
            assert all(0 <= each <= 1 for size in fit.reach for each in fit.quality_ends(size))
            said = " ".join(fit_sentences(fit)) + (str(fit_values(fit)) if count % 8 == 0 else "")
            assert not any(word in said for word in ("nan", "inf", "None"))
            count += 1
    assert count > 700


def test_equal_data_give_equal_numbers() -> None:
    networks = planted(lambda n: 0.2 * (n / 1e3) ** -0.3, np.geomspace(1e3, 1e5, 6))
    assert fits_table([fit_of(networks)]).equals(fits_table([fit_of(networks)]))
