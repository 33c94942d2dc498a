"""The importance of settings: Sobol' shares with a closed form, planted truths, chance, conditions and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ablate.results.importance.importance import LEAST, Importances, importances
from ablate.study.space import Choices, FloatRange, IntRange, Space, order_by_condition

UNIT = Space(ranges={name: FloatRange(float=(0.0, 1.0)) for name in ("a", "b", "c")})


def draw(count, seed=0, names=("a", "b", "c")):
    points = np.random.default_rng(seed).random((count, len(names)))
    return [dict(zip(names, map(float, point), strict=True)) for point in points]


def found(losses, settings, space=UNIT, seed=0) -> Importances:
    return importances("val_loss", losses, settings, space, study_seed=seed, dataset="digits")


def by_name(result):
    return {row.parameter: row for row in result.rows}


def test_the_shares_of_a_sum_and_a_product_are_sobol_s():
    """Var(4a + 2b) has shares .8 and .2; of (a - .5)(b - .5) no setting has anything alone, each has all together."""
    points = draw(800)
    rows = by_name(found([4 * p["a"] + 2 * p["b"] for p in points], points))
    assert (rows["a"].first, rows["a"].total) == pytest.approx((0.8, 0.8), abs=0.06)
    assert (rows["b"].first, rows["b"].total) == pytest.approx((0.2, 0.2), abs=0.06)
    assert rows["c"].total < 0.01
    rows = by_name(found([(p["a"] - 0.5) * (p["b"] - 0.5) for p in points], points))
    for name in ("a", "b"):
        assert rows[name].first < 0.15
        assert rows[name].total > 0.8


@pytest.mark.parametrize("seed", range(3))
def test_the_only_setting_that_matters_is_told_from_chance_and_the_others_are_not(seed):
    rng, points = np.random.default_rng(seed), draw(100, seed)
    result = found([(p["a"] > 0.4) + 0.3 * rng.standard_normal() for p in points], points)
    assert result.order[0] == "a"
    assert [row.parameter for row in result.rows if row.is_told] == ["a"]
    assert by_name(result)["a"].total > 0.6


def test_what_has_no_influence_is_told_from_chance_in_about_one_percent():
    told = []
    for seed in range(6):
        points = draw(60, seed)
        told += [row.is_told for row in found(np.random.default_rng(seed).random(60).tolist(), points).rows]
    assert sum(told) <= 2


def test_trials_in_one_corner_do_not_make_a_setting_important():
    """As where a sampler has settled: nine trials in ten have a small rate, which does nothing."""
    space = Space(ranges={"rate": FloatRange(float=(1e-4, 1e-1), log=True), "width": Choices(choices=(8, 16, 32))})
    rng = np.random.default_rng(2)
    settings = [
        {"rate": float(10 ** (rng.uniform(-4, -3.7) if i % 10 else rng.uniform(-4, -1))), "width": (8, 16, 32)[i % 3]}
        for i in range(120)
    ]
    result = found([-math.log(p["width"]) + 0.2 * rng.standard_normal() for p in settings], settings, space)
    assert result.order[0] == "width"
    assert by_name(result)["width"].total > 0.8
    assert not by_name(result)["rate"].is_told


def test_a_conditional_setting_counts_where_it_is_searched():
    ranges = {"form": Choices(choices=("x", "y")), "slope": FloatRange(float=(0.0, 1.0), when={"form": ["y"]})}
    space = Space(ranges=order_by_condition({**ranges, "b": IntRange(int=(1, 8))}))
    rng = np.random.default_rng(3)
    settings = [
        {"form": "xy"[i % 2], "b": int(rng.integers(1, 9))} | ({"slope": float(rng.random())} if i % 2 else {})
        for i in range(400)
    ]
    rows = by_name(found([p.get("slope", 0.5) for p in settings], settings, space))
    assert rows["slope"].active == 200
    assert rows["slope"].total > 0.8
    assert rows["form"].first < 0.1, "both forms have the same mean"
    assert not rows["b"].is_told


def test_trials_without_a_finite_loss_do_not_enter_and_the_draws_are_keyed():
    points = draw(LEAST)
    losses = [p["a"] for p in points]
    result = found(losses, points)
    assert found([*losses, math.nan, -math.inf], [*points, *draw(2, 9)]) == result
    assert found(losses, points, seed=1).rows[0].total != result.rows[0].total
    assert found([-value for value in losses], points).order == result.order


@pytest.mark.parametrize(
    ("losses", "settings", "space"),
    [
        (list(range(LEAST - 1)), draw(LEAST - 1), UNIT),
        ([math.nan] * 80, draw(80), UNIT),
        ([0.1] * 80, draw(80), UNIT),
        (list(range(80)), [{"a": 1}] * 80, Space(ranges={"a": IntRange(int=(1, 1))})),
        (list(range(80)), [{}] * 80, Space()),
    ],
)
def test_of_too_few_trials_equal_values_or_one_setting_there_are_none(losses, settings, space):
    assert found(losses, settings, space).rows == ()
