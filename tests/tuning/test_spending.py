"""Searches that end before their trials are spent: by GPU hours or money."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import StudyFileError
from ablate.ledger import Ledger
from ablate.results.front.budget import gpu_hours
from ablate.results.trials.results import Results
from ablate.study import MOST_TRIALS, Study, parse_study
from ablate.tuning.recorded import hours_spent, recorded_searches
from ablate.tuning.state.planned import planned_trials
from support.ledgers import Clock
from support.searches import ONE, driving, hold_of, run_all, run_trial, search_of, study_of, url_in

HOUR = 3600.0
TRIAL = 9.0  # GPU seconds of a trial of `run_trial` on one GPU


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
        ("{gpu_hours: -1}", "budget.gpu_hours = -1", "greater than 0"),
        ("{gpu_hours: .inf}", "budget.gpu_hours = inf", "finite"),
        ("{money: 10}", "budget.money = 10.0", "money needs `budget.price`, the price of one GPU hour"),
        ("{money: 10, price: 0}", "budget.price = 0", "greater than 0"),
        ("{gpu_hours: 1}\ndeterministic: 4", "budget.gpu_hours = 1.0", "cannot depend on how long training takes"),
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
