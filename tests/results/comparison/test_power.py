from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ablate.results.comparison.comparison import cells, seed_values
from ablate.results.comparison.power import QUESTIONS, margin_power, paired_spreads, pairs_needed, pool, smallest_margin
from ablate.results.trials.results import Results
from support import planted_comparison, planted_study


@pytest.mark.parametrize("pairs", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("margin", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("tests", [1, 6])
def test_power_of_non_inferiority_is_that_of_the_non_central_t(pairs, margin, tests):
    critical = stats.t.ppf(1 - 0.04 / tests, pairs - 1)
    expected = stats.nct.sf(critical, pairs - 1, margin * math.sqrt(pairs))
    assert margin_power("non-inferiority", pairs, margin, tests) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("pairs", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("margin", [0.3, 1.0, 2.5])
def test_power_of_equivalence_is_the_double_integral(pairs, margin):
    from scipy import integrate

    critical, df = stats.t.ppf(0.96, pairs - 1), pairs - 1
    shift = margin * math.sqrt(pairs)

    def settled(ratio):
        inside = 2 * stats.norm.cdf(max(shift - critical * ratio, 0.0)) - 1
        return inside * stats.chi.pdf(ratio * math.sqrt(df), df) * math.sqrt(df)

    expected = integrate.quad(settled, 0, shift / critical, limit=200)[0]
    assert margin_power("equivalence", pairs, margin) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("question", QUESTIONS)
def test_as_many_pairs_as_needed_settle_the_margin_in_simulation(question):
    from statsmodels.stats.weightstats import DescrStatsW

    rng, margin = np.random.default_rng(0), 1.2
    pairs = pairs_needed(question, margin)
    assert margin_power(question, pairs - 1, margin) < 0.8 <= margin_power(question, pairs, margin)
    data = rng.standard_normal((20_000, pairs))
    low, high = DescrStatsW(data.T).tconfint_mean(alpha=0.08)
    settled = (low > -margin) & ((high < margin) if question == "equivalence" else True)
    assert settled.mean() == pytest.approx(margin_power(question, pairs, margin), abs=0.012)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("pairs", [3, 5, 20])
def test_smallest_margin_has_the_power_and_inverts_the_number_of_pairs(question, pairs):
    for tests in (1, 6):
        margin = smallest_margin(question, pairs, tests)
        assert margin_power(question, pairs, margin, tests) == pytest.approx(0.8, abs=1e-6)
        assert pairs_needed(question, margin * 1.0001, tests) == pairs


def test_extremes_have_an_answer():
    assert smallest_margin("equivalence", 1) == math.inf
    assert margin_power("equivalence", 1, 9.0) == 0.0
    assert pairs_needed("equivalence", 0.01) is None
    assert pairs_needed("equivalence", 1e6) == 2
    assert pool([[0.1], []]) is None


def test_pooled_spread_is_that_of_least_squares_with_one_mean_per_arm():
    from statsmodels.formula.api import ols

    rng = np.random.default_rng(1)
    arms = [rng.normal(k, 0.3, n).tolist() for k, n in enumerate((3, 5, 8))]
    data = {"d": np.concatenate(arms), "arm": np.repeat(["a", "b", "c"], [3, 5, 8])}
    found = pool([*arms, [math.nan, 1.0]])
    assert found.sd**2 == pytest.approx(ols("d ~ arm", data).fit().mse_resid)
    assert found.freedom == 13
    assert stats.chi2.sf(found.freedom * found.sd**2 / found.upper**2, found.freedom) == pytest.approx(0.95)


def test_spread_of_a_comparison_agrees_with_the_width_of_its_intervals():
    study = planted_comparison.make_study(replicates=5)
    tables = planted_comparison.plant(study)
    spread = paired_spreads(Results(study, *tables))["val_accuracy"]
    rows = cells(Results(study, *tables)).filter(metric="val_accuracy").drop_nulls("baseline_low")
    half = (rows["baseline_high"] - rows["baseline_low"]).to_numpy() / 2
    sd = half / stats.t.ppf(0.975, 4) * math.sqrt(5)
    assert rows.height == 3
    assert spread.freedom == 4 * rows.height
    assert spread.sd == pytest.approx(math.sqrt((sd**2).mean()))
    assert set(seed_values(Results(study, *tables))["seed"]) == set(range(5))


def test_spread_of_a_search_is_of_confirmed_networks_against_the_best_on_equal_seeds():
    study = planted_study.make_study()
    trials, reports = planted_study.plant(study, replicates=4)
    spread = paired_spreads(Results(study, trials, reports))["test_accuracy"]
    confirmed = trials.filter(stage="confirm")
    values = [
        reports.filter(trial=number, epoch=planted_study.EPOCHS).sort("seed")["test_accuracy"].to_numpy()
        for number in confirmed["trial"]
    ]
    best = max(values, key=np.mean)
    differences = [own - best for own in values if own is not best]
    assert len(differences) > 1
    assert spread.sd == pytest.approx(math.sqrt(np.mean([d.var(ddof=1) for d in differences])))
    assert spread.freedom == 3 * len(differences)


def test_a_study_without_common_seeds_has_no_spread():
    study = planted_study.make_study()
    assert paired_spreads(Results(study, *planted_study.plant(study, confirmed=False))) == {}
    assert paired_spreads(Results(study, *planted_study.plant(study, replicates=1))) == {}
    comparison = planted_comparison.make_study(replicates=1)
    assert paired_spreads(Results(comparison, *planted_comparison.plant(comparison))) == {}
