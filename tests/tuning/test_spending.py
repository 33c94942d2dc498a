"""Searches that end before their trials are spent: GPU hours, money, and trials that would gain too little."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.base.errors import StudyFileError
from ablate.core.trial import TrialState
from ablate.ledger import Ledger
from ablate.results.front.budget import gpu_hours
from ablate.results.trials.results import Results
from ablate.study import MOST_TRIALS, Study, parse_study
from ablate.tuning.recorded import hours_spent, recorded_searches
from ablate.tuning.state.planned import planned_trials
from ablate.tuning.state.trial_progress import TrialProgress
from ablate.tuning.stopping.gain import expected_gain
from support.ledgers import Clock, new_trial
from support.searches import ONE, driving, hold_of, run_all, run_trial, search_of, study_of, url_in

HOUR = 3600.0
TRIAL = 9.0  # GPU seconds of a trial of `run_trial` on one GPU
REFERRED = [
    {"metric": "val_accuracy", "direction": "maximize", "reference": 0.0},
    {"metric": "params", "direction": "minimize", "reference": 100.0},
]


def ended(values: list[tuple[float, int] | None]) -> list[TrialProgress]:
    """Return ended trials of (accuracy, parameters); None was stopped."""
    found = []
    for number, value in enumerate(values):
        accuracy, params = value or (0.99, 1)
        size = {"params": params, "params_body": params, "flops": params}
        trial = TrialProgress(
            config=new_trial(number).config, size=size, sampler_state={}, means={"val_accuracy": accuracy}
        )
        trial.state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        found.append(trial)
    return found


def area(points: list[tuple[float, int]]) -> float:
    """Return the area of (accuracy, 100 - parameters) that points dominate, by a grid of unit parameters."""
    return sum(max((a for a, p in points if p <= column), default=0.0) for column in range(100))


def test_the_expected_gain_is_that_of_all_subsets_or_of_the_last_trials() -> None:
    random = np.random.default_rng(4)
    for late in (0.0, 0.5):
        values: list[tuple[float, int] | None] = [
            (float(random.uniform(0.2, 0.4)) + late * (i > 9), int(random.integers(5, 95))) for i in range(12)
        ]
        values[3] = None
        known = [value for value in values if value is not None]
        lost = []
        for out in itertools.combinations(range(12), 3):
            left = [value for i, value in enumerate(values) if i not in out and value is not None]
            lost.append(1 - area(left) / area(known))
        last = 1 - area([value for value in values[:9] if value is not None]) / area(known)
        found = expected_gain(study_of(objectives=REFERRED), "digits", ended(values), 3)
        assert found == pytest.approx(last if late else np.mean(lost), abs=1e-9 if late else 4 * np.std(lost) / 10)
        assert (last > np.mean(lost)) == bool(late)


def test_with_one_objective_the_gain_is_in_its_unit() -> None:
    values: list[tuple[float, int] | None] = [(0.5, 1), (0.7, 1), (0.6, 1), (0.8, 1)]
    study = study_of(objectives=ONE)
    assert expected_gain(study, "digits", ended(values), 2) == pytest.approx(0.1), "the last two: from .7 to .8"
    assert expected_gain(study, "digits", ended(values[:3]), 2) == math.inf, "before four have ended"
    assert expected_gain(study, "digits", ended([None] * 4), 2) == math.inf, "no trial is complete"


def test_twice_as_many_draws_gain_no_more_than_is_expected() -> None:
    """Of independent draws the mean of the estimates is not below the mean gain (the hypervolume is submodular)."""
    study, estimates, gains = study_of(objectives=REFERRED), [], []
    for seed in range(60):
        random = np.random.default_rng(seed)
        drawn = [(float(random.beta(2, 5)), int(random.integers(5, 95))) for _ in range(40)]
        estimates.append(expected_gain(study, "digits", ended(list(drawn[:30])), 10))
        gains.append(area(drawn) / area(drawn[:30]) - 1)
    error = np.std(np.subtract(estimates, gains)) / math.sqrt(60)
    assert np.mean(estimates) > np.mean(gains) - 2 * error
    assert np.mean(estimates) < 4 * np.mean(gains)


def stopping(trials: int = 100, gain: float | None = 0.02, **changes: Any) -> Study:
    """Return a study that ends when the next 5 trials are expected to gain less than `gain`."""
    stop = {} if gain is None else {"stop": {"gain": gain, "within": 5}}
    return study_of(**({"budget": {"trials": trials, **stop}, "objectives": REFERRED_TWO} | changes))


REFERRED_TWO = [REFERRED[0], {"metric": "params", "direction": "minimize", "log": True, "reference": 1e6}]


def searched(study: Study, folder: Path) -> int:
    """Run a driver until nothing is left; return how many search trials the study has."""
    with driving(study, url_in(folder)) as search:
        run_all(search)
        assert search.finished
        return sum(search.counts()["digits"].values())


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the payloads of the events of a kind."""
    with Ledger.open(url_in(folder)) as ledger:
        return [event.payload for event in ledger.events("s") if event.kind == kind]


def test_a_search_that_pays_no_more_ends_once_and_stays_ended(tmp_path: Path) -> None:
    begun = searched(stopping(), tmp_path)
    (event,) = events(tmp_path, "gain_below")
    assert 10 <= begun < 100
    assert event["search_trials"] == begun
    assert event["expected"] < event["gain"] == 0.02
    for same in (stopping(), stopping(gain=0.05), stopping(trials=60)):
        assert searched(same, tmp_path) == begun
    assert len(events(tmp_path, "gain_below")) == 1
    assert searched(stopping(trials=200), tmp_path) == begun + 5, (
        "asked for more trials: as many as `within`, then again"
    )
    assert [each["trials"] for each in events(tmp_path, "gain_below")] == [100, 200]
    assert searched(stopping(trials=200, gain=0.0001), tmp_path) > begun + 5
    assert searched(stopping(trials=200, gain=None), tmp_path) == 200, "without `stop` the whole budget is spent"


def test_a_killed_driver_ends_the_search_at_the_same_trial(tmp_path: Path) -> None:
    whole = searched(stopping(), tmp_path / "whole") if (tmp_path / "whole").mkdir() is None else 0
    count = 0
    for _ in range(whole):
        with driving(stopping(), url_in(tmp_path)) as search:
            if (config := search.next_trial()) is None:
                break
            run_trial(search, config)
            count += 1
    assert count == whole
    with driving(stopping(), url_in(tmp_path)) as search:
        assert search.next_trial() is None
        assert search.finished
    assert events(tmp_path, "gain_below") == events(tmp_path / "whole", "gain_below")


def test_trials_in_training_are_finished_and_a_deterministic_study_ends_at_any_concurrency(tmp_path: Path) -> None:
    study = stopping(deterministic=4)
    found = {}
    for slots in (1, 4):
        folder = tmp_path / str(slots)
        folder.mkdir()
        with driving(study, url_in(folder)) as search:
            flying = [config for _ in range(slots) if (config := search.next_trial()) is not None]
            while flying:
                run_trial(search, flying.pop(0))
                while len(flying) < slots and (config := search.next_trial()) is not None:
                    flying.append(config)
            assert search.finished
        found[slots] = events(folder, "gain_below")
    assert found[1] == found[4] != []


def hours_in(study: Study, folder: Path) -> float:
    """Return the GPU hours of a study, which the driver and the page count separately."""
    with Ledger.open(url_in(folder)) as ledger:
        snapshot = ledger.snapshot("s")
    here = recorded_searches(study, snapshot).values()
    assert gpu_hours(Results.of(study, snapshot)) == pytest.approx(hours_spent(study, here))
    return hours_spent(study, here)


def test_gpu_hours_end_the_search_and_count_each_driver_by_its_gpus(tmp_path: Path) -> None:
    limit = 5.5 * TRIAL / HOUR
    study = study_of(budget={"trials": 100, "gpu_hours": limit}, confirm={"replicates": 1})
    clock = Clock()
    with Ledger.open(url_in(tmp_path), clock=clock, monotonic=clock) as ledger:
        for gpus, trials in ((0.5, 4), (2.0, 1)):
            with hold_of(study, ledger) as writer:
                search = search_of(study, writer, ledger, gpus_per_trial=gpus)
                for _ in range(trials):
                    run_trial(search, search.next_trial())
        assert hours_in(study, tmp_path) == pytest.approx((4 * 0.5 + 2) * TRIAL / HOUR)
        with hold_of(study, ledger) as writer:
            search = search_of(study, writer, ledger)
            flying = [search.next_trial(), search.next_trial()]
            assert search.next_trial() is None, "two trials in training are expected to spend the rest"
            for config in flying:
                run_trial(search, config)
            confirmed = run_all(search)
            assert search.finished
    assert {config.stage for config in confirmed} == {"confirm"}, "confirmation is not part of the budget"
    assert hours_in(study, tmp_path) == pytest.approx(6 * TRIAL / HOUR)
    (event,) = events(tmp_path, "hours_up")
    assert (event["search_trials"], event["used"]) == (7, pytest.approx(6 * TRIAL / HOUR))
    with driving(study, url_in(tmp_path)) as search:
        assert search.next_trial() is None
        assert search.finished
    longer = study_of(budget={"trials": 100, "gpu_hours": 7 * TRIAL / HOUR}, confirm={"replicates": 1})
    with driving(longer, url_in(tmp_path)) as search:
        assert search.next_trial().stage == "search"


def test_trials_that_end_sooner_than_expected_leave_their_hours_to_others(tmp_path: Path) -> None:
    study = study_of(
        budget={"trials": 100, "gpu_hours": 2.9 * TRIAL / HOUR}, scheduler={"name": "asha"}, objectives=ONE
    )
    with driving(study, url_in(tmp_path)) as search:
        run_trial(search, search.next_trial())
        flying = [search.next_trial(), search.next_trial()]
        assert search.next_trial() is None
        for config in flying:
            run_trial(search, config, lambda config, epoch: 0.01)
        assert search.next_trial() is not None
    assert events(tmp_path, "hours_up") == []


def test_money_is_hours_at_a_price() -> None:
    head = "study: s\ndatasets: [digits]\nbudget: "
    assert parse_study(head + "{money: 10, price: 2.5}").budget.most_hours == 4
    assert parse_study(head + "{money: 10, price: 2.5, gpu_hours: 3}").budget.most_hours == 3
    assert parse_study(head + "{price: 2.5}").budget.most_hours is None


@pytest.mark.parametrize(
    ("budget", "place", "rule"),
    [
        ("{stop: {gain: nan}}", "budget.stop.gain = 'nan'", "valid number"),
        ("{stop: {gain: .nan}}", "budget.stop.gain = nan", "finite"),
        ("{stop: {gain: 0}}", "budget.stop.gain = 0", "greater than 0"),
        ("{stop: {gain: 2}}", "budget.stop.gain = 2.0", "a share of the hypervolume, below 1, not percent: 0.02?"),
        ("{stop: {gain: true}}", "budget.stop.gain = True", "valid number"),
        ("{stop: {gain: 0.1, within: 0}}", "budget.stop.within = 0", "greater than or equal to 2"),
        ("{stop: {gain: 0.1, witin: 9}}", "budget.stop.witin", "Did you mean 'within'?"),
        ("{stop: {within: 9}}", "budget.stop.gain", "required"),
        ("{gpu_hours: -1}", "budget.gpu_hours = -1", "greater than 0"),
        ("{gpu_hours: .inf}", "budget.gpu_hours = inf", "finite"),
        ("{money: 10}", "budget.money = 10.0", "money needs `budget.price`, the price of one GPU hour"),
        ("{money: 10, price: 0}", "budget.price = 0", "greater than 0"),
        ("{gpu_hours: 1}\ndeterministic: 4", "budget.gpu_hours = 1.0", "cannot depend on how long training takes"),
        (
            "{stop: {gain: 0.1}}\nvariants: [{name: a}, {name: b}]\ncompare: {baseline: a}",
            "budget.stop",
            "a comparison trains a fixed list, which no expected gain ends",
        ),
    ],
)
def test_a_hostile_budget_is_refused_in_one_line(budget: str, place: str, rule: str) -> None:
    with pytest.raises(StudyFileError) as caught:
        parse_study(f"study: s\ndatasets: [digits]\nbudget: {budget}", "f.yaml")
    (line,) = str(caught.value).splitlines()
    assert line.startswith("f.yaml:3: ")
    assert place in line
    assert rule in line


TIME_ALONE = """\
study: s
trainable: mine:train
config: {x: {choices: [1, 2, 3]}}
objectives: [{metric: val_loss, direction: minimize}]
"""


@pytest.mark.parametrize("limit", ["wall_clock: 15m", "gpu_hours: 2", "money: 5, price: 2"])
def test_time_hours_or_money_decide_alone_where_no_number_of_trials_is_given(limit: str) -> None:
    def budget(written: str, rest: str = "") -> Any:
        return parse_study(f"{TIME_ALONE}budget: {{{written}}}\n{rest}").budget

    assert not budget(limit).counts
    assert [budget(text).trials for text in (f"trials: 7, {limit}", "scope: total", "price: 2")] == [7, 24, 24]
    open_space = TIME_ALONE.replace("{choices: [1, 2, 3]}", "{float: [0, 1]}")
    plans = [planned_trials(parse_study(f"{text}budget: {{{limit}}}\n")) for text in (TIME_ALONE, open_space)]
    assert plans == [{"data": 3}, {"data": MOST_TRIALS}]
    compared = "trainable: mine:train\nvariants: [{name: a}, {name: b}]\ncompare: {baseline: a, metrics: [val_loss]}\n"
    for written in (limit, "price: 2"):  # a comparison trains its whole design
        assert not parse_study(f"study: c\n{compared}budget: {{{written}}}\n").budget.counts


def test_a_search_of_gpu_hours_alone_goes_on_after_the_default_number_of_trials(tmp_path: Path) -> None:
    study = study_of(objectives=ONE, budget={"gpu_hours": 40 * TRIAL / HOUR}, scheduler={"name": "none"}, confirm=None)
    assert 38 <= searched(study, tmp_path) <= 40
