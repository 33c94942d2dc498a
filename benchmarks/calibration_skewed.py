"""Rows on what a t test does not bear: skewed rows, seeds that collapse; and on the placebo beside paired rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from calibration_rows import Row, average, generator, rate, repetitions

from ablate.results.comparison.verdicts import NON_INFERIOR, TRUSTED, margin_p, p_two_sided
from ablate.results.comparison.words import paired_sd
from ablate.results.statistics.intervals import smallest_effect
from ablate.results.statistics.looks import ERROR, holm
from ablate.results.statistics.skewness import collapsed_seeds, doubts

ALONE, BOTH = "t test alone (not used)", "with the second test"
MARGIN = 1.0


def skewed(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return gains of mean 0 and sd 1 with a tail of losses: lognormal errors of log sd 1."""
    scale = math.sqrt(math.e * (math.e - 1))
    return np.asarray((math.exp(0.5) - np.exp(random.standard_normal(shape))) / scale)


def correlated(random: np.random.Generator, arms: int, seeds: int, r: float = 0.0) -> np.ndarray:
    """Return the gains [arms, seeds] of equal arms that correlate by r with each other and with the baseline."""
    values = math.sqrt(1 - r) * random.standard_normal((arms + 1, seeds))
    return np.asarray(values[1:] - values[0])


def judged(gains: np.ndarray, margin: float) -> list[list[bool]]:
    """Return by row: superior or harmful and non-inferior by t alone, the same with the second test."""
    fallen = [bool(collapsed_seeds(row, margin, len(gains))) for row in gains]
    found: list[list[bool]] = []
    for each in ([TRUSTED] * len(gains), doubts(list(gains), fallen)):
        pairs = list(zip(gains, each, strict=True))
        found.append([p < ERROR for p in holm([p_two_sided(row, doubt) for row, doubt in pairs])])
        found.append([margin_p(row, margin, doubt)[NON_INFERIOR] < ERROR for row, doubt in pairs])
    return found


def skewed_rows(share: float) -> Iterator[Row]:
    """False verdicts of rows that are skewed beside a steady baseline."""
    limits = {(10, 3): (0.18, 0.18), (10, 5): (0.09, 0.06), (3, 5): (0.23, 0.20), (1, 10): (0.15, 0.18)}
    for arms, seeds in ((10, 3), (10, 5), (10, 10), (3, 5), (1, 10)):
        random, n = generator("skewed rows", arms, seeds), repetitions(1_000, share)
        any_of: dict[str, list[bool]] = {ALONE: [], BOTH: []}
        non_inferior: dict[str, list[bool]] = {ALONE: [], BOTH: []}
        for _ in range(n):
            gains = skewed(random, (arms, seeds)) - 0.1 * random.standard_normal(seeds)
            differ, _, second, _ = judged(gains, MARGIN)
            _, single, _, both = judged(gains - MARGIN, MARGIN)
            any_of[ALONE].append(any(differ))
            any_of[BOTH].append(any(second))
            non_inferior[ALONE].append(single[0])
            non_inferior[BOTH].append(both[0])
        most = limits.get((arms, seeds), (ERROR, ERROR))
        known = " (a known limit)" if most != (ERROR, ERROR) else ""
        setting = f"{arms} arm{'s' * (arms > 1)} of lognormal errors, steady baseline, {seeds} seeds"
        for name, target in ((ALONE, (0.10, 0.55)), (BOTH, (0.0, most[0]))):
            what = f"verdict superior or harmful on an equal skewed arm, {name}{known * (name == BOTH)}"
            yield rate(what, setting, any_of[name], target)
        for name, target in ((ALONE, (0.15, 0.26)), (BOTH, (0.0, most[1]))):
            what = f"non-inferior at the margin of a skewed arm, {name}{known * (name == BOTH)}"
            yield rate(what, setting, non_inferior[name], target)


def collapsing_rows(share: float) -> Iterator[Row]:
    """Non-inferiority of arms that lose three margins because one seed in ten collapses."""
    limits = {(10, 3): 0.55, (10, 5): 0.32, (1, 3): 0.60, (1, 5): 0.60, (1, 10): 0.37}
    for arms, seeds in ((10, 3), (10, 5), (10, 10), (1, 3), (1, 5), (1, 10)):
        random, n = generator("collapsing rows", arms, seeds), repetitions(1_000, share)
        alone, both, seen = [], [], []
        for _ in range(n):
            gains = correlated(random, 10, seeds, r=0.9)
            fell = random.random((arms, seeds)) < 0.1
            gains[:arms] -= 30 * MARGIN * fell
            _, single, _, second = judged(gains, MARGIN)
            alone.append(single[0])
            both.append(second[0])
            if fell[0].any():
                seen.append(second[0])
        limit = limits.get((arms, seeds), ERROR)
        setting = f"{arms} of 10 arms collapse in one seed of ten and lose 3 margins, {seeds} seeds"
        what = "non-inferior although seeds may collapse"
        known = " (a known limit)" if limit > ERROR else ""
        yield rate(f"{what}, {ALONE}", setting, alone, (0.30, 0.75))
        yield rate(f"{what}, {BOTH}{known}", setting, both, (0.0, limit))
        yield rate("non-inferior although a seed of the row collapsed", setting, seen, (0.0, 0.01))
    for seeds in (5, 10):
        random, false, two = generator("collapse found", seeds), [], []
        for _ in range(repetitions(1_000, share)):
            gains = correlated(random, 10, seeds)
            false.append(any(collapsed_seeds(row, None, 10) for row in gains))
            gains[0, : seeds // 5] -= 30
            two.append(collapsed_seeds(gains[0], MARGIN, 10) == list(range(seeds // 5)))
        yield rate(
            "a seed is called collapsed on a page of normal seeds", f"10 arms, {seeds} seeds", false, (0.0, 0.06)
        )
        yield rate("the seeds that collapsed are found", f"{seeds // 5} of {seeds} seeds by 21 sd", two, (0.8, 1))


def second_test_power(share: float) -> Iterator[Row]:
    """What the second test costs where seeds are normal."""
    for arms, seeds in ((10, 3), (10, 5), (10, 10), (3, 10), (1, 10)):
        for r in (0.0, 0.8):
            random, n, sd = (
                generator("second test", arms, seeds, str(r)),
                repetitions(1_000, share),
                math.sqrt(2 - 2 * r),
            )
            effect, margin = (sd * smallest_effect(seeds, level=level) for level in (1 - ERROR / arms, 0.9))
            false: list[bool] = []
            lost: dict[str, list[bool]] = {"superior": [], "non-inferior": []}
            for _ in range(n):
                gains = correlated(random, arms, seeds, r)
                _, single, second, both = judged(gains, margin)
                false.append(any(second))
                lost["non-inferior"].append(single[0] and not both[0])
                gains[0] += effect
                differ, _, second, _ = judged(gains, margin)
                lost["superior"].append(differ[0] and not second[0])
            setting = f"{arms} arm{'s' * (arms > 1)}, {seeds} seeds, r = {r:g}"
            yield rate(
                "verdict superior or harmful on an equal normal arm, with the second test", setting, false, (0, ERROR)
            )
            for name, hits in lost.items():
                yield rate(f"{name}: power of 80% lost by the second test", setting, hits, (0.0, 0.03))


def placebos(share: float) -> Iterator[Row]:
    """How often the placebo warns of nothing, and the spread of paired rows that is shown beside it."""
    for r in (0.0, 0.5, 0.8):
        random, warned, own, shown = generator("placebo", str(r)), [], [], []
        for _ in range(repetitions(4_000, share)):
            gains = correlated(random, 10, 5, r)
            shared = math.sqrt(r) * (random.standard_normal((4, 5)) - random.standard_normal((4, 5)))
            tests = shared + np.array([correlated(random, 1, 5, r)[0] for _ in range(4)])
            warned.append(min(holm([p_two_sided(row) for row in tests])) < ERROR)
            rows = [{"sd": float(row.std(ddof=1)), "kind": "variant", "n": len(row)} for row in gains]
            truth = math.sqrt(2 - 2 * r)
            shown.append((paired_sd(rows) or math.nan) / truth)
            own.append(float(tests[0].var(ddof=1)) / truth**2)
        setting = f"5 seeds, correlation {r:g} with the baseline"
        yield rate("placebo: warning although nothing differs", f"4 tests, {setting}", warned, (0.0, ERROR))
        yield average("placebo page: shown sd of a paired row, true = 1", setting, np.array(shown), (0.93, 1.0))
        wide = 1 / (1 - r)
        yield average("placebo: its own variance, that of a paired row = 1", setting, np.array(own), (wide, wide))
