from __future__ import annotations

import math

import moocore
import numpy as np
import pytest

from ablate.core.objectives import nondominated
from ablate.results.front.front import front
from ablate.results.front.hypervolume import dominated_volume, hypervolume
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


def test_hypervolume_is_the_area_of_the_staircase_with_a_log_axis():
    rows = [
        trial_row("digits", 0, params=1_000, val_accuracy=0.5),
        trial_row("digits", 1, params=10_000, val_accuracy=0.8),
        trial_row("digits", 2, params=10_000, val_accuracy=0.7),
        trial_row("digits", 3, params=1_000_000, val_accuracy=0.99),
    ]
    found = hypervolume(trials_of(rows), (ACCURACY, PARAMS))
    assert found.value == pytest.approx(1 * 0.5 + 1 * 0.8)
    assert found.derived == ()
    assert "params in log10" in found.rule
    assert "as the study file declares" in found.rule


@pytest.mark.parametrize("count", [1, 2, 5])
def test_volume_in_three_dimensions_is_inclusion_and_exclusion_of_boxes(count):
    rng = np.random.default_rng(count)
    values = rng.uniform(0, 1, (count, 3))
    objectives = tuple(Objective(metric=f"val_{name}", direction="minimize") for name in "abc")
    expected = 0.0
    for chosen in range(1, 2**count):
        members = values[[i for i in range(count) if chosen >> i & 1]]
        expected += (-1) ** (len(members) + 1) * float(np.prod(1.2 - members.max(axis=0)))
    assert dominated_volume(values, objectives, [1.2] * 3) == pytest.approx(expected)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_point_with_a_missing_number_adds_no_volume(count):
    objectives = [LOSS] * count
    values = np.random.default_rng(count).uniform(size=(6, count))
    lacking = values.copy()
    lacking[2, 0] = np.nan
    expected = dominated_volume(np.delete(values, 2, axis=0), objectives, [1.0] * count)
    assert dominated_volume(lacking, objectives, [1.0] * count) == expected


def test_derived_reference_lies_a_tenth_of_the_range_beyond_the_worst_complete_trial():
    accuracy = Objective(metric="val_accuracy", direction="maximize")
    params = Objective(metric="params", direction="minimize", log=True)
    rows = [
        trial_row("digits", 0, params=100, val_accuracy=0.5),
        trial_row("digits", 1, params=10_000, val_accuracy=0.9),
        trial_row("digits", 2, params=10**9, val_accuracy=0.01, state="PRUNED"),
    ]
    found = hypervolume(trials_of(rows), (accuracy, params))
    assert found.reference == pytest.approx({"val_accuracy": 0.46, "params": 10**4.2})
    assert found.derived == ("val_accuracy", "params")
    assert found.value == pytest.approx(2 * 0.04 + 0.2 * 0.44)
    assert "no reference for val_accuracy, params" in found.rule


def test_hypervolume_of_nothing_and_of_one_trial():
    assert math.isnan(hypervolume(trials_of([]), (ACCURACY, PARAMS)).value)
    one = trials_of([trial_row("digits", 0, params=1000, val_accuracy=0.5)])
    assert hypervolume(one, (ACCURACY, PARAMS)).value == pytest.approx(2 * 0.5)


def test_hypervolume_refuses_several_data_sets_and_counts_a_zero_under_a_logarithm():
    two = trials_of([trial_row("digits", 0, val_accuracy=0.5), trial_row("mnist", 0, val_accuracy=0.5)])
    with pytest.raises(ValueError, match="belongs to one data set, got digits, mnist"):
        hypervolume(two, (ACCURACY, PARAMS))
    assert dominated_volume(np.array([[0.0]]), (PARAMS,), [10.0]) == pytest.approx(13), "from 10 to 1e-12"


def test_volume_agrees_with_moocore_on_the_filtered_set():
    rng = np.random.default_rng(3)
    values = rng.uniform(size=(60, 2))
    objectives = (ACCURACY, Objective(metric="val_loss", direction="minimize"))
    signed = np.stack([-values[:, 0], values[:, 1]], axis=1)
    expected = moocore.hypervolume(moocore.filter_dominated(signed), ref=[0, 1])
    assert dominated_volume(values, objectives, [0, 1]) == pytest.approx(expected)


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
