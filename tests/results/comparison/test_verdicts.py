"""Verdicts against statsmodels, a literal second implementation, planted truth and known rates of error."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

from ablate.base.randomness import stream
from ablate.results.comparison.judged import DENIED
from ablate.results.comparison.rows import comparison, judged_rows, verdicts
from ablate.results.comparison.verdicts import answer_to, claims_of, margin_p, p_above, p_two_sided
from ablate.results.statistics.intervals import seeds_needed, smallest_effect
from ablate.results.statistics.looks import holm
from ablate.results.trials.results import Results
from support.planted_comparison import Run, make_study, plant, truth
from support.planted_comparison import row_of as one

MARGIN = 0.01
ROWS = [("lists", "kv"), ("lists", "k"), ("images", "kv")]


def compared(**changes: Any) -> dict[str, Any]:
    return {
        "baseline": "qkv",
        "columns": {"lists": ["short", "long"], "images": ["vision"]},
        "metrics": ["val_accuracy", "val_loss"],
        "margin": {"val_accuracy": MARGIN},
    } | changes


def normal(*path: str | int, size: tuple[int, ...]) -> np.ndarray:
    return stream(0, "verdicts", 0, *path).standard_normal(size)


def literal(gains: np.ndarray, margin: float, p_holm: float) -> set[str]:
    """Second implementation, by confidence intervals of scipy instead of p-values."""
    ninety = stats.t.interval(0.9, len(gains) - 1, loc=gains.mean(), scale=stats.sem(gains))
    found = set()
    if ninety[0] > -margin:
        found.add("non-inferior")
        if ninety[1] < margin:
            found.add("equivalent")
    if stats.t.interval(0.95, len(gains) - 1, loc=gains.mean(), scale=stats.sem(gains))[0] > margin:
        found.add("superior-by-margin")
    if p_holm < 0.05:
        found.add("superior" if gains.mean() > 0 else "harmful")
    return found


def test_p_values_are_those_of_scipy_and_of_statsmodels_tost() -> None:
    for index in range(20):
        a, b = normal("oracle", index, size=(2, 3 + index))
        d = a - b + 0.3
        assert p_two_sided(d) == pytest.approx(stats.ttest_rel(a + 0.3, b).pvalue)
        low, high = (p_above(d, -0.8), p_above(-d, -0.8))
        assert max(low, high) == pytest.approx(ttost_paired(a + 0.3, b, -0.8, 0.8)[0])
        assert low == pytest.approx(stats.ttest_1samp(d, -0.8, alternative="greater").pvalue)


def test_holms_p_values_are_the_step_down_by_hand() -> None:
    for index in range(20):
        p = stats.norm.cdf(normal("holm", index, size=(1 + index,))).tolist()
        order = sorted(range(len(p)), key=p.__getitem__)
        by_hand, running = [0.0] * len(p), 0.0
        for rank, place in enumerate(order):
            running = max(running, min((len(p) - rank) * p[place], 1.0))
            by_hand[place] = running
        assert holm(p) == pytest.approx(by_hand)
    # statsmodels collects all garbage at each call, a second in a process of many tests
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist())
    assert holm([]) == []


def test_claims_are_those_of_a_second_implementation_on_a_grid() -> None:
    seen: set[tuple[str, ...]] = set()
    for mean, spread, n, p in itertools.product(
        (-0.03, -0.012, -0.004, 0.0, 0.004, 0.012, 0.03), (0.001, 0.004, 0.02), (2, 3, 10), (0.001, 0.2)
    ):
        noise = normal("grid", n, size=(n,))
        gains = mean + spread * (noise - noise.mean()) / noise.std(ddof=1)
        found = claims_of(float(gains.mean()), p if mean else 1.0, margin_p(gains, MARGIN))
        assert set(found) == literal(gains, MARGIN, p if mean else 1.0), (mean, spread, n, p)
        seen.add(found)
    with_margin, equal = ("non-inferior",), ("equivalent", "non-inferior")
    expected = {(), ("superior",), ("harmful",), with_margin, equal, ("superior", *equal), (*equal, "harmful")}
    expected |= {("superior", *with_margin, "superior-by-margin")}
    assert expected <= seen


@pytest.mark.parametrize(
    ("n", "claims"),
    [(2, ()), (4, ()), (5, ("equivalent", "non-inferior")), (6, ("equivalent", "non-inferior"))],
)
def test_equal_differences_are_judged_by_the_sign_test(n: int, claims: tuple[str, ...]) -> None:
    """Equal differences give a t interval without width, which would claim anything from two seeds on."""
    zero = np.zeros(n)
    assert claims_of(0.0, 1.0, margin_p(zero, MARGIN)) == claims
    assert p_two_sided(zero) == 1.0
    assert p_two_sided(np.full(n, 0.3)) == pytest.approx(0.5 ** (n - 1))
    assert p_above(np.full(n, -0.01), -0.01) == 1.0
    assert p_above(np.full(n, 0.1), 0.0) == stats.binomtest(n, n, alternative="greater").pvalue


def test_ten_null_arms_are_called_better_or_worse_in_at_most_5_percent() -> None:
    """Without a correction about a third of pages do; the arms share their baseline."""
    pages, arms, seeds = 2000, 10, 5
    baseline = normal("null", "baseline", size=(pages, 1, seeds))
    d = normal("null", "arms", size=(pages, arms, seeds)) - baseline
    t = d.mean(-1) / (d.std(-1, ddof=1) / math.sqrt(seeds))
    p = 2 * stats.t.sf(np.abs(t), seeds - 1)
    assert 0.22 < (p < 0.05).any(1).mean() < 0.40
    named = (arms * p.min(1) < 0.05).mean()  # Holm's smallest p-value is Bonferroni's
    assert named <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / pages)
    for page, row in zip(d[:30], p[:30].tolist(), strict=True):  # statsmodels collects garbage at each call
        claims = {
            claim
            for x, q in zip(page, holm(row), strict=True)
            for claim in claims_of(float(x.mean()), q, margin_p(x, 1.0))
        }
        assert bool(claims & {"superior", "harmful"}) == (arms * min(row) < 0.05)


@pytest.mark.parametrize("sign", [-1, 1])
def test_at_the_margin_itself_equivalence_is_claimed_in_at_most_5_percent(sign: int) -> None:
    d = sign * 0.01 + 0.003 * normal("tost", sign + 1, size=(4000, 10))
    claimed = np.array([claims_of(float(row.mean()), 1.0, margin_p(row, 0.01)) for row in d], dtype=object)
    rate = np.mean(["equivalent" in found for found in claimed])
    assert 0.03 < rate <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)


def test_the_smallest_detectable_effects_are_the_known_ones() -> None:
    found = [smallest_effect(n, level=0.95) for n in (3, 5, 10, 20)]
    assert found == pytest.approx([3.26, 1.68, 1.00, 0.66], abs=0.02)


@pytest.mark.parametrize(("pairs", "power", "level"), itertools.product((5, 30, 1000), (0.2, 0.8, 0.9), (0.9, 0.95)))
def test_the_smallest_effect_is_that_of_statsmodels(pairs: int, power: float, level: float) -> None:
    effect = smallest_effect(pairs, power=power, level=level)
    assert TTestPower().power(effect, pairs, 1 - level) == pytest.approx(power, abs=1e-7)


def test_the_seeds_that_are_needed_show_equal_arms_to_be_non_inferior_with_80_percent_power() -> None:
    n = seeds_needed(0.3, level=0.9)
    assert n == next(k for k in range(2, 100) if smallest_effect(k, level=0.9) <= 0.3)
    gains = normal("needed", size=(4000, n))
    assert np.mean([p_above(row, -0.3) < 0.05 for row in gains]) == pytest.approx(0.8, abs=0.02)
    assert seeds_needed(0.01, level=0.9) is None
    assert seeds_needed(math.nan, level=0.9) is None


def test_an_outlying_seed_is_named() -> None:
    study = make_study(replicates=6, compare=compared())
    tables = plant(study, value=lambda run: truth(*run) - 0.5 * (run.variant == "kv" and run.seed == 4))
    found = one(verdicts(Results(study, *tables)), "kv")
    assert found["outlying"] == "4"
    assert "far from the other seeds: seed 4" in found["remark"]


def test_a_row_says_how_many_of_its_seeds_collapsed() -> None:
    study = make_study(replicates=10, compare=compared())
    tables = plant(study, value=lambda run: truth(*run) - 0.3 * (run.variant == "kv" and run.seed in (2, 5)))
    table = verdicts(Results(study, *tables))
    fallen, whole = one(table, "kv"), one(table, "k")
    exact = stats.binomtest(2, 10).proportion_ci(0.95, method="exact")
    assert (fallen["collapsed"], whole["collapsed"], fallen["verdict"]) == (2, 0, "inconclusive")
    assert f"2 of 10 seeds collapsed ({exact.low:.1%} to {exact.high:.1%})" in fallen["remark"]


def test_no_row_of_a_skewed_page_is_non_inferior_by_a_t_test_alone() -> None:
    """Ten arms lose one margin; their seeds have a tail of losses, so the mean of most samples is too high."""
    names = [f"v{i}" for i in range(10)]
    rows = [{"name": "qkv"}, *({"name": name, "model": {"similarity": "shared"}} for name in names)]

    def value(run: Run) -> float:
        steady, own = normal("skewed", run.variant, run.seed, size=(2,))
        return 0.8 + 1e-4 * steady - MARGIN * (run.variant != "qkv") * (1 + (math.exp(own) - math.exp(0.5)) / 2)

    study = make_study(variants=rows, replicates=10, compare=compared(columns={"images": ["vision"]}))
    table = verdicts(Results(study, *plant(study, value=value))).filter(pl.col("metric") == "val_accuracy")
    alone = table.filter(pl.col("margin_low") > -MARGIN)["variant"].to_list()
    assert len(alone) >= 2, "a t test claims it of these"
    for row in table.iter_rows(named=True):
        assert "non-inferior" not in row["claims"]
        assert answer_to("non-inferior", row) == "undecided"
        assert (DENIED in row["remark"]) >= (row["variant"] in alone)


@pytest.mark.parametrize(
    ("shift", "spread", "verdict", "claims", "remark"),
    [
        (0.02, 0.001, "superior", "superior, non-inferior, superior-by-margin", "a gain of at least the margin"),
        (0.009, 0.006, "superior", "superior, non-inferior", ""),
        (0.001, 0.0001, "superior", "superior, equivalent, non-inferior", "the gain is smaller than the margin"),
        (0.0, 0.001, "equivalent", "equivalent, non-inferior", ""),
        (-0.004, 0.0002, "equivalent", "equivalent, non-inferior, harmful", "a loss is established, and it is smaller"),
        (0.007, 0.009, "non-inferior", "non-inferior", ""),
        (-0.05, 0.001, "harmful", "harmful", ""),
        (-0.005, 0.03, "inconclusive", "", ""),
    ],
)
def test_the_planted_verdict_is_found(shift: float, spread: float, verdict: str, claims: str, remark: str) -> None:
    study = make_study(replicates=6, compare=compared())

    def value(run: Run) -> float:
        return 0.8 + 0.01 * run.seed + (shift + spread * (run.seed % 3 - 1)) * (run.variant == "kv")

    tables = plant(study, value=value)
    found = one(verdicts(Results(study, *tables)), "kv")
    assert (found["verdict"], found["claims"]) == (verdict, claims)
    assert found["remark"].startswith(remark) if remark else found["remark"] == ""
    loss = one(verdicts(Results(study, *tables)), "kv", metric="val_loss")
    assert (loss["verdict"], loss["claims"], loss["better"]) == (None, None, "lower")
    assert loss["p_adjusted"] == pytest.approx(found["p_adjusted"])


def test_the_numbers_of_a_row_are_those_of_scipy() -> None:
    study = make_study(replicates=5, compare=compared(margin={"val_accuracy": 0.002}))
    tables = plant(study)
    table = verdicts(Results(study, *tables))
    assert table.select("metric", "column", "variant").rows() == [
        (m, *row) for m in ("val_accuracy", "val_loss") for row in ROWS
    ]
    differences = {(r.metric, r.column, r.contrast.name): r for r in judged_rows(Results(study, *tables))}
    p = []
    for column, variant in ROWS:
        own = differences["val_accuracy", column, variant]
        d, row = own.differences, one(table, variant, column)
        assert own.pair.seeds == (0, 1, 2, 3, 4)
        test = stats.ttest_1samp(d, 0.0)
        bounds = test.confidence_interval(0.92)  # the first look has .8 of 5% on each side
        p.append(float(test.pvalue))
        assert (row["p"], row["sd"], row["n"]) == (pytest.approx(p[-1]), pytest.approx(d.std(ddof=1)), 5)
        assert (row["margin_low"], row["margin_high"]) == pytest.approx((bounds.low, bounds.high))
        assert row["detectable"] == pytest.approx(smallest_effect(5, level=1 - 0.04 / 3) * d.std(ddof=1))
        assert row["wins"] == pytest.approx((d > 0).mean())
        ends = test.confidence_interval(0.95)
        assert (row["difference"], row["low"], row["high"]) == pytest.approx((d.mean(), ends.low, ends.high))
    holms = [one(table, variant, column)["p_adjusted"] for column, variant in ROWS]
    assert holms == pytest.approx(np.minimum(multipletests(p, method="holm")[1] / 0.8, 1).tolist())
    assert set(table["family"]) == {3}


@pytest.mark.parametrize("arms", [1, 14])
def test_what_is_said_to_be_detectable_is_found_by_holm_s_verdict_with_the_power_said(arms: int) -> None:
    n, hits = 10, []
    noise = normal("verdict power", arms, size=(1500, arms, n))
    noise[:, 0] += smallest_effect(n, level=1 - 0.05 / arms)
    for page in noise:
        hits.append(holm([p_two_sided(row) for row in page])[0] < 0.05)
    assert 0.77 < np.mean(hits) < 0.83


def test_non_inferiority_over_a_family_is_claimed_falsely_on_at_most_5_percent_of_pages_if_asked() -> None:
    def planted_at(page: int, run: Run) -> float:
        own = normal("family", page, run.variant, run.dataset, str(run.others), run.seed, size=(1,))
        return 0.8 - 0.01 * (run.variant != "qkv") + 0.02 * float(own[0])

    hits = {False: 0, True: 0}
    for familywise in hits:
        study = make_study(replicates=4, compare=compared(margin={"val_accuracy": 0.01}, familywise=familywise))
        for page in range(250):
            tables = plant(study, value=partial(planted_at, page))
            table = verdicts(Results(study, *tables)).filter(pl.col("metric") == "val_accuracy")
            hits[familywise] += any("non-inferior" in claims for claims in table["claims"])
    assert hits[True] / 250 <= 0.05 + 0.035
    assert hits[False] > hits[True]


def test_ties_count_half_and_equal_arms_say_how_they_were_judged() -> None:
    study = make_study(replicates=6, compare=compared())

    def value(run: Run) -> float:
        gain = 0.1 * ((run.variant, run.dataset) == ("kv", "vision"))
        return 0.7 + 0.01 * run.seed * (run.others.get("model.depth", 3) - 1) + gain

    table = verdicts(Results(study, *plant(study, value=value)))
    equal, better = one(table, "kv"), one(table, "kv", "images")
    assert (equal["wins"], equal["sd"], equal["detectable"], equal["p"]) == (0.5, 0.0, None, 1.0)
    assert equal["verdict"] == "equivalent"
    assert "a sign test decides" in equal["remark"]
    assert (better["wins"], better["p"]) == (1.0, pytest.approx(2**-5))
    assert better["p_adjusted"] == pytest.approx(3 * 2**-5 / 0.8)
    assert better["verdict"] == "non-inferior", "three tests, six seeds: Holm leaves no superiority"


@pytest.mark.parametrize("scale", [1e-170, 1e-200, 1e-310])
def test_losses_whose_squares_underflow_are_equal_ones(scale: float) -> None:
    study = make_study(replicates=6, compare=compared(metrics=["val_loss"], margin={"val_loss": 1.0}))
    trials, reports = plant(study)
    reports = reports.with_columns(pl.col("val_loss") * scale)
    table = verdicts(Results(study, trials, reports))
    found = [(row["difference"], row["sd"], row["p"], row["verdict"]) for row in table.rows(named=True)]
    assert found == [(0.0, 0.0, 1.0, "equivalent")] * 3


def test_what_is_not_there_yet_is_no_verdict_and_stays_in_the_family() -> None:
    study = make_study(replicates=5, compare=compared())
    full = one(verdicts(Results(study, *plant(study))), "kv")
    tables = plant(study, states={"k": "RUNNING"})
    table = verdicts(Results(study, *tables))
    missing, there = one(table, "k"), one(table, "kv")
    assert (missing["verdict"], missing["n"], missing["p"], missing["p_adjusted"]) == (None, 0, None, None)
    assert there["family"] == 3
    assert there["p_adjusted"] >= full["p_adjusted"]
    single = make_study(replicates=1, compare=compared())
    found = one(verdicts(Results(single, *plant(single))), "kv")
    assert (found["verdict"], found["p"], found["remark"]) == ("inconclusive", None, "one seed has no interval")


def test_a_diverged_seed_makes_the_verdict_inconclusive_unless_the_file_says_what_it_counts_as() -> None:
    study = make_study(replicates=5, compare=compared())
    found = one(verdicts(Results(study, *plant(study, states={("kv", "short", 0): "diverged"}))), "kv")
    assert (found["verdict"], found["p"]) == ("inconclusive", None)
    assert "a seed diverged" in found["remark"]


@pytest.mark.parametrize("scored", [0.1, 0.0, 0.75])
def test_a_diverged_seed_counts_as_what_the_file_says(scored: float) -> None:
    """A trial with one diverged seed is complete; its other seeds count as they are."""
    study = make_study(replicates=5, compare=compared(diverged={"val_accuracy": scored}))

    gone = ("kv", "short", {"model.depth": 2, "model.heads": 2}, 1)
    trials, reports = plant(study, value=lambda run: math.nan if run == gone else truth(*run))
    reports = reports.with_columns(diverged=pl.col("val_accuracy").is_nan())
    both = ((trials, reports), plant(study, value=lambda run: scored if run == gone else truth(*run)))
    found, expected = (comparison(Results(study, *tables)) for tables in both)
    ours, theirs = one(found, "kv"), one(expected, "kv")
    for name in ("mean", "mean_low", "mean_high", "difference", "low", "high", "n", "seeds", "compared"):
        assert ours[name] == pytest.approx(theirs[name]), name
    assert (ours["diverged"], ours["configurations"]) == (1, 8)
    assert ours["mean_remark"] == f"diverged in 1 of 8 configurations, each such seed counted as {scored:g}"
    assert math.isnan(one(found, "kv", metric="val_loss")["mean"]), "the file gives no value for this metric"
    tables = (trials, reports)
    row = one(verdicts(Results(study, *tables)), "kv")
    assert row["difference"] == pytest.approx(theirs["difference"])
    assert row["collapsed"] == 1, "whatever it counts as"


def test_a_trial_all_of_whose_seeds_diverged_counts_and_one_ended_by_another_seed_has_no_number() -> None:
    study = make_study(compare=compared(diverged={"val_accuracy": 0.1}))
    trials, reports = plant(study, states={("kv", "vision", 0): "diverged"})
    assert math.isnan(one(comparison(Results(study, trials, reports)), "kv", "images")["mean"]), (
        "seeds 0 and 2 were ended early"
    )
    place = trials.filter(pl.col("state") == "FAIL").row(0, named=True)
    own = (pl.col("dataset") == place["dataset"]) & (pl.col("trial") == place["trial"])
    last = own & (pl.col("epoch") == 2)
    gone = reports.with_columns(
        diverged=last | pl.col("diverged"),
        final=last | pl.col("final"),
        val_accuracy=pl.when(last).then(math.nan).otherwise("val_accuracy"),
    )
    found = one(comparison(Results(study, trials, gone)), "kv", "images")
    rest = [[truth("kv", "vision", {"model.heads": 4}, seed) for seed in range(3)]]
    assert found["mean"] == pytest.approx((0.1 + np.mean(rest)) / 2)
