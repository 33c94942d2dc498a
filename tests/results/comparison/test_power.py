from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ablate.results.comparison.power import paired_spreads, pool
from ablate.results.comparison.rows import comparison
from ablate.results.trials.results import Results
from support import planted_comparison, planted_study


def test_pooled_spread_is_that_of_least_squares_with_one_mean_per_arm():
    from statsmodels.formula.api import ols

    rng = np.random.default_rng(1)
    arms = [rng.normal(k, 0.3, n).tolist() for k, n in enumerate((3, 5, 8))]
    data = {"d": np.concatenate(arms), "arm": np.repeat(["a", "b", "c"], [3, 5, 8])}
    found = pool([*arms, [math.nan, 1.0]])
    assert found.sd**2 == pytest.approx(ols("d ~ arm", data).fit().mse_resid)
    assert found.freedom == 13
    assert pool([[0.1], []]) is None
    assert stats.chi2.sf(found.freedom * found.sd**2 / found.upper**2, found.freedom) == pytest.approx(0.95)


def test_spread_of_a_comparison_agrees_with_the_width_of_its_intervals():
    study = planted_comparison.make_study(replicates=5)
    tables = planted_comparison.plant(study)
    spread = paired_spreads(Results(study, *tables))["val_accuracy"]
    rows = comparison(Results(study, *tables)).filter(metric="val_accuracy").drop_nulls("low")
    half = (rows["high"] - rows["low"]).to_numpy() / 2
    sd = half / stats.t.ppf(0.975, 4) * math.sqrt(5)
    assert rows.height == 3
    assert spread.freedom == 4 * rows.height
    assert spread.sd == pytest.approx(math.sqrt((sd**2).mean()))


def test_a_placebo_is_not_paired_and_has_no_part_in_the_spread():
    found = []
    for there in (False, True):
        study = planted_comparison.make_study(replicates=5, compare={"baseline": "qkv", "placebo": there})
        found.append(paired_spreads(Results(study, *planted_comparison.plant(study)))["val_accuracy"])
    assert found[0] == found[1]


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
