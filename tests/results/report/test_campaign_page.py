"""The page of a campaign, from planted verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ablate.results.report import draw_figures, write_report
from ablate.results.report.campaign import MOST_ROWS
from ablate.results.trials.results import Results
from ablate.study import parse_study
from support.figure_data import drawn_data

STUDY = """\
study: night
datasets: {digits: {patch: 4}}
objectives: [{metric: val_accuracy, direction: maximize}]
campaign: {}
"""
NO_TRIALS = pl.DataFrame(schema={"state": pl.String()})


def candidate(number: int, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("reason", "low", "high", "bound", "note", "by", "diff"))
    row |= {"candidate": number, "state": "discard", "metric": "val_accuracy", "runs": 1, "gain": -0.01 * number,
            "change": {"config.lr": number}, "cost": {"params": [80, 100]}, "gains": [-0.01 * number], "reign": 1,
            "champion_gain": 0.0, "error_spent": 0.001 * number}  # fmt: skip
    return row | more


def results(*rows: dict[str, Any], closing: dict[str, Any] | None = None) -> Results:
    values = {"status": {"closing": closing}, "lines": ["3 runs", "1 sd", "Test: 2.00"], "rows": rows}
    return Results(parse_study(STUDY, "planted"), NO_TRIALS, campaign=values)


def test_the_page_shows_every_candidate_the_closing_first_and_no_markup_of_a_note(tmp_path: Path) -> None:
    kept = candidate(2, state="keep", gain=0.02, low=0.01, high=0.03, bound=0.004, note="<b>rate", by="ana", reign=1)
    found = results(
        candidate(1), kept, candidate(3, reign=2), closing={"mean": 0.02, "low": 0.01, "high": 0.03, "n": 8}
    )
    text = write_report(found, tmp_path).read_text()
    assert text.index("Test: 2.00") < text.index("3 runs")
    assert "&lt;b&gt;rate" in text
    assert "<b>rate" not in text
    assert "+1.00 to +3.00" in text
    assert "0.8× parameters" in text
    table = pl.read_csv(tmp_path / "report" / "campaign.csv")
    assert table["params"].to_list() == [80] * 3
    assert table["gain"].to_list() == pytest.approx([-0.01, 0.02, -0.03])
    data = drawn_data(draw_figures(found)[0]).filter(pl.col("gain").is_not_null())
    assert data.sort("candidate")["gain"].to_list() == pytest.approx([-1, 2, -3])  # in points


def test_a_long_timeline_has_the_last_candidates_and_those_kept() -> None:
    rows = [candidate(number, state="keep" if number == 5 else "discard") for number in range(1, 101)]
    data = drawn_data(draw_figures(results(*rows))[0]).filter(pl.col("gain").is_not_null())
    assert data["candidate"].to_list() == [f"{n} lr {n}" for n in (5, *range(101 - MOST_ROWS, 101))]


def test_a_campaign_without_candidates_has_a_page(tmp_path: Path) -> None:
    assert "No candidate was submitted yet." in write_report(results(), tmp_path).read_text()
