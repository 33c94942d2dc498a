"""Effects and interactions: planted truths, closed forms, Shapley by permutations, and least squares by others."""

from __future__ import annotations

import itertools
import math
import string
from typing import Any

import numpy as np
import pandas as pd
import pytest
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from ablate.results.comparison.effects import effects, fit, model_of, shapley_weights, with_holm
from ablate.results.trials.results import Results
from ablate.study import Study, parse_study
from ablate.study.design import REMOVED, Arm, Factor, arms, without
from support.planted_comparison import plant

FILE = """\
study: planted
trainable: mine:train
datasets: {DATASETS}
config: {w: 1}
parts:
  a: {config: {a: 0}}
  b: {config: {b: 0}}
PARTS
replicates: 5
objectives: [{metric: val_accuracy, direction: maximize}]
compare: {baseline: complete, design: DESIGN}
"""


def study_of(design: str = "full", parts: str = "", datasets: str = "one: {}") -> Study:
    text = FILE.replace("DESIGN", design).replace("PARTS\n", parts).replace("DATASETS", datasets)
    return parse_study(text, "f.yaml")


def gone(study: Study, variant: str) -> set[str]:
    """Return the parts that a row lacks."""
    names = [row.name for row in study.rows]
    return {name for name, _ in study.arms[names.index(variant)]}


def by_term(found: Any, kind: str, **where: str) -> dict[str, dict[str, Any]]:
    for name, value in where.items():
        found = found.filter(found[name] == value)
    return {row["term"]: row for row in found.filter(found["kind"] == kind).iter_rows(named=True)}


def redundant(study: Study, spread: float = 0.0) -> Any:
    """Return the effects for .60 + .20 [A or B], with noise of each run around it."""

    def value(variant: str, dataset: str, others: dict[str, Any], seed: int) -> float:
        draw = np.random.default_rng([seed, len(dataset), *variant.encode()]).standard_normal()
        shared = 0.05 * np.random.default_rng([seed]).standard_normal()
        return float(0.6 + 0.2 * (not gone(study, variant) >= {"a", "b"}) + spread * (draw + shared))

    return effects(Results(study, *plant(study, value=value)))


@pytest.mark.parametrize("design", ["full", "[leave-one-out, full]"])
def test_redundant_parts_show_as_an_interaction_and_in_the_shapley_values(design: str) -> None:
    """Leaving one out says 0 and 0; Shapley says .10 and .10, and the interaction is -.20 (docs: designs)."""
    found = redundant(study_of(design)).filter(pl_metric())
    assert {term: row["estimate"] for term, row in by_term(found, "leave-one-out").items()} == pytest.approx(
        {"a": 0.0, "b": 0.0}, abs=1e-12
    )
    assert {t: r["estimate"] for t, r in by_term(found, "add-one-in").items()} == pytest.approx({"a": 0.2, "b": 0.2})
    assert {t: r["estimate"] for t, r in by_term(found, "shapley").items()} == pytest.approx({"a": 0.1, "b": 0.1})
    assert {t: r["estimate"] for t, r in by_term(found, "average").items()} == pytest.approx({"a": 0.1, "b": 0.1})
    (between,) = by_term(found, "interaction").values()
    assert (between["term"], between["p"]) == ("a:b", None)  # without noise nothing is tested
    assert between["estimate"] == pytest.approx(-0.2)


def pl_metric() -> Any:
    import polars as pl

    return pl.col("metric") == "val_accuracy"


def test_redundancy_is_found_in_noise_with_intervals_that_hold_the_truth() -> None:
    found = redundant(study_of(datasets="one: {}, other: {}"), spread=0.01).filter(pl_metric())
    truth = {"leave-one-out": 0.0, "add-one-in": 0.2, "shapley": 0.1, "average": 0.1, "interaction": -0.2}
    assert found.height == 2 * 9
    for row in found.iter_rows(named=True):
        assert row["low"] < row["estimate"] < row["high"], row
        assert row["estimate"] == pytest.approx(truth[row["kind"]], abs=0.02)
        assert (row["n"], row["blocks"]) == (5, 5)
    assert found.filter(found["kind"] == "interaction")["p_holm"].max() < 1e-6


def test_add_one_in_beside_leave_one_out_shows_both_numbers_and_fits_nothing() -> None:
    """Of three parts the two designs have every subset; of four they lack the pairs."""
    more = "  c: {config: {c: 0}}\n  d: {config: {d: 0}}\n"
    found = redundant(study_of("[leave-one-out, add-one-in]", more)).filter(pl_metric())
    assert set(found["kind"]) == {"leave-one-out", "add-one-in"}
    assert by_term(found, "add-one-in")["a"]["estimate"] == pytest.approx(0.2)
    assert by_term(found, "leave-one-out")["a"]["estimate"] == pytest.approx(0.0, abs=1e-12)
    every = redundant(study_of("[leave-one-out, add-one-in]", "  c: {config: {c: 0}}\n")).filter(pl_metric())
    assert set(every["kind"]) == {"leave-one-out", "add-one-in", "shapley", "average", "interaction"}
    assert redundant(study_of("leave-one-out")).height == 0


def factors(count: int) -> list[Factor]:
    return [Factor(name=name, levels=(REMOVED,)) for name in string.ascii_lowercase[:count]]


def full(count: int) -> tuple[list[Factor], tuple[Arm, ...]]:
    return factors(count), arms(factors(count), ("full",))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_shapley_value_is_the_mean_gain_over_all_orders(count: int) -> None:
    own, listed = full(count)
    names = [factor.name for factor in own]
    value = dict(zip(listed, np.random.default_rng(count).normal(size=len(listed)), strict=True))
    total = 0.0
    for name in names:
        gains = []
        for order in itertools.permutations(names):
            before = order[: order.index(name)]
            others = without(n for n in names if n not in before)
            gains.append(value[without(n for n in names if n not in (*before, name))] - value[others])
        got = shapley_weights(name, names, listed) @ np.array([value[arm] for arm in listed])
        assert got == pytest.approx(np.mean(gains))
        total += float(got)
    assert total == pytest.approx(value[()] - value[without(names)])


def frame(own: list[Factor], listed: tuple[Arm, ...], blocks: Any, sets: int) -> pd.DataFrame:
    rows = []
    for block, values in enumerate(blocks):
        for arm, value in zip(listed, values, strict=True):
            levels = {f"X{f.name}": dict(arm).get(f.name, "base") or "removed" for f in own}
            rows.append({**levels, "y": value, "dataset": block % sets, "seed": block // sets})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_fit_is_that_of_a_formula_with_type_two_tests_and_of_the_closed_form(count: int) -> None:
    own, listed = full(count)
    blocks = np.random.default_rng(7).normal(size=(6, len(listed)))
    found = {row["term"]: row for row in fit(model_of(own, listed), blocks)}
    data = frame(own, listed, blocks, sets=2)
    names = [f"X{f.name}" for f in own]
    model = ols(f"y ~ ({' + '.join(names)})**2 + C(dataset):C(seed)", data).fit()
    table = anova_lm(model, typ=2)
    for term, row in found.items():
        assert row["p_term"] == pytest.approx(table.loc[":".join(f"X{name}" for name in term.split(":")), "PR(>F)"])
        assert row["p"] == row["p_term"]
        assert row["df"] == model.df_resid
        signs = np.prod([[-1 if n in dict(arm) else 1 for arm in listed] for n in term.split(":")], axis=0)
        scale = 2 if ":" not in term else 4  # a difference of means; a difference of differences of means
        closed = scale * (blocks * signs).mean()
        assert row["estimate"] == pytest.approx(closed)
        half = (row["high"] - row["low"]) / 2
        assert half == pytest.approx(_half(own, listed, blocks, scale))


def test_p_values_are_adjusted_over_terms_and_not_over_their_levels() -> None:
    own = [Factor(name="s", levels=("x", "y")), Factor(name="p", levels=(REMOVED,))]
    model = model_of(own, arms(own, ("full",)))
    rows = with_holm(model, fit(model, np.random.default_rng(5).normal(size=(4, 6))))
    raw = {row["term"]: row["p_term"] for row in rows if row["term"] in ("s-x", "p", "s-x:p")}
    ordered = sorted(raw.values())
    steps = np.minimum(np.maximum.accumulate([p * (3 - i) for i, p in enumerate(ordered)]), 1)
    for row in rows:
        assert row["p_holm"] == pytest.approx(steps[ordered.index(row["p_term"])])


def _half(own: list[Factor], listed: tuple[Arm, ...], blocks: Any, scale: int) -> float:
    """Return the half width by numpy's least squares: t * s * scale / sqrt(N)."""
    from scipy import stats

    signs = [np.array([-1.0 if f.name in dict(arm) else 1.0 for arm in listed]) for f in own]
    columns = [*signs, *(one * two for one, two in itertools.combinations(signs, 2))]
    tiled = np.tile(np.array(columns).T, (len(blocks), 1))
    x = np.hstack([tiled, np.repeat(np.eye(len(blocks)), len(listed), axis=0)])
    residual = blocks.ravel() - x @ np.linalg.lstsq(x, blocks.ravel(), rcond=None)[0]
    df = x.shape[0] - x.shape[1]
    s = math.sqrt(float(residual @ residual) / df)
    return float(stats.t.ppf(0.975, df) * s * scale / math.sqrt(blocks.size))


def test_levels_of_one_factor_are_compared_with_the_complete_form() -> None:
    """The contrasts are differences of marginal means; the term's test is the formula's."""
    own = [Factor(name="s", levels=("x", "y")), Factor(name="p", levels=(REMOVED,))]
    listed = arms(own, ("full",))
    blocks = np.random.default_rng(3).normal(size=(4, len(listed)))
    found = {row["term"]: row for row in fit(model_of(own, listed), blocks)}
    assert list(found) == ["s-x", "s-y", "p", "s-x:p", "s-y:p"]
    data = frame(own, listed, blocks, sets=1)
    table = anova_lm(ols("y ~ (Xs + Xp)**2 + C(dataset):C(seed)", data).fit(), typ=2)
    means = data.groupby(["Xs", "Xp"])["y"].mean()
    assert found["s-y"]["estimate"] == pytest.approx(means["y"].mean() - means["base"].mean())
    gained = [means[s, "base"] - means[s, "removed"] for s in ("x", "base")]
    assert found["s-x:p"]["estimate"] == pytest.approx(gained[0] - gained[1])
    for term, name in (("s-x", "Xs"), ("s-y", "Xs"), ("p", "Xp"), ("s-x:p", "Xs:Xp")):
        assert found[term]["p_term"] == pytest.approx(table.loc[name, "PR(>F)"])


@pytest.mark.parametrize("count", [3, 5])
def test_the_test_of_an_interaction_holds_its_level(count: int) -> None:
    """5 seeds, no interaction, effects of parts and blocks: about 5% of the tests are below .05 (250 repetitions)."""
    own = factors(count)
    model = model_of(own, arms(own, ("full",)))
    rng, found = np.random.default_rng(11), []
    fixed = model.columns[:, :count] @ rng.normal(size=count)
    for _ in range(250):
        blocks = fixed + rng.normal(size=(5, 1)) + rng.normal(size=(5, len(fixed)))
        found += [row["p"] for row in fit(model, blocks) if row["kind"] == "interaction"]
    share = np.mean(np.array(found) < 0.05)
    assert abs(share - 0.05) < 4 * math.sqrt(0.05 * 0.95 / len(found)) + 0.005


def test_one_block_has_estimates_and_no_intervals_and_divergence_has_no_estimate() -> None:
    own, listed = full(3)
    rows = fit(model_of(own, listed), np.random.default_rng(0).normal(size=(1, 8)))
    assert all(row.get("low") is None and math.isfinite(row["estimate"]) for row in rows)
    bad = np.ones((3, 8))
    bad[1, 2] = math.nan
    assert all(math.isnan(row["estimate"]) for row in fit(model_of(own, listed), bad))


def test_an_arm_that_is_missing_leaves_the_estimates_of_others() -> None:
    study = study_of()
    state = {"bare": "WAITING"}
    found = effects(Results(study, *plant(study, state=lambda variant, dataset, index: state.get(variant, "COMPLETE"))))
    found = found.filter(pl_metric())
    assert by_term(found, "leave-one-out")["a"]["estimate"] is not None
    assert by_term(found, "interaction")["a:b"]["estimate"] is None
    assert by_term(found, "shapley")["a"]["estimate"] is None


def test_at_equal_size_a_twin_stands_beside_the_network_without_the_part() -> None:
    text = FILE.replace("DESIGN", "leave-one-out, twin: {setting: config.w}").replace("PARTS\n", "")
    study = parse_study(text.replace("DATASETS", "one: {}"), "f.yaml")
    planted = {"complete": 0.9, "without-a": 0.7, "twin-of-without-a": 0.75, "without-b": 0.8, "twin-of-without-b": 0.8}
    found = effects(
        Results(study, *plant(study, value=lambda variant, dataset, others, seed: planted[variant] + 0.01 * seed))
    )
    found = found.filter(pl_metric())
    assert {t: r["estimate"] for t, r in by_term(found, "leave-one-out").items()} == pytest.approx({"a": 0.2, "b": 0.1})
    assert {t: r["estimate"] for t, r in by_term(found, "equal-size").items()} == pytest.approx(
        {"a": 0.05, "b": 0.0}, abs=1e-12
    )


def test_a_placebo_is_paired_by_position_and_keeps_its_own_seeds_in_the_table() -> None:
    from ablate.results.comparison.comparison import cells, seed_values

    text = FILE.replace("DESIGN", "leave-one-out, placebo: true").replace("PARTS\n", "").replace("DATASETS", "one: {}")
    study = parse_study(text, "f.yaml")
    trials, reports = plant(study, value=lambda variant, dataset, others, seed: 0.5 + 0.001 * (seed % 1000) ** 2)
    assert sorted(reports["seed"].unique().to_list()) == [*range(5), *range(500_000, 500_005)]
    table = cells(Results(study, trials, reports)).filter(pl_metric())
    (row,) = table.filter(table["variant"] == "placebo").iter_rows(named=True)
    assert (row["n"], row["compared"], row["baseline_difference"], row["correlation"]) == (5, 1, 0.0, pytest.approx(1))
    assert row["remark"] == "complete again on other seeds: its differences are noise, without pairing"
    seeds = seed_values(Results(study, trials, reports)).filter(pl_metric())
    assert seeds.filter(seeds["variant"] == "placebo")["seed"].to_list() == list(range(500_000, 500_005))
    assert seeds.filter(seeds["variant"] == "without-a")["seed"].to_list() == list(range(5))
