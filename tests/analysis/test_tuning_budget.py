"""What tuning cost and found, from a planted table, and a warning for each way in which it is unfair."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from ablate.analysis.comparison import cells
from ablate.analysis.tuning_budget import at_border, count_untuned, tuning_budget, tuning_warnings
from ablate.base.randomness import stream
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


def test_a_score_of_exactly_zero_is_a_score() -> None:
    rows = planted(complete_1={"val_loss": 0.0, "val_accuracy": 1.0})
    found = tuning_budget(study_of("val_loss"), trials_of(rows))
    assert (found["best_trial"][0], found["score"][0]) == (2, 0.0)


def test_a_cell_says_that_its_row_could_not_be_tuned() -> None:
    rows = planted(**{f"without_{draw}": {"state": "FAIL"} for draw in range(4)})
    rows.append(Row(stage="search", variant="complete", values={"state": "COMPLETE", "epochs": 4}))
    trials = trials_of(rows)
    reports = reports_of(trials, {"tune": (9,), "search": (0,)}).with_columns(val_accuracy=pl.lit(0.9), diverged=False)
    table = cells(study_of(), trials, reports).filter(metric="val_accuracy")
    assert dict(table.select("variant", "remark").rows()) == {
        "complete": "",
        "without-mlp": "no tuning trial is complete in 1 of 1 configurations: not trained",
    }
    waiting = [*rows[:-1], Row(stage="tune", variant="without-mlp", values={"state": "RUNNING", "epochs": 1})]
    assert count_untuned(study_of(), trials_of(waiting)) == {}


def test_values_that_were_chosen_on_the_test_split_are_named() -> None:
    rows = planted()
    trials, study = trials_of(rows), parse_study(FILE.replace("METRIC", "val_accuracy") + "protocol: paper\n")
    assert codes(study, rows) == ["tuned-on-test"]
    assert tuning_warnings(study, trials.clear(), reports_of(trials, {})) == [], "nothing is chosen yet"


def chosen(study: Study, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the best score of each repetition as `tuning_budget` chooses it; `scores` [repetition, draw].

    Each repetition is a configuration of the row `complete`.
    """
    fixed = {"training.learning_rate": 0.01, "state": "COMPLETE"}
    rows = [
        Row(stage="tune", variant="complete", values={**fixed, "model.depth": depth, "val_accuracy": score})
        for depth, own in enumerate(scores.tolist())
        for score in own
    ]
    return tuning_budget(study, trials_of(rows))["score"].to_numpy()


def test_what_the_warning_of_unequal_budgets_says_is_so() -> None:
    """With equal rows the best of 100 beats the best of 10 in 100/110 of the cases: by luck alone, 91%."""
    depths = f"[{', '.join(map(str, range(1, 301)))}]"
    text = FILE.replace("METRIC", "val_accuracy").replace("depth: 1", f"depth: {{choices: {depths}}}")
    study, rng = parse_study(text), stream(0, "digits", 0, "test")
    few, equal, many = (chosen(study, rng.normal(0.8, 0.01, (300, trials))) for trials in (10, 10, 100))
    assert (many > few).mean() == pytest.approx(100 / 110, abs=0.05)  # 3 standard errors
    assert (equal > few).mean() == pytest.approx(1 / 2, abs=0.09)


def test_without_tune_there_is_nothing_to_warn_of() -> None:
    plain = [line for line in FILE.replace("METRIC", "val_accuracy").splitlines() if not line.startswith("tune:")]
    assert tuning_warnings(parse_study("\n".join(plain)), pl.DataFrame(), pl.DataFrame()) == []


def test_a_complete_trial_without_a_finite_score_counts_as_failed() -> None:
    """As where one of several seeds diverged and `compare.diverged` says what it counts as."""
    rows = planted(complete_2={"val_accuracy": float("nan")})
    found = tuning_budget(study_of(), trials_of(rows))
    assert found.select("complete", "failed", "best_trial").rows()[0] == (3, 1, 2)
    assert codes(study_of(), rows) == ["unequal-budget", "failed-tuning"]


def test_rows_are_compared_within_their_configuration_and_by_epochs_too() -> None:
    text = FILE.replace("METRIC", "val_accuracy").replace("epochs: 4", "epochs: {choices: [4, 8]}")
    study = parse_study(text)
    rows = [
        Row(stage=row.stage, variant=row.variant, values={**row.values, "training.epochs": epochs, "epochs": epochs})
        for epochs in (4, 8)
        for row in planted()
    ]
    assert codes(study, rows) == []
    shorter = Row(stage="tune", variant="complete", values={**rows[0].values, "epochs": 3})
    assert codes(study, [shorter, *rows[1:]]) == ["unequal-budget"]
