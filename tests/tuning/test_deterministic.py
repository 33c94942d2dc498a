"""A deterministic study is the same whoever finishes first, however many run, and wherever a driver dies."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate.core.trial import Decision, TrialState
from ablate.ledger import Ledger, NewTrial, TrialRecord
from ablate.study import Study
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.sampling.suggester import Suggester
from ablate.tuning.state.trial_progress import TrialProgress, steps
from support.fleet import Fleet
from support.ledgers import SHAPE
from support.literal_asha import literal_asha
from support.searches import ONE, TWO, report_at, size_of, study_of, url_in
from support.trials import measure_by

FAST = ["front", "tpe", "nsga2", "qmc", "random", "grid"]
SMALL = {"width": {"int": [8, 32], "step": 8}, "mlp": {"choices": ["none", 64]}, "similarity": "separate"}
FEW = {"epochs": 9, "label_smoothing": {"float": [0.0, 0.3], "step": 0.1}}
BOTH = {"digits": {}, "mnist": {}}


def study_for(name: str, **changes: Any) -> Study:
    """Return a deterministic study with early stopping and confirmation that suits the sampler."""
    fields: dict[str, Any] = {
        "sampler": {"name": name, "startup_trials": 4},
        "scheduler": {"name": "asha"},
        "budget": {"trials": 18},
        "confirm": {"replicates": 2, "top": 3},
        "deterministic": 4,
    }
    if name == "grid":
        fields |= {"model": SMALL, "training": FEW}
        fields["scheduler"] = {"name": "asha"}
    if name == "gp":
        fields["model"] = {"width": {"int": [8, 64], "step": 8}}
        fields["training"] = {"epochs": 9, "learning_rate": {"float": [1e-4, 1e-1], "log": True}}
        fields["budget"] = {"trials": 8}
    return study_of(**(fields | changes))


def fleets(study: Study, folder: Path) -> list[Fleet]:
    """Return one trial at a time, three and eight, each in an order of its own, with and without deaths."""
    slow = study.sampler.name == "gp"
    worlds = [(1, False), (3, True), (8, True)] + [(1, True), (3, False), (8, False)] * (not slow)
    return [Fleet(study, folder / f"{slots}-{dying}", slots=slots, seed=slots, dying=dying) for slots, dying in worlds]


@pytest.mark.services
@pytest.mark.parametrize("objectives", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", [*FAST, "gp"])
def test_the_ledger_is_the_same_at_any_concurrency(tmp_path: Path, name: str, objectives: Any) -> None:
    runs = fleets(study_for(name, objectives=objectives), tmp_path)
    found = [fleet.run() for fleet in runs]
    for fleet, other in zip(runs, found, strict=True):
        assert other == found[0], (fleet.slots, fleet.dying)
        assert fleet.most_flying["digits"] == min(fleet.slots, 4)
    assert sum(fleet.kills for fleet in runs) > 0
    states = {state for _, state, *_ in found[0]["trials"]}
    assert {str(TrialState.COMPLETE), str(TrialState.PRUNED)} <= states
    assert [kind for _, kind, _ in found[0]["notes"]].count("frozen") == 1


@pytest.mark.services
@pytest.mark.parametrize("name", ["front", "tpe", "random"])
def test_without_it_who_finishes_first_is_heard_first(tmp_path: Path, name: str) -> None:
    study = study_for(name, deterministic=None)
    found = [fleet.run() for fleet in fleets(study, tmp_path)]
    assert any(other != found[0] for other in found), "the test above could not fail"


@pytest.mark.services
@pytest.mark.parametrize("scope", ["per_dataset", "total"])
def test_data_sets_share_a_budget_in_the_same_turns(tmp_path: Path, scope: str) -> None:
    """With rows that one data set has none left of, so that the other takes over what it leaves."""
    variants = [{"name": name, "model": {"width": 8 * i}} for i, name in enumerate("abcdefghi", start=1)]
    study = study_for(
        "tpe", datasets=BOTH, model={}, training={"epochs": 3}, budget={"trials": 10, "scope": scope},
        variants=[v | ({"datasets": ["mnist"]} if v["name"] > "c" else {}) for v in variants], deterministic=2,
    )  # fmt: skip
    runs = fleets(study, tmp_path)
    found = [fleet.run() for fleet in runs]
    assert all(other == found[0] for other in found)
    payload = json.dumps({"search_trials": 3, "fingerprint": study.fingerprint()})
    assert ("digits", "exhausted", payload) in found[0]["notes"]
    assert max(fleet.most_flying["digits"] for fleet in runs) == 2


@pytest.mark.services
def test_a_turn_that_must_wait_holds_up_the_next(tmp_path: Path) -> None:
    """Else a shared budget would go to the data set whose trials happen to end early."""
    budget = {"trials": 15, "scope": "total"}
    study = study_for("random", datasets=BOTH, budget=budget, deterministic=2, confirm=None)
    found = [fleet.run() for fleet in fleets(study, tmp_path)]
    assert all(other == found[0] for other in found)
    numbers = [config["key"]["dataset"] for config, *_ in found[0]["trials"]]
    assert (numbers.count("digits"), numbers.count("mnist")) == (8, 7)


@pytest.mark.services
def test_one_at_a_time_is_the_search_that_hears_everything(tmp_path: Path) -> None:
    """With a window of one there is nobody to be blind to: the same study as without the key, run one by one."""
    strict = Fleet(study_for("tpe", deterministic=1), tmp_path / "a", slots=8, seed=1, dying=True).run()
    plain = Fleet(study_for("tpe", deterministic=None), tmp_path / "b", slots=1, seed=2, dying=False).run()
    assert strict == plain


@pytest.mark.services
def test_an_extended_study_is_the_one_that_was_long_from_the_start(tmp_path: Path) -> None:
    long = study_for("tpe", budget={"trials": 18}, confirm=None)
    whole = Fleet(long, tmp_path / "whole", slots=3, seed=1, dying=False).run()
    fleet = Fleet(study_for("tpe", budget={"trials": 7}, confirm=None), tmp_path / "grown", slots=8, seed=2, dying=True)
    for _ in range(40):
        fleet._over()
        if fleet.flying:
            fleet._step(next(iter(fleet.flying)))
    fleet.study = long
    fleet._kill()
    assert fleet.run() == whole


@pytest.fixture
def parallel(tmp_path: Path) -> tuple[Study, list[TrialRecord], list[Any]]:
    """A study of four at a time, run with eight slots: its search trials and its reports."""
    study = study_for("tpe", confirm=None, budget={"trials": 24})
    Fleet(study, tmp_path / "run", slots=8, seed=5, dying=False).run()
    with Ledger.open(url_in(tmp_path / "run")) as ledger:
        found = ledger.snapshot("s")
        return study, found.trials, found.reports


def test_decisions_are_those_of_the_rule_on_the_trials_four_before_and_earlier(
    parallel: tuple[Study, list[TrialRecord], list[Any]],
) -> None:
    _, trials, reports = parallel
    checked = 0
    for trial in trials:
        number = trial.key.number
        rows = [
            r for r in reports if not r.final and not r.diverged and (r.key.number <= number - 4 or r.key == trial.key)
        ]
        rows.sort(key=lambda r: (r.key.number, r.epoch))
        sizes = {t.key.number: math.log10(t.params or 0) for t in trials}
        stream = [(r.key.number, r.epoch, (-r.metrics["val_accuracy"], sizes[r.key.number])) for r in rows]
        expected = literal_asha(stream, reduction=3, first=1, epochs=9)
        own = [(r.decision is Decision.CONTINUE, e) for r, e in zip(rows, expected, strict=True) if r.key == trial.key]
        assert [got for got, _ in own] == [wanted for _, wanted in own], number
        checked += sum(not wanted for _, wanted in own)
    assert checked > 3, "some were stopped"


@pytest.mark.services
def test_suggestions_are_those_of_a_sampler_told_of_the_same_trials(
    parallel: tuple[Study, list[TrialRecord], list[Any]],
) -> None:
    study, trials, reports = parallel
    standings = [TrialProgress.of(t) for t in trials]
    for step in steps(reports, []):
        standings[step.key.number].take(step)
    for number, trial in enumerate(trials):
        suggester = Suggester(study=study, dataset="digits", measure=measure_by(size_of), facts=lambda: SHAPE)
        for step in steps(reports, []):
            if step.key.number < number:
                suggester.curves.add(standings[step.key.number], step)
        for standing in standings[:number]:
            blind = standing.number > number - 4
            suggester.put(replace(standing, state=TrialState.RUNNING) if blind else standing)
        found = suggester.suggest(number)
        assert found is not None
        assert (dict(found.config.parameters), dict(found.sampler_state)) == (
            dict(trial.config.parameters),
            trial.sampler_state,
        )


def test_a_suggestion_waits_for_the_trial_a_window_before(tmp_path: Path) -> None:
    study = study_for("random", scheduler={"name": "none"}, deterministic=2, budget={"trials": 4}, confirm=None)
    fleet = Fleet(study, tmp_path / "run", slots=1, seed=0, dying=False)
    search = fleet.search
    first, second = search.next_trial(), search.next_trial()
    assert first is not None
    assert second is not None
    assert search.next_trial() is None
    for epoch in range(1, 10):
        search.report(second.key, report_at(second, epoch))
    assert search.next_trial() is None, "the second has ended, but the third is made from the first"
    assert not search.finished
    for epoch in range(1, 10):
        search.report(first.key, report_at(first, epoch))
    third, fourth = search.next_trial(), search.next_trial()
    assert [c.key.number for c in (third, fourth) if c] == [2, 3]


def test_a_lane_tells_its_sampler_of_a_trial_once_it_may_be_heard(tmp_path: Path) -> None:
    subsearch = DatasetSearch.of(
        study_for("tpe", deterministic=3), "digits", measure=measure_by(size_of), facts_of=lambda dataset: SHAPE
    )
    for _ in range(5):
        new = subsearch.suggest()
        assert isinstance(new, NewTrial)
        trial = subsearch.add(new)
        trial.means, trial.epoch, trial.state = {"val_accuracy": 0.5}, 9, TrialState.COMPLETE
        subsearch.suggester.curves.observe(trial, {**trial.size, **trial.means})
        subsearch.tell(trial)
    told = [subsearch.suggester.history.get_trial(n).state.name for n in range(5)]
    assert told == ["COMPLETE", "COMPLETE", "RUNNING", "RUNNING", "RUNNING"]
