from __future__ import annotations

import math

import numpy as np
import pytest

from ablate.core.objectives import nondominated
from ablate.results.front.front import front
from ablate.study.sections import Constraint, Objective
from support.planted_study import trial_row, trials_of

ACCURACY = Objective(metric="val_accuracy", direction="maximize", reference=0.0)
LOSS = Objective(metric="val_loss", direction="minimize")
PARAMS = Objective(metric="params", direction="minimize", reference=1e5, log=True)
FLOPS = Objective(metric="flops", direction="minimize")


def brute_force(values: np.ndarray, maximise: list[bool]) -> np.ndarray:
    signed = np.where(maximise, -values, values)
    kept = []
    for row in signed:
        no_worse = (signed <= row).all(axis=1)
        better = (signed < row).any(axis=1)
        kept.append(not (no_worse & better).any())
    return np.array(kept)


@pytest.mark.parametrize("objectives", [(ACCURACY,), (ACCURACY, PARAMS), (ACCURACY, PARAMS, FLOPS), (LOSS, PARAMS)])
@pytest.mark.parametrize("seed", range(5))
def test_nondominated_rows_are_those_of_brute_force_with_ties_and_duplicates(objectives, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 7, (80, len(objectives))).astype(float)
    maximise = [o.direction == "maximize" for o in objectives]
    np.testing.assert_array_equal(nondominated(values, objectives), brute_force(values, maximise))


def test_front_takes_complete_finite_trials_alone_cheapest_first():
    rows = [
        trial_row("digits", 0, params=5000, val_accuracy=0.95),
        trial_row("digits", 1, params=1000, val_accuracy=0.90),
        trial_row("digits", 2, params=100, val_accuracy=0.99, state="PRUNED"),
        trial_row("digits", 3, params=100, val_accuracy=0.99, state="FAIL"),
        trial_row("digits", 4, params=90, val_accuracy=math.nan),
        trial_row("digits", 5, params=None, val_accuracy=0.99),
        trial_row("digits", 6, params=6000, val_accuracy=0.94),
        trial_row("digits", 7, params=1000, val_accuracy=0.90),
        trial_row("mnist", 0, params=9, val_accuracy=0.5),
    ]
    found = front(trials_of(rows), (ACCURACY, PARAMS))
    assert list(zip(found["dataset"], found["trial"], strict=True)) == [
        ("digits", 1),
        ("digits", 7),
        ("digits", 0),
        ("mnist", 0),
    ]


def test_front_is_of_confirmed_trials_by_their_test_metrics_as_soon_as_there_are_some():
    rows = [
        trial_row("digits", 0, params=100, val_accuracy=0.99),
        trial_row("digits", 1, params=100, val_accuracy=0.9, stage="confirm", test_accuracy=0.8),
        trial_row("digits", 2, params=200, val_accuracy=0.8, stage="confirm", test_accuracy=0.9),
        trial_row("digits", 3, params=300, val_accuracy=0.95, stage="confirm", test_accuracy=0.85),
        trial_row("digits", 4, params=50, val_accuracy=0.95, stage="confirm", state="RUNNING"),
        trial_row("mnist", 0, params=100, val_accuracy=0.7),
        trial_row("mnist", 1, params=100, val_accuracy=0.7, stage="confirm", state="RUNNING"),
    ]
    found = front(trials_of(rows), (ACCURACY, PARAMS))
    assert found.select("dataset", "trial", "stage").rows() == [
        ("digits", 1, "confirm"),
        ("digits", 2, "confirm"),
        ("mnist", 0, "search"),
    ]


def test_front_keeps_the_constraints():
    rows = [trial_row("digits", i, params=100 * (i + 1), val_accuracy=0.5 + 0.1 * i) for i in range(5)]
    bounds = (Constraint(metric="params", op="<=", bound=300), Constraint(metric="val_accuracy", op=">=", bound=0.6))
    assert front(trials_of(rows), (ACCURACY, PARAMS), constraints=bounds)["trial"].to_list() == [1, 2]


def test_front_of_nothing_is_an_empty_table_with_the_same_columns():
    empty = trials_of([])
    assert front(empty, (ACCURACY, PARAMS)).schema == empty.schema
    failed = trials_of([trial_row("digits", 0, state="FAIL", val_accuracy=0.5)])
    assert front(failed, (ACCURACY, PARAMS)).height == 0


def test_front_of_ten_thousand_trials_agrees_with_a_sweep():
    rng = np.random.default_rng(0)
    params, accuracy = rng.integers(100, 10**6, 10_000), rng.integers(0, 1000, 10_000) / 1000
    table = trials_of([trial_row("digits", i, params=int(params[i]), val_accuracy=accuracy[i]) for i in range(10_000)])
    found = set(front(table, (ACCURACY, PARAMS))["trial"].to_list())
    best, swept = -1.0, set()
    for size in np.unique(params):
        top = accuracy[params == size].max()
        if top > best:
            best = top
            swept |= set(np.flatnonzero((params == size) & (accuracy == top)).tolist())
    assert found == swept
