from __future__ import annotations

import math
import warnings

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from ablate.analysis.importance import LEAST, importances

UNIT = {name: FloatDistribution(0.0, 1.0) for name in ("a", "b", "c")}


def draw(count, seed=0, names=("a", "b", "c")):
    points = np.random.default_rng(seed).random((count, len(names)))
    return [dict(zip(names, map(float, point), strict=True)) for point in points]


def found(losses, parameters, distributions=UNIT, seed=0):
    return importances("val_loss", losses, parameters, distributions, study_seed=seed, dataset="digits")


def by_name(result):
    return {row.parameter: row for row in result.rows}


@pytest.mark.parametrize("seed", range(3))
def test_the_only_setting_that_matters_has_nearly_all_and_the_others_range_down_to_nearly_nothing(seed):
    points = draw(100, seed)
    result = found([(p["a"] - 0.3) ** 2 for p in points], points)
    rows = by_name(result)
    assert result.order[0] == "a"
    assert rows["a"].share > 0.85
    assert rows["a"].low > 0.6
    for name in ("b", "c"):
        assert rows[name].low < 0.02
        assert rows[name].high < rows["a"].low
    assert sum(row.share for row in result.rows) == pytest.approx(1)
    assert (result.trials, result.best, result.resamples) == (100, 10, 100)


def test_two_equally_important_settings_overlap_and_are_equal_on_average():
    shares = []
    for seed in range(8):
        points = draw(60, seed)
        rows = by_name(found([p["a"] + p["b"] for p in points], points, seed=seed))
        shares.append((rows["a"].share, rows["b"].share, rows["c"].share))
        assert rows["a"].low < rows["b"].high
        assert rows["b"].low < rows["a"].high
    a, b, c = np.mean(shares, axis=0)
    assert a == pytest.approx(b, abs=0.12)
    assert c < 0.15


def test_it_is_what_optuna_computes():
    distributions = {
        "rate": FloatDistribution(1e-4, 1e-1, log=True),
        "width": IntDistribution(8, 128, step=8),
        "form": CategoricalDistribution((0, 1, 2)),
        "slope": FloatDistribution(0.0, 1.0),  # searched under form 2 only
    }
    rng = np.random.default_rng(1)
    study = optuna.create_study(direction="maximize")
    parameters, losses = [], []
    for _ in range(80):
        own = {"rate": float(10 ** rng.uniform(-4, -1)), "width": int(rng.integers(1, 17)) * 8}
        own["form"] = int(rng.integers(3))
        if own["form"] == 2:
            own["slope"] = float(rng.random())
        value = own["width"] / 128 + 0.5 * own.get("slope", 0) - abs(math.log10(own["rate"]) + 2)
        used = {name: distributions[name] for name in own}
        study.add_trial(optuna.trial.create_trial(params=own, distributions=used, value=value))
        parameters.append(own)
        losses.append(-value)
    result = found(losses, parameters, distributions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=0.1))
    assert {row.parameter: row.share for row in result.rows} == pytest.approx(expected)
    assert by_name(result)["slope"].active == sum("slope" in own for own in parameters)
    assert by_name(result)["width"].active == 80


def test_a_conditional_setting_is_judged_where_it_is_searched():
    distributions = {"form": CategoricalDistribution((0, 1)), "slope": FloatDistribution(0.0, 1.0), "b": UNIT["b"]}
    rng = np.random.default_rng(3)
    points = [
        {"form": i % 2, "b": float(rng.random())} | ({"slope": float(rng.random())} if i % 2 else {})
        for i in range(120)
    ]
    losses = [-p["slope"] if "slope" in p else -float(rng.random()) for p in points]
    rows = by_name(found(losses, points, distributions))
    assert rows["slope"].active == 60
    assert rows["slope"].share > rows["form"].share
    assert rows["slope"].share > 3 * rows["b"].share


def test_trials_without_a_finite_loss_do_not_enter_and_the_ranges_are_keyed():
    points = draw(40)
    losses = [p["a"] for p in points]
    result = found(losses, points)
    assert found([*losses, math.nan, -math.inf], [*points, *draw(2, 9)]) == result
    assert found(losses, points, seed=1).rows[0].share == result.rows[0].share
    assert found(losses, points, seed=1).rows[0].low != result.rows[0].low
    assert result.best == 5, "the best tenth is four trials, and at least five are compared"


@pytest.mark.parametrize(
    ("losses", "parameters", "distributions", "reason"),
    [
        ([0.1] * (LEAST - 1), draw(LEAST - 1), UNIT, "9 complete trials, 10 are needed"),
        ([math.nan] * 20, draw(20), UNIT, "0 complete trials, 10 are needed"),
        ([0.5], draw(1), UNIT, "1 complete trial, 10 are needed"),
        ([0.1] * 20, draw(20), UNIT, "all complete trials have the same value"),
        (
            list(range(20)),
            [{"a": 1}] * 20,
            {"a": IntDistribution(1, 1)},
            "no setting with more than one value is searched",
        ),
        (list(range(20)), [{}] * 20, {}, "no setting with more than one value is searched"),
    ],
)
def test_what_cannot_be_computed_has_a_reason(losses, parameters, distributions, reason):
    result = found(losses, parameters, distributions)
    assert result.rows == ()
    assert reason in result.reason


def test_ten_trials_are_enough():
    points = draw(10)
    result = found([p["a"] for p in points], points)
    assert result.reason == ""
    assert len(result.rows) == 3
