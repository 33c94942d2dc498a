"""The quantile of the studentized range beside scipy's, and where it is known in closed form."""

from __future__ import annotations

import math

import pytest
import scipy

from ablate.results.statistics.studentized_range import range_quantile


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
@pytest.mark.parametrize(("groups", "df"), [(3, 2), (3, 24), (6, 20), (12, 11), (12, 1000), (40, 39), (100, 400)])
def test_it_is_scipys(level: float, groups: int, df: int) -> None:
    expected = scipy.stats.studentized_range.ppf(level, groups, df)
    assert range_quantile(level, groups, df) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("df", [1, 2, 4, 30, 10_000])
def test_the_range_of_two_is_students_t(df: int) -> None:
    expected = math.sqrt(2) * scipy.special.stdtrit(df, 0.975)
    assert range_quantile(0.95, 2, df) == pytest.approx(expected, rel=1e-10)
