"""The rules of objectives, against closed forms and brute force."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from ablate.base.errors import StudyFileError
from ablate.core.objectives import (
    COST_METRICS,
    SIZE_METRICS,
    STATE_ORDER,
    TAKEN,
    constraint_text,
    count_states,
    given_for,
    is_higher_better,
    is_share,
    loss,
    may_stand,
    mean,
    means,
    nondominated,
    on_front,
    on_test,
    on_validation,
    ranked,
    signed,
    stopped_text,
    violation,
)
from ablate.core.trial import TrialState
from ablate.engine.models.size import NetworkSize
from ablate.results.trials.tables import TRIAL_COLUMNS
from ablate.study import parse_study
from ablate.study.sections import Constraint, Objective
from support.paths import REPOSITORY

ACCURACY = Objective(metric="val_accuracy", direction="maximize")
LOSS = Objective(metric="val_loss", direction="minimize", log=True)
PARAMS = Objective(metric="params", direction="minimize", log=True)


def test_a_mean_over_replicates_is_nan_as_soon_as_one_has_no_finite_value() -> None:
    assert mean([0.25, 0.5, 0.75]) == 0.5
    for hidden in (math.nan, None):
        assert math.isnan(mean([0.25, hidden, 0.75]))
    assert math.isnan(mean([]))
    assert mean([1.0, math.inf]) == math.inf
    replicates = [{"a": 1.0, "b": 2.0}, {"c": 5.0, "a": 3.0}]
    found = means(replicates)
    assert (list(found), found["a"]) == (["a", "b", "c"], 2.0)
    assert math.isnan(found["b"])
    assert math.isnan(found["c"])
    assert means([]) == {}


def test_a_loss_is_smaller_where_the_value_is_better_and_keeps_what_no_logarithm_has() -> None:
    assert (signed(ACCURACY, 0.75), signed(PARAMS, 0.75)) == (-0.75, 0.75)
    assert (loss(ACCURACY, 0.75), loss(PARAMS, 1000.0)) == (-0.75, 3.0)
    assert (loss(LOSS, 0.0), loss(LOSS, 1e-13), loss(LOSS, 1e-11)) == (-12.0, -12.0, -11.0)
    assert math.isnan(loss(LOSS, math.nan))
    assert loss(Objective(metric="val_score", direction="maximize", log=True), 100.0) == -2.0


def test_a_violation_is_the_gap_as_a_share_of_the_bound_and_nan_breaks_it() -> None:
    most = Constraint(metric="params", op="<=", bound=200.0)
    least = Constraint(metric="val_accuracy", op=">=", bound=0.5)
    zero = Constraint(metric="val_loss", op="<=", bound=0.0)
    assert [violation(most, value) for value in (100.0, 200.0, 300.0)] == [-0.5, 0.0, 0.5]
    assert [violation(least, value) for value in (0.75, 0.5, 0.25)] == [-0.5, 0.0, 0.5]
    assert violation(zero, 3.0) == 3.0
    assert [violation(each, math.nan) for each in (most, least, zero)] == [1.0] * 3
    assert [constraint_text(each) for each in (most, least)] == ["params <= 200", "val_accuracy >= 0.5"]


def test_the_front_is_that_of_brute_force_over_complete_finite_trials_that_keep_the_constraints() -> None:
    rng = np.random.default_rng(5)
    states = rng.choice([str(state) for state in TrialState], 200, p=[0.05, 0.05, 0.7, 0.1, 0.1]).tolist()
    accuracy = rng.integers(0, 9, 200) / 8.0
    params = rng.integers(1, 9, 200) * 1000.0
    accuracy[rng.random(200) < 0.1] = math.nan
    params[rng.random(200) < 0.1] = math.inf
    columns = {"val_accuracy": accuracy.tolist(), "params": params.tolist()}
    bound = Constraint(metric="params", op="<=", bound=6000.0)
    places = range(200)
    may = [states[i] == "COMPLETE" and math.isfinite(accuracy[i]) and params[i] <= 6000 for i in places]
    beaten = [
        any(
            may[j] and accuracy[j] >= accuracy[i] and params[j] <= params[i]
            and (accuracy[j], params[j]) != (accuracy[i], params[i])
            for j in places
        )
        for i in places
    ]  # fmt: skip
    objectives = (ACCURACY, PARAMS)
    assert may_stand(objectives, (bound,), states, columns.__getitem__) == may
    found = on_front(objectives, (bound,), states, columns.__getitem__)
    assert found == [m and not b for m, b in zip(may, beaten, strict=True)]
    assert sum(found) > 1


def test_values_on_a_log_axis_are_compared_as_they_are() -> None:
    close = math.nextafter(0.001, 0.0)
    assert math.log10(close) == math.log10(0.001)
    assert nondominated([(0.001, 1.0), (close, 1.0), (0.001, 0.5)], (LOSS, PARAMS)) == [False, True, True]
    assert nondominated([(0.0,), (-1.0,), (-1.0,)], (LOSS,)) == [False, True, True]
    assert nondominated([], (LOSS,)) == []
    assert nondominated([(), ()], ()) == [False, False]


def test_the_size_metrics_are_the_fields_of_a_size_and_the_states_those_of_a_trial() -> None:
    assert NetworkSize._fields == SIZE_METRICS
    assert sorted(STATE_ORDER) == sorted(state.value for state in TrialState)
    ended = [TrialState(state).finished for state in STATE_ORDER]
    assert ended == sorted(ended, reverse=True)
    counts = count_states([TrialState.WAITING, "FAIL", TrialState.FAIL])
    assert list(counts.items()) == [("COMPLETE", 0), ("PRUNED", 0), ("FAIL", 2), ("RUNNING", 0), ("WAITING", 1)]


def test_no_cost_of_a_users_size_has_the_name_of_another_column() -> None:
    assert set(TAKEN) == set(TRIAL_COLUMNS) - set(SIZE_METRICS)


def test_a_metric_of_the_test_split_answers_for_that_of_the_validation_split() -> None:
    for name in ("accuracy", "val_bleu", "test_loss"):
        assert on_test(f"val_{name}") == f"test_{name}"
        assert on_validation(f"test_{name}") == f"val_{name}"
    for other in ("params", "train_loss", "wall_seconds"):
        assert (on_test(other), on_validation(other)) == (other, other)
    assert [is_share(name) for name in ("val_accuracy", "test_accuracy", "val_loss")] == [True, True, False]


RULES = {
    r"endswith\(\"accuracy\"\)": {"core/objectives.py"},
    r"\"val_\", \"test_\"|\"test_\", \"val_\"|\"test_\" \+": {"core/objectives.py"},
    r"log10\(": {"core/objectives.py", "results/rendering/numbers.py"},
    r"moocore\.is_nondominated|library\.is_nondominated": {"core/objectives.py"},
    r"== \"(maximize|minimize)\"": {"core/objectives.py"},
    r"\.bound\b": {"core/objectives.py"},
    r"\"params_body\"": {"core/objectives.py", "results/trials/tables.py", "ledger/records.py", "ledger/schema.py",
                         "ledger/writes.py", "results/rendering/numbers.py", "study/campaign_sections.py"},
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_written_in_one_place(rule: str) -> None:
    package = REPOSITORY / "ablate"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(rule, path.read_text(encoding="utf-8"))
    }
    assert found <= RULES[rule]
    assert COST_METRICS[:-1] == SIZE_METRICS


DIRECTIONS = {
    True: "val_auc test_f1 val/acc val.acc val-acc val_acc1 val_acc@5 val_mAP@0.5 val_map50 val_r2 val_r2_score val_F1"
    " val_f1_macro train_recall val_precision_at_10 val_top5_accuracy bleu val_precision_recall_auc iou",
    False: "val_loss train_rmse val_mae val_wer val_logloss val_log_loss val_perplexity val_error_rate loss2 nll.loss",
    None: "val_loss_accuracy train_loss_recall val_map_size val_maps val_f10 val_answer val_neg_loss val_mape params"
    " val_accuracy_gap val_myaccuracy val_closs wall_seconds val_score val_r22 val_ val_mIoU",
}


@pytest.mark.parametrize("higher", DIRECTIONS)
def test_whole_words_of_a_name_say_the_direction_unless_they_disagree(higher: bool | None) -> None:
    names = DIRECTIONS[higher].split()
    assert {name: is_higher_better(name, ()) for name in names} == dict.fromkeys(names, higher)


def test_the_better_direction_is_that_of_the_objective_or_of_the_name() -> None:
    bleu = Objective(metric="val_bleu", direction="maximize")
    odd = Objective(metric="val_loss", direction="maximize")
    known = {name: is_higher_better(name, [bleu]) for name in ("val_bleu", "test_bleu", "test_accuracy", "val_loss")}
    assert known == {"val_bleu": True, "test_bleu": True, "test_accuracy": True, "val_loss": False}
    assert is_higher_better("test_loss", [odd]) is True
    assert is_higher_better("val_bleu", [LOSS]) is True
    assert is_higher_better("test_auc", [Objective(metric="val_auc", direction="minimize")]) is False


def test_a_study_may_leave_the_direction_to_the_name_and_is_the_same_study() -> None:
    text = "study: s\ntrainable: mine:train\nconfirm: null\nobjectives: [{{metric: {}}}]\n"
    short, long = (
        parse_study(text.format(f"val_auc{more}"), known_good=True) for more in ("", ", direction: maximize")
    )
    assert short == long
    assert short.fingerprint() == long.fingerprint()
    for metric in ("val_score", "val_loss_accuracy", "params"):
        with pytest.raises(
            StudyFileError, match=r"objectives\.0\.direction: .* write `direction: maximize` or"
        ) as told:
            parse_study(text.format(metric))
        assert len(told.value.faults) == 1
    with pytest.raises(StudyFileError) as told:
        parse_study(text.format("score"))
    assert {fault.path for fault in told.value.faults} <= {"objectives.0.metric", "objectives.0.direction"}


def test_a_value_for_a_validation_metric_is_that_of_its_test_metric() -> None:
    assert given_for({"val_loss": 1.0}, "test_loss") == 1.0
    assert given_for({"val_loss": 1.0, "test_loss": 2.0}, "test_loss") == 2.0
    assert given_for({"test_loss": 2.0}, "val_loss") is None


def test_constraints_come_first_wherever_trials_are_ordered() -> None:
    size, error = Constraint(metric="params", op="<=", bound=100), Constraint(metric="val_loss", op="<=", bound=0.5)
    trials = [  # in the right order; the sum of relative violations decides before the objectives
        ("COMPLETE", 100, 0.4),
        ("COMPLETE", 90, 0.5),
        ("COMPLETE", 120, 0.5),
        ("COMPLETE", 110, 0.6),  # 0.1 + 0.2
        ("COMPLETE", 200, 0.1),
        ("COMPLETE", 10, math.nan),
        ("PRUNED", 50, 0.2),
        ("PRUNED", 300, 0.1),
        ("FAIL", 50, 0.1),
        ("RUNNING", 50, 0.05),
    ]
    loss_only = [Objective(metric="val_loss", direction="minimize")]
    for order in (list(range(len(trials))), list(range(len(trials)))[::-1], [7, 2, 9, 0, 4, 5, 1, 8, 3, 6]):
        own = [trials[i] for i in order]
        table = {"params": [float(t[1]) for t in own], "val_loss": [t[2] for t in own]}
        places = ranked(loss_only, [size, error], [t[0] for t in own], table.__getitem__)
        assert [order[place] for place in places] == list(range(len(trials)))


def test_of_several_objectives_the_fronts_come_one_after_the_other() -> None:
    rng = np.random.default_rng(3)
    table = {"val_accuracy": rng.integers(0, 9, 60) / 9, "params": rng.integers(1, 9, 60) * 10.0}
    table = {name: values.tolist() for name, values in table.items()}
    places = ranked([ACCURACY, PARAMS], [], ["COMPLETE"] * 60, table.__getitem__)
    left, expected = set(range(60)), []
    while left:
        rows = {i: (table["val_accuracy"][i], table["params"][i]) for i in left}
        best = [
            i for i, (a, p) in rows.items() if not any(b >= a and q <= p and (b, q) != (a, p) for b, q in rows.values())
        ]
        expected += sorted(best, key=lambda i: (-rows[i][0], i))
        left -= set(best)
    assert places == expected
    assert ranked([ACCURACY], [], [], lambda name: []) == []


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (["PRUNED"] * 17 + ["COMPLETE"] * 3, "of 17 trials that kept `params <= 100` at their last report, 17 were"),
        (["COMPLETE"] + ["PRUNED"] * 16 + ["COMPLETE"] * 3, "of 17 trials that kept `params <= 100` at their last"),
        (["FAIL"] * 17 + ["PRUNED"] * 3, ""),
    ],
)
def test_what_part_early_stopping_had_in_an_empty_front_is_said(states: list[str], said: str) -> None:
    bound = Constraint(metric="params", op="<=", bound=100)
    found = stopped_text([bound], states, lambda name: [50.0] * 17 + [200.0] * 3)
    assert found.startswith(said) if said else not found
    assert stopped_text([], states, lambda name: []) == ""
