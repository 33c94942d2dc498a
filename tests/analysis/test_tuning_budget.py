"""What tuning cost and found, from a planted table, and a warning for each way in which it is unfair."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from ablate.analysis.tuning_budget import at_border, tuning_budget, tuning_warnings
from ablate.study import Study, parse_study
from ablate.study.space import Choices, FloatRange, IntRange
from support.simulated import Row, reports_of, trials_of

FILE = """\
study: tuned
datasets: {digits: {patch: 4}}
model: {width: 8, depth: 1, mlp: 8}
training: {epochs: 4}
parts: {mlp: {model: {mlp: none}}}
tune: {trials: 4, training.learning_rate: {float: [0.001, 0.1], log: true}}
compare: {baseline: complete, metrics: [METRIC]}
"""
RATES = (0.00105, 0.003, 0.01, 0.03)


def study_of(metric: str = "val_accuracy") -> Study:
    return parse_study(FILE.replace("METRIC", metric))


def planted(**changes: Any) -> list[Row]:
    """Return four tuning trials of both rows, the third the best one; `changes` maps `row_draw` to other fields."""
    rows = []
    for draw, rate in enumerate(RATES):
        for row in ("complete", "without-mlp"):
            score = 0.9 - abs(draw - 2) / 10
            fields = {"val_accuracy": score, "val_loss": 1 - score, "state": "COMPLETE", "epochs": 4}
            fields |= changes.get(f"{row.partition('-')[0]}_{draw}", {})
            rows.append(Row(stage="tune", variant=row, values={"training.learning_rate": rate, **fields}))
    return rows


def codes(study: Study, rows: list[Row], seeds: tuple[int, ...] = (2_000_000,)) -> list[str]:
    trials = trials_of(rows)
    reports = reports_of(trials, {"tune": seeds, "search": (0, 1)})
    return [warning.code for warning in tuning_warnings(study, trials, reports)]


def test_a_row_has_its_cost_and_its_best() -> None:
    found = tuning_budget(study_of(), trials_of(planted()))
    assert found.select("variant", "trials", "complete", "failed", "epochs", "seconds", "best_trial").rows() == [
        ("complete", 4, 4, 0, 16, 8.0, 4),
        ("without-mlp", 4, 4, 0, 16, 8.0, 5),
    ]
    assert [json.loads(best) for best in found["best"]] == [{"training.learning_rate": 0.01}] * 2
    assert found["score"].to_list() == [0.9, 0.9]
    assert codes(study_of(), planted()) == []


def test_of_a_loss_the_lowest_is_the_best() -> None:
    rows = planted(complete_0={"val_loss": 0.01, "val_accuracy": 0.1})
    assert tuning_budget(study_of("val_loss"), trials_of(rows))["best_trial"].to_list() == [0, 5]
    assert codes(study_of("val_loss"), rows) == ["border-optimum"], "0.00105 is 1% of the log range above its low end"


def test_a_failed_trial_is_never_the_best_and_makes_the_budgets_unequal() -> None:
    rows = planted(complete_2={"state": "FAIL", "epochs": 2})
    found = tuning_budget(study_of(), trials_of(rows))
    assert found["best_trial"].to_list() == [2, 5]
    trials = trials_of(rows)
    unequal, failed = tuning_warnings(study_of(), trials, reports_of(trials, {"tune": (9,)}))
    assert (unequal.code, failed.code) == ("unequal-budget", "failed-tuning")
    assert "complete has 3 complete tuning trials (14 epochs), without-mlp has 4 (16)" in unequal.text
    assert "1 of 8 tuning trials failed or diverged: digits complete 1" in failed.text


def test_budgets_are_compared_once_every_tuning_trial_has_ended() -> None:
    assert codes(study_of(), planted(complete_3={"state": "RUNNING", "epochs": 1})) == []


def test_a_row_without_a_complete_trial_is_named() -> None:
    rows = planted(**{f"without_{draw}": {"state": "FAIL"} for draw in range(4)})
    assert codes(study_of(), rows) == ["unequal-budget", "failed-tuning", "no-tuned-row"]


def test_seeds_that_also_train_the_rows_are_named() -> None:
    rows = [*planted(), Row(stage="search", variant="complete", values={"state": "COMPLETE", "epochs": 4})]
    assert codes(study_of(), rows) == []
    assert codes(study_of(), rows, seeds=(1,)) == ["seeds-reused"]


@pytest.mark.parametrize(
    ("spec", "inside", "outside"),
    [
        (FloatRange(float=(0.0, 1.0)), [0.051, 0.949], [0.0, 0.049, 0.951, 1.0]),
        (FloatRange(float=(1e-4, 1.0), log=True), [2e-4, 0.6], [1.4e-4, 0.7]),
        (IntRange(int=(1, 101)), [7, 95], [1, 6, 96]),
        (Choices(choices=(1, 2)), [1, 2], []),
    ],
)  # fmt: skip
def test_a_value_is_at_a_border_on_the_scale_of_its_range(spec: Any, inside: list[Any], outside: list[Any]) -> None:
    assert not any(at_border(spec, value) for value in inside)
    assert all(at_border(spec, value) for value in outside)


def test_without_tune_there_is_nothing_to_warn_of() -> None:
    plain = [line for line in FILE.replace("METRIC", "val_accuracy").splitlines() if not line.startswith("tune:")]
    assert tuning_warnings(parse_study("\n".join(plain)), pl.DataFrame(), pl.DataFrame()) == []
