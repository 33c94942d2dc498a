"""The rule of judging changes: known answers, a second implementation by scipy.stats, and its parts alone."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ablate.base.judging import Judgement, Pool, Rule, doubt_of_ratio, judge
from ablate.base.randomness import stream
from support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))
import calibration_judging as calibration

REFERENCE = np.array([90, 91, 92, 93, 94, 91, 92, 93, 90, 92, 91, 93, 92, 94, 91, 92]) / 100
ENDED = np.array([93, 94, 95, 94, 92, 95]) / 100, np.array([90, 91, 92, 93, 90, 92]) / 100
RULE = Rule.of()


def judged(percent: list[int], *, k: int = 1, ended: bool = False, **given: Any) -> Judgement:
    """Return the judgement of runs in percent; the reference has the runs that the rule asks for."""
    runs, pool = np.array(percent) / 100, Pool()
    if ended:
        pool.add(*ENDED)
    n = len(runs)
    return judge(runs, REFERENCE[:n], REFERENCE[: RULE.reference_runs(n)], pool, k, rule=RULE, **given)


def random(name: str) -> np.random.Generator:
    return stream(0, "judging", 0, name)


BETTER, NEAR = [95, 96, 94, 95, 96, 95, 97, 94], [93, 94, 92, 93, 94, 93, 95, 92]
GOOD, EVEN = [93, 94, 95, 96, 97, 94, 95, 96], [91, 91, 93, 92, 94, 90, 92, 93]
WITH_MARGIN = {"k": 3, "ended": True, "shift": 0.02}


@pytest.mark.parametrize(
    ("percent", "given", "state", "gain", "se", "df", "p", "bound", "need"),
    [
        ([90], {}, "discard", -0.015, 0.014434, 3, 0.812452, -math.inf, None),
        ([93], {}, "open", 0.015, 0.014434, 3, 0.187548, -math.inf, 15),
        ([93, 93], {}, "open", 0.015, 0.009258, 4, 0.0902538, -math.inf, 14),
        (BETTER, {}, "keep", 0.033125, 0.004917, 22, 4.51527e-07, 0.012589, None),
        (NEAR, {}, "open", 0.013125, 0.004917, 22, 0.0070048, -0.007411, 8),
        (GOOD, {"k": 3, "ended": True}, "keep", 0.030434, 0.004831, 16.5044, 4.58681e-06, 0.008854, None),
        (EVEN, WITH_MARGIN, "open", 0.000434, 0.004831, 16.5044, 2.99643e-04, -0.021146, 8),
    ],
)
def test_known_answers(percent, given, state, gain, se, df, p, bound, need) -> None:
    found = judged(percent, **given)
    assert (found.state, found.need) == (state, need)
    assert (found.runs, found.reference_runs) == (len(percent), max(4, 2 * len(percent)))
    assert [found.gain, found.se, found.bound] == pytest.approx([gain, se, bound], abs=6e-7)
    assert [found.df, found.p] == pytest.approx([df, p], rel=1e-5)
    assert found.correlation == pytest.approx(0.306197 if given.get("ended") else 0, abs=1e-6)


def test_the_rates_sum_to_alpha_and_the_shares_to_1() -> None:
    found = {k: RULE.rate(k) for k in (1, 2, 10, 50, 100, 1000)}
    known = [9.8039e-4, 9.4268e-4, 7.0621e-4, 2.5253e-4, 1.1186e-4, 2.2697e-6]
    assert list(found.values()) == pytest.approx(known, rel=1e-4)
    assert sum(RULE.rate(k) for k in range(1, 101)) == pytest.approx(1 / 30)
    one, known_length = Rule.of(expect=1), Rule.of(length=20)
    assert [one.rate(k) for k in (1, 2, 3)] == pytest.approx([0.05 / 2, 0.05 / 6, 0.05 / 12])
    assert sum(known_length.rate(k) for k in range(1, 200)) == pytest.approx(0.05)
    assert known_length.rate(1) == known_length.rate(20)
    assert Rule.of(mode="explore", expect=1).rate(1) == Rule.of(mode="explore", length=3).rate(3) == 0.5
    critical = [stats.t.isf(RULE.rate(50) * RULE.share(n), 40) for n in (8, 16, 32)]
    assert critical == pytest.approx([4.317, 4.185, 4.185], abs=1e-3)
    for rule in (RULE, Rule.of(mode="explore")):
        assert math.fsum(rule.share(n) for n in range(1, 300)) == pytest.approx(1)


def test_modes_and_efforts() -> None:
    explore = Rule.of(mode="explore")
    assert (explore.looks, explore.shares, explore.alpha, explore.most) == ((2, 4, 8, 16), (0.3, 0.3, 0.3, 0.1), 5, 16)
    assert Rule.of(mode="explore", most=8).most == 8
    efforts = [Rule.of(effort=effort) for effort in ("frugal", "normal", "thorough")]
    assert [(rule.discard_slope, rule.discard_log) for rule in efforts] == [(1.5, 0.825), (1.2, 0.9), (1.2, 1.38)]
    assert (explore.discard_slope, Rule.of()) == (1.5, efforts[1])
    assert [RULE.reference_runs(n) for n in (1, 2, 3, 32, 33, 64, 65, 256)] == [4, 4, 6, 64, 64, 64, 65, 256]
    assert [explore.reference_runs(n) for n in (1, 4, 5, 16)] == [4, 4, 5, 16]


@pytest.mark.parametrize(("rule", "looks"), [(Rule.of(most=70), {8, 16, 32, 64}), (Rule.of(mode="explore"), {2, 4, 8})])
def test_a_keep_is_possible_at_the_looks_alone_and_a_candidate_ends_undecided(rule: Rule, looks: set[int]) -> None:
    noise, last = random("looks").standard_normal((2, 70)), rule.most
    found = [judge(50 + noise[0, :n], noise[1, :n], noise[1], Pool(), 1, rule=rule) for n in range(1, last)]
    assert {each.runs for each in found if each.state == "keep"} == looks
    assert {each.state for each in found} == {"keep", "open"}
    near = 0.8 + noise[1, :last]
    assert judge(near, noise[1, :last], noise[1], Pool(), 1000, rule=rule).state == "undecided"
    unlike = judge(near[:-1], noise[1, : last - 1], noise[1], Pool(), 1000, rule=rule)
    assert (unlike.state, unlike.allowed == 0) == ("open", True)


def test_the_pool_does_not_depend_on_the_order_and_needs_four_pairs() -> None:
    draws = random("pool").standard_normal((12, 2, 6))
    arms = [(one[:n], (one + other)[:n] if n % 3 else None) for n, (one, other) in enumerate(draws, 1)]
    forth, back = Pool(), Pool()
    for one, other in zip(arms, reversed(arms), strict=True):
        forth.add(*one)
        back.add(*other)
    assert vars(forth) == pytest.approx(vars(back), rel=1e-12)
    assert 0 < forth.beta() == pytest.approx(float(back.beta()))
    pool, line = Pool(), np.arange(4.0)
    pool.add(line, line)
    assert (pool.pairs, pool.beta()) == (3, 0), "three pairs say nothing"
    pool.add(line[:2], line[:2])
    assert (pool.pairs, pool.beta()) == (4, 0.5), "r = 1, less one standard error"
    for _ in range(2000):
        pool.add(line, line)
    assert pool.beta() == 0.98
    against = Pool()
    against.add(np.arange(9.0), -np.arange(9.0))
    assert against.beta() == 0, "never negative"
    against.add(np.arange(9.0), None)
    assert (against.df, against.pairs) == (16, 8), "a former reference has no pairs"


@pytest.mark.parametrize("seed", range(40))
def test_a_second_implementation_agrees(seed: int) -> None:
    draws = stream(0, "judging", seed, "second")
    rule = Rule.of(mode="explore" if seed % 4 == 3 else "claims", effort="thorough" if seed % 4 == 1 else None)
    n, seeds, k, shift = (
        int(draws.choice([1, 2, 5, 8, 16, 32])),
        draws.standard_normal(64),
        seed + 1,
        0.1 * (seed % 3),
    )
    reference, pool, arms = seeds + draws.standard_normal(64), Pool(), []
    for _ in range(seed % 5 * 3):
        place = draws.permutation(64)[: draws.integers(1, 9)]
        arms.append((seeds[place] + draws.standard_normal(len(place)), reference[place]))
        pool.add(*arms[-1])
    place = draws.permutation(rule.reference_runs(n))[:n]
    runs, shared, all_of = (
        seeds[place] + draws.normal(0.8, 1.5, n),
        reference[place],
        reference[: rule.reference_runs(n)],
    )
    found, m = judge(runs, shared, all_of, pool, k, rule=rule, shift=shift), len(all_of)

    centred = [[x - x.mean() for x in pair] for pair in arms]
    own, other = (np.concatenate([pair[i] for pair in centred]) if arms else np.zeros(0) for i in (0, 1))
    pairs = sum(len(x) - 1 for x, _ in arms)
    r = stats.pearsonr(own, other).statistic if pairs > 3 else 0
    beta = max(0, r - pairs**-0.5) if pairs > 3 else 0
    groups = [runs, all_of, *(x for x, _ in arms)]
    freedom = sum(map(len, groups)) - len(groups)
    pooled = sum(len(x) * np.var(x) for x in groups) / freedom
    terms = [  # variance of a mean, and its degrees of freedom
        (weight * (4 * pooled + len(x) * np.var(x)) / (3 + len(x)), 3 + len(x))
        for x, weight in ((runs, (1 - beta**2) / n), (all_of, (1 - beta) ** 2 / m))
    ]
    se = math.sqrt(sum(v for v, _ in terms))
    df = min(freedom, se**4 / sum(v**2 / f for v, f in terms))
    gain = np.mean(runs - beta * shared) - (1 - beta) * np.mean(all_of)
    t = stats.t(df, loc=gain, scale=se)
    alpha = 5 * 50 / (49 + k) / (50 + k) if seed % 4 == 3 else 0.05 * 50 / (49 + k) / (50 + k)
    allowed = alpha * dict(zip(rule.looks, rule.shares, strict=True)).get(n, 0)
    assert [found.gain, found.se, found.df, found.correlation] == pytest.approx([gain, se, df, beta])
    assert [found.p, found.low, found.high] == pytest.approx([t.cdf(-shift), *t.interval(0.95)])
    assert found.allowed == pytest.approx(allowed)
    assert found.bound == pytest.approx(t.ppf(allowed))
    unit = math.sqrt((1 - beta**2) / n + (1 - beta) ** 2 / m)
    effect = (gain + shift) / se * unit  # in standard deviations of a run, known to ± `unit`
    slope, evidence = {0: (1.2, 0.9), 1: (1.2, 1.38), 2: (1.2, 0.9), 3: (1.5, 0.825)}[seed % 4]
    ratio = stats.norm.logpdf(effect, slope, unit) - stats.norm.logpdf(effect, 0, unit)
    state = (
        "keep"
        if t.cdf(-shift) < allowed
        else "discard"
        if ratio < -evidence
        else "undecided"
        if n >= rule.most
        else "open"
    )
    assert found.state == state
    need = None
    for look, share in reversed(list(zip(rule.looks, rule.shares, strict=True))):
        twice = (1 if seed % 4 == 3 else 2) * look
        error = math.sqrt(pooled * ((1 - beta**2) / look + (1 - beta) ** 2 / max(look, min(64, max(4, twice)))))
        if look > n and stats.norm.sf((gain + shift) / error) < alpha * share:
            need = look - n
    assert found.need == (None if state in ("keep", "discard") else need)


@pytest.mark.parametrize("percent", [NEAR, BETTER, [93], [93, 92, 94]])
def test_a_margin_is_the_same_as_runs_that_are_better_by_it(percent: list[int]) -> None:
    for shift in (-0.01, 0.03):
        asked = judged(percent, ended=True, shift=shift)
        moved = judged([value + 100 * shift for value in percent], ended=True)
        assert (asked.state, asked.need, asked.p) == (moved.state, moved.need, pytest.approx(moved.p))
        assert asked.gain + shift == pytest.approx(moved.gain)
        assert (asked.bound > -shift) == (asked.state == "keep") == (moved.bound > 0)


@pytest.mark.parametrize("value", [0.0, 0.91, 3e9, 1e-9])
def test_equal_runs_without_spread_are_no_gain_and_unequal_ones_are(value: float) -> None:
    runs, reference = np.full(8, value), np.full(16, value)
    assert judge(runs, reference[:8], reference, Pool(), 1, rule=RULE).state == "discard"
    assert judge(runs * 1.01 + 1e-9, reference[:8], reference, Pool(), 1, rule=RULE).state == "keep"
    rounded = np.nextafter(runs, np.inf)
    assert judge(rounded, reference[:8], reference, Pool(), 1, rule=RULE).state == "discard", (
        "the next number is no gain"
    )


def test_a_certain_gain_is_kept_below_the_line_of_hopeless_ones() -> None:
    noise, pool = random("small").standard_normal((2, 5_000)), Pool()
    pool.add(noise[0], noise[0])
    reference = noise[1, :16]
    small, less = (judge(reference[:8] + gain, reference[:8], reference, pool, 1, rule=RULE) for gain in (0.42, 0.1))
    assert (small.state, less.state, small.correlation) == ("keep", "discard", 0.98)
    assert judge(reference[:7] + 0.42, reference[:7], reference, pool, 1, rule=RULE).state == "discard"


def test_the_simulated_campaigns_are_judged_as_one_by_one() -> None:
    side_by_side = calibration.Campaigns(
        random=random("simulated"), number=5, arms=calibration.smooth_arms(r=0.6, spread=0.3), rule=RULE
    )
    pools, grown, states = [Pool() for _ in range(5)], [4] * 5, set()
    for k in range(1, 25):
        values, order = side_by_side.candidate()
        values += k % 3
        kept, runs, gains = side_by_side.judge(values, order, k)
        for i, pool in enumerate(pools):
            assert sorted(order[i, : grown[i]]) == list(range(grown[i])), "the reference's seeds come first"
            n, found = 0, None
            while found is None or found.state == "open":
                n, reference = n + 1, side_by_side.reference[i]
                grown[i] = max(grown[i], RULE.reference_runs(n))
                own, shared = values[i, order[i, :n]], reference[order[i, :n]]
                found = judge(own, shared, reference[: grown[i]], pool, k, rule=RULE)
            assert (found.state == "keep", n, found.gain) == (kept[i], runs[i], pytest.approx(gains[i]))
            pool.add(own, shared)
            states.add(found.state)
        side_by_side.end(values, order, runs)
        assert side_by_side.reference_runs.tolist() == grown
        for name, sums in vars(side_by_side.pool).items():
            assert sums == pytest.approx([getattr(pool, name) for pool in pools]), name
    assert states >= {"keep", "discard"}


def test_a_simulated_agent_copies_the_best_looking_candidate() -> None:
    agent = calibration.Campaigns(
        random=random("agent"), number=400, arms=calibration.smooth_arms(), rule=RULE, child=0.8, is_one_order=True
    )
    agent.best = random("best").standard_normal((400, calibration.WIDTH))
    values, order = agent.candidate()
    assert np.corrcoef(values.ravel(), agent.best.ravel())[0, 1] == pytest.approx(0.8, abs=0.01)
    assert values.std() == pytest.approx(1, abs=0.02)
    assert (order == np.arange(calibration.WIDTH)).all()


@pytest.mark.parametrize("n", [1, 2, 8])
def test_a_saving_of_time_is_doubted_as_by_the_t_test_on_logarithms(n: int) -> None:
    own, others = (np.exp(0.1 * random(f"times {size}").standard_normal(size)) for size in (n, 9))
    found = doubt_of_ratio(own, others, 0.9)
    assert 0 < found < 1
    if n > 1:
        assert found == pytest.approx(
            stats.ttest_ind(np.log(own), np.log(others) + math.log(0.9), alternative="less").pvalue
        )
    else:
        z = (math.log(own[0] / 0.9) - np.log(others).mean()) / np.log(others).std(ddof=1) / math.sqrt(1 + 1 / 9)
        assert found == pytest.approx(stats.t.cdf(z, 8))
    assert doubt_of_ratio(np.full(n, 0.8), np.ones(9), 0.9) < 1e-100, "times without spread"
    assert doubt_of_ratio(np.full(n, 0.95), np.ones(9), 0.9) == 1


def test_a_candidate_that_saves_no_more_than_was_asked_has_evenly_spread_p_values() -> None:
    times = np.exp(0.2 * random("no saving").standard_normal((1000, 24)))
    doubts = [doubt_of_ratio(0.9 * row[:8], row[8:], 0.9) for row in times]
    assert stats.kstest(doubts, "uniform").pvalue > 0.01


@pytest.mark.parametrize("outlier", [1e60, 1e99, -1e99])
def test_a_candidate_of_huge_values_is_judged(outlier: float) -> None:
    pool = Pool()
    for _ in range(3):
        found = judge(np.array([0.9, outlier, 0.91]), REFERENCE[:3], REFERENCE[:6], pool, 1, rule=RULE)
        assert np.isfinite([found.gain, found.se, found.df, found.p, found.correlation]).all()
        assert found.state in ("open", "discard")
        pool.add(np.array([0.9, outlier, 0.91]), np.array([0.8, outlier, 0.85]))
