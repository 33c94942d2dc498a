"""What tuning cost and found, from a planted table, and a warning for each way in which it is unfair."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from ablate.base.randomness import stream
from ablate.results.comparison.comparison_warnings import comparison_warnings
from ablate.results.comparison.rows import comparison
from ablate.results.comparison.tuning_budget import at_border, count_untuned, tuning_budget, tuning_warnings
from ablate.results.trials.results import Results
from ablate.results.trials.tables import REPORT_COLUMNS
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


def tables(rows: list[Row], seeds: tuple[int, ...] = (2_000_000,)) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return both tables; a trial has the same scores on all of its seeds."""
    trials = trials_of(rows).with_columns(replicates=pl.lit(len(seeds), pl.Int64()))
    reports = reports_of(trials, {"tune": seeds, "search": (0, 1)})
    scores = [name for name in ("val_accuracy", "val_loss") if name in trials.columns]
    return trials, reports.join(trials.select("dataset", "trial", *scores), on=["dataset", "trial"], how="left")


def budget_of(study: Study, rows: list[Row]) -> pl.DataFrame:
    return tuning_budget(Results(study, *tables(rows)))


def rates_of(found: pl.DataFrame) -> list[list[float]]:
    """Return the winning rates of each row, the most frequent first."""
    return [[winner["training.learning_rate"] for winner in json.loads(text)] for text in found["winners"]]


def codes(study: Study, rows: list[Row], seeds: tuple[int, ...] = (2_000_000,)) -> list[str]:
    return [warning.code for warning in tuning_warnings(Results(study, *tables(rows, seeds)))]


def test_a_row_has_its_cost_and_its_best() -> None:
    found = budget_of(study_of(), planted())
    assert found.select("variant", "trials", "runs", "complete", "failed", "epochs", "seconds", "untuned").rows() == [
        ("complete", 4, 4, 4, 0, 16, 8.0, 0),
        ("without-mlp", 4, 4, 4, 0, 16, 8.0, 0),
    ]
    assert [json.loads(text) for text in found["winners"]] == [[{"training.learning_rate": 0.01, "seeds": 1}]] * 2
    assert found["score"].to_list() == [0.9, 0.9]
    assert codes(study_of(), planted()) == []


def test_of_a_loss_the_lowest_is_the_best() -> None:
    rows = planted(complete_0={"val_loss": 0.01, "val_accuracy": 0.1})
    assert rates_of(budget_of(study_of("val_loss"), rows)) == [[RATES[0]], [RATES[2]]]
    assert codes(study_of("val_loss"), rows) == ["border-optimum"], "0.00105 is 1% of the log range above its low end"


@pytest.mark.parametrize(
    ("bound", "won", "score"), [("val_loss >= 0.15", 1, 0.8), ("val_loss >= 0.25", 0, 0.7), ("val_loss >= 0.5", 0, 0.7)]
)
def test_what_breaks_a_bound_wins_only_where_nothing_keeps_it(bound: str, won: int, score: float) -> None:
    """The losses are .3, .2, .1 and .2: the bound leaves out the best rate, the best three, or every rate."""
    study = parse_study(FILE.replace("METRIC", "val_accuracy") + f"constraints: ['{bound}']\n")
    found = budget_of(study, planted())
    assert (rates_of(found), found["score"].to_list()) == ([[RATES[won]]] * 2, [score] * 2)


def test_a_failed_trial_is_never_the_best_and_makes_the_budgets_unequal() -> None:
    rows = planted(complete_2={"state": "FAIL", "epochs": 2})
    assert rates_of(budget_of(study_of(), rows)) == [[RATES[1]], [RATES[2]]]
    unequal, failed = tuning_warnings(Results(study_of(), *tables(rows)))
    assert (unequal.code, failed.code) == ("unequal-budget", "failed-tuning")
    assert "complete has 3 complete tuning runs (14 epochs), without-mlp has 4 (16)" in unequal.text
    assert "1 of 8 tuning runs failed or diverged: digits complete 1" in failed.text


def test_budgets_are_compared_once_every_tuning_trial_has_ended() -> None:
    assert codes(study_of(), planted(complete_3={"state": "RUNNING", "epochs": 1})) == []


def test_a_row_without_a_complete_trial_is_named() -> None:
    rows = planted(**{f"without_{draw}": {"state": "FAIL"} for draw in range(4)})
    assert codes(study_of(), rows) == ["unequal-budget", "failed-tuning", "no-tuned-row"]


def test_seeds_that_also_train_the_rows_are_named() -> None:
    rows = [*planted(), Row(stage="search", variant="complete", values={"state": "COMPLETE", "epochs": 4})]
    assert codes(study_of(), rows) == []
    assert codes(study_of(), rows, seeds=(2_000_000, 1)) == ["seeds-reused"]


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
    found = budget_of(study_of("val_loss"), rows)
    assert (rates_of(found)[0], found["score"][0]) == ([RATES[1]], 0.0)


def test_a_cell_says_that_its_row_could_not_be_tuned() -> None:
    rows = planted(**{f"without_{draw}": {"state": "FAIL"} for draw in range(4)})
    rows.append(Row(stage="search", variant="complete", values={"state": "COMPLETE", "epochs": 4}))
    trials, reports = tables(rows)
    reports = reports.with_columns(diverged=False, val_accuracy=pl.col("val_accuracy").fill_null(0.9))
    table = comparison(Results(study_of(), trials, reports)).filter(metric="val_accuracy")
    assert dict(table.select("variant", "mean_remark").rows()) == {
        "complete": "",
        "without-mlp": "not trained on 1 of 1 seeds, for which no tuning run is complete",
    }
    waiting = Row(
        stage="tune", variant="without-mlp", values={"state": "RUNNING", "epochs": 1, "training.learning_rate": 0.02}
    )
    assert count_untuned(Results(study_of(), *tables([*rows[:-1], waiting]))) == {}


def test_values_that_were_chosen_on_the_test_split_are_named() -> None:
    rows = planted()
    study = parse_study(FILE.replace("METRIC", "val_accuracy") + "protocol: paper\n")
    trials, reports = tables(rows)
    assert codes(study, rows) == ["tuned-on-test"]
    assert tuning_warnings(Results(study, trials.clear(), reports)) == [], "nothing is chosen yet"


def chosen(study: Study, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the best score of each repetition as `tuning_budget` chooses it; `scores` [repetition, draw].

    Each repetition is a configuration of the row `complete`.
    """
    rows = []
    for (depth, place), score in np.ndenumerate(scores):
        values = {"model.depth": depth, "val_accuracy": float(score), "training.learning_rate": 0.001 + place / 1e4}
        rows.append(Row(stage="tune", variant="complete", values={"state": "COMPLETE", **values}))
    return budget_of(study, rows)["score"].to_numpy()


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
    assert tuning_warnings(Results(parse_study("\n".join(plain)), pl.DataFrame(), pl.DataFrame())) == []


def test_a_complete_trial_without_a_finite_score_counts_as_failed() -> None:
    """As where one of several seeds diverged and `compare.diverged` says what it counts as."""
    rows = planted(complete_2={"val_accuracy": float("nan")})
    found = budget_of(study_of(), rows)
    assert (*found.select("complete", "failed").rows()[0], rates_of(found)[0]) == (3, 1, [RATES[1]])
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


def seeded(scores: dict[str, list[list[float | None]]]) -> tuple[Study, pl.DataFrame, pl.DataFrame]:
    """Return a study with as many seeds as `scores` [values][seeds] has for each row, and both tables."""
    seeds = len(next(iter(scores.values()))[0])
    study = parse_study(FILE.replace("METRIC", "val_accuracy") + f"replicates: {seeds}\n")
    rows, flat = [], []
    for row, table in scores.items():
        for rate, own in zip(RATES, table, strict=False):
            values = {"training.learning_rate": rate, "state": "COMPLETE", "epochs": 4}
            rows.append(Row(stage="tune", variant=row, values=values))
            flat += own
    trials = trials_of(rows).with_columns(replicates=pl.lit(seeds, pl.Int64()))
    reports = reports_of(trials, {"tune": tuple(range(2_000_000, 2_000_000 + seeds))})
    return study, trials, reports.with_columns(val_accuracy=pl.Series(flat, dtype=pl.Float64()))


def test_the_winners_are_those_of_each_seed() -> None:
    table = [[0.5, 0.9, 0.6], [0.7, 0.8, math.nan], [0.6, 0.7, math.nan]]
    study, trials, reports = seeded({"complete": table, "without-mlp": [[0.1, 0.2, math.nan]] * 3})
    budget = tuning_budget(Results(study, trials, reports))
    assert rates_of(budget) == [[RATES[0], RATES[1]], [RATES[0]]]
    assert [winner["seeds"] for winner in json.loads(budget["winners"][0])] == [2, 1]
    assert budget["untuned"].to_list() == [0, 1]
    assert budget["score"][0] == pytest.approx((0.7 + 0.9 + 0.6) / 3)
    assert budget.select("runs", "complete", "failed").rows() == [(9, 7, 2), (9, 6, 3)]
    assert count_untuned(Results(study, trials, reports)) == {("digits", "without-mlp"): 1}
    (text,) = [w.text for w in tuning_warnings(Results(study, trials, reports)) if w.code == "no-tuned-row"]
    assert "No tuning run is complete for digits without-mlp (1 seed)" in text


def test_fewer_tuning_seeds_than_seeds_are_said() -> None:
    study = parse_study(
        FILE.replace("METRIC", "val_accuracy").replace("trials: 4", "trials: 4, replicates: 1") + "replicates: 5\n"
    )
    (luck,) = tuning_warnings(Results(study, *tables(planted())))
    assert luck.code == "tuning-luck"
    assert "5 seeds share 1 tuning seed" in luck.text


def test_a_row_in_several_trials_is_one_with_all_seeds_and_the_mean_size() -> None:
    """Two seeds won with a small network and one with a larger one; the values of the seeds stay apart."""
    study = parse_study(FILE.replace("METRIC", "val_accuracy") + "replicates: 3\n")
    ended = {"state": "COMPLETE", "epochs": 4}
    rows = [
        Row(stage="search", variant="complete", values={**ended, "params": 100, "replicates": 2}),
        Row(stage="search", variant="complete", values={**ended, "params": 160, "replicates": 1, "source": 0}),
    ]
    trials = trials_of(rows)
    listed = [(0, 0, 0, 0.5), (0, 1, 2, 0.7), (1, 0, 1, 0.6)]
    fixed = {"dataset": "digits", "stage": "search", "epoch": 4, "final": True, "counts": True, "diverged": False}
    reports = pl.DataFrame(
        [{**fixed, "trial": t, "replicate": r, "seed": s, "val_accuracy": v} for t, r, s, v in listed],
        schema_overrides=REPORT_COLUMNS,
    )
    (cell,) = comparison(Results(study, trials, reports)).filter(variant="complete").iter_rows(named=True)
    assert (cell["seeds"], cell["mean"], cell["params"]) == (3, pytest.approx(0.6), 120)
    assert "failed-seeds" not in [warning.code for warning in comparison_warnings(Results(study, trials, reports))]
    crashed = trials.with_columns(state=pl.when(pl.col("trial") == 1).then(pl.lit("FAIL")).otherwise("state"))
    (text,) = [w.text for w in comparison_warnings(Results(study, crashed, reports)) if w.code == "failed-seeds"]
    assert text.startswith("1 seed in 1 trial failed for another reason than divergence (complete 1)")
