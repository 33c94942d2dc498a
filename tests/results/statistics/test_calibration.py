"""The simulations of `make calibration`, small; and that the page shows what the last whole run wrote."""

from __future__ import annotations

import csv
import sys

import numpy as np
import pytest

from support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))
import calibration
import calibration_rows

QUICK = [
    pytest.param(row, marks=pytest.mark.slow if row.__name__ == "importance_rows" else (), id=row.__name__)
    for row in calibration.ROWS
]


@pytest.mark.parametrize("function", QUICK)
def test_a_small_run_of_each_row_is_inside_its_target(function):
    rows = list(function(0.05))
    assert rows
    assert [f"{row.what}; {row.setting}: {row.text()}" for row in rows if not row.passed] == []


def test_a_row_outside_its_target_fails():
    hits = np.arange(1000) < 900
    assert calibration_rows.rate("coverage", "n", hits, (0.88, 0.92)).passed
    assert not calibration_rows.rate("coverage", "n", hits, (0.94, 0.96)).passed
    assert not calibration_rows.average("bias", "n", np.ones(50) + np.arange(50) / 1e4, (0.0, 0.0)).passed


def test_the_page_shows_the_rows_of_the_last_whole_run():
    results, page = calibration.CSV.read_text(), calibration.PAGE.read_text()
    assert calibration.with_table(page, results) == page
    rows = list(csv.DictReader(results.splitlines()))
    assert tuple(rows[0]) == calibration.FIELDS
    assert [row["what"] for row in rows if row["pass"] != "pass"] == []
    assert not any(row["commit"].endswith("+") for row in rows)
