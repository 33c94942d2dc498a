"""Skewed rows and collapsed seeds against scipy, planted seeds and known rates of false verdicts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ablate.base.randomness import stream
from ablate.results.comparison.verdicts import TRUSTED, p_above, p_two_sided
from ablate.results.statistics.intervals import clopper_pearson
from ablate.results.statistics.looks import holm
from ablate.results.statistics.skewness import Doubts, collapsed_seeds, doubts, lean, second_p


def normal(*path: str | int, size: tuple[int, ...]) -> np.ndarray:
    return stream(0, "skewness", 0, *path).standard_normal(size)


def errors(*path: str | int, size: tuple[int, ...]) -> np.ndarray:
    """Return gains of mean 0 and sd 1 with a tail of losses, as lognormal errors have."""
    return (math.exp(0.5) - np.exp(normal(*path, size=size))) / math.sqrt(math.e * (math.e - 1))


@pytest.mark.parametrize(("count", "n"), [(0, 3), (1, 10), (2, 10), (5, 5), (7, 20)])
def test_the_interval_of_a_chance_is_scipys_exact_one(count: int, n: int) -> None:
    exact = stats.binomtest(count, n).proportion_ci(0.95, method="exact")
    assert clopper_pearson(count, n) == pytest.approx((exact.low, exact.high))


def test_the_lean_is_the_trimmed_skewness_of_scipy_in_its_standard_errors() -> None:
    for rows, n in ((1, 8), (2, 8), (5, 10)):
        d = normal("lean", rows, size=(rows, n)) + normal("baseline", rows, size=(n,))
        g = sorted([stats.skew(row) for row in d] + [0.0] * (rows == 2))
        kept = g if rows == 1 else g[1:-1]
        shared = max(np.mean(np.corrcoef(d) ** 3), 1 / rows)  # of one row: 1
        error = math.sqrt(6 * (n - 2) / ((n + 1) * (n + 3)) * shared)
        assert lean(list(d)) == pytest.approx(np.mean(kept) / error)
        assert lean(list(-d)) == pytest.approx(-lean(list(d)))
    assert lean([]) == lean([np.ones(5)]) == lean([np.array([1.0, 2.0])]) == 0.0


def test_a_second_test_is_no_weaker_than_cantelli_and_than_a_t_test_of_the_rows_spread() -> None:
    d = normal("second", size=(10,)) + 1.0
    t = stats.ttest_1samp(d, 0.2, alternative="greater")
    assert p_above(d, 0.2) == pytest.approx(t.pvalue)
    assert p_above(d, 0.2, 0.0) == pytest.approx(1 / (1 + t.statistic**2))
    wide = 4 * d.std(ddof=1)
    assert p_above(d, 0.2, wide) == pytest.approx(stats.t.sf(t.statistic / 4, 9))
    assert second_p(-1.0, 10, 1.0) == 1.0


def test_only_the_side_with_the_tail_is_in_doubt() -> None:
    rows = list(errors("side", size=(10, 10)))
    spread = pytest.approx(math.sqrt(np.mean([row.var(ddof=1) for row in rows])))
    assert doubts(rows, [False] * 10) == [Doubts(gain=spread)] * 10
    assert doubts([-row for row in rows], [False] * 10) == [Doubts(loss=spread)] * 10
    calm = list(normal("calm", size=(10, 10)))
    assert doubts(calm, [True] + [False] * 9) == [Doubts(gain=0.0)] + [Doubts()] * 9
    assert doubts([], []) == []


def test_one_row_that_collapses_leaves_the_others_their_t_test() -> None:
    fired = 0
    for page in range(200):
        rows = normal("one", page, size=(10, 10)) - normal("one baseline", page, size=(10,))
        rows[0, 3] -= 30
        fired += doubts(list(rows), [False] * 10)[1] != Doubts()
    assert fired / 200 < 0.15


@pytest.mark.parametrize("law", [errors, normal])
def test_false_verdicts_on_skewed_arms_beside_a_steady_baseline(law: Any) -> None:
    """A t test alone calls a skewed arm superior or harmful on half of the pages; normal arms lose nothing."""
    arms, pages, found = 10, 150, {"alone": 0, "both": 0}
    for page in range(pages):
        rows = law("false", page, size=(arms, 10)) - 0.1 * normal("steady", page, size=(10,))
        for name, doubt in (("alone", [TRUSTED] * arms), ("both", doubts(list(rows), [False] * arms))):
            p = holm([p_two_sided(row, each) for row, each in zip(rows, doubt, strict=True)])
            found[name] += min(p) < 0.05
    assert (found["alone"] > 0.35 * pages) == (law is errors)
    assert found["both"] <= (0.05 + 3 * math.sqrt(0.05 * 0.95 / pages)) * pages


@pytest.mark.parametrize(("n", "places"), [(5, [2]), (10, [0, 7]), (10, [1, 2, 3, 4]), (20, [0, 5, 19])])
def test_planted_collapses_are_counted_however_many_there_are(n: int, places: list[int]) -> None:
    gains = 0.01 * normal("planted", n, size=(n,))
    gains[places] -= 0.5
    assert collapsed_seeds(gains, 0.01, 10) == places
    assert collapsed_seeds(gains, 0.6, 10) == [], "no collapse is smaller than the margin"
    assert collapsed_seeds(-gains, 0.01, 10) == [], "nor is a lucky seed one"


@pytest.mark.parametrize("margin", [0.05, 0.1, 0.3])
def test_a_seed_exactly_at_the_margin_has_not_collapsed(margin: float) -> None:
    for good in (0.1, 0.2, 0.7, 1 / 3):
        assert collapsed_seeds(np.array([good - margin] + [good] * 7), margin, 1) == []


def test_normal_seeds_collapse_on_at_most_one_page_in_twenty() -> None:
    pages = normal("calm pages", size=(300, 5, 8))
    found = [any(collapsed_seeds(row, None, 5) for row in page) for page in pages]
    assert np.mean(found) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
