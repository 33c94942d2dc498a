"""What is given and observed reaches Optuna as by its own queue, and a crash anywhere changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from ablate.core.trial import Decision, TrialState
from ablate.ledger import Ledger, StudyWriter
from ablate.ledger.requests import ANSWERED, ENQUEUE, PRUNE, RETRY, find_unanswered
from ablate.study import Study
from ablate.tuning import SamplerTraits, Search
from ablate.tuning.recorded import recorded_searches
from ablate.tuning.warm_start import WARM_START, find_observations
from support.ledgers import Clock
from support.searches import (
    ONE,
    TWO,
    CrashError,
    hold_of,
    notes,
    opened,
    report_at,
    run_all,
    run_trial,
    search_of,
    stored,
    study_of,
    url_in,
)

SPACE: dict[str, Any] = {
    "model": {"width": {"int": [8, 64], "step": 8}, "mlp": {"choices": ["none", 16, 64]}},
    "training": {"epochs": 3, "learning_rate": {"float": [1e-4, 1e-1], "log": True}},
}
TPE = {"name": "tpe", "startup_trials": 4}


def asked(folder: Path, command: str, dataset: str = "digits", **payload: Any) -> None:
    with Ledger.open(url_in(folder)) as ledger:
        ledger.request("s", {"command": command, "message": command, **payload}, dataset=dataset)


def small(**changes: Any) -> Study:
    return study_of(**(SPACE | {"objectives": ONE, "sampler": TPE, "budget": {"trials": 8}} | changes))


def oracle(search: Search, number: int, fixed: dict[str, Any]) -> dict[str, Any]:
    """Return what Optuna suggests for a trial of its own queue, with the search's history and the same sampler."""
    suggester = search._subsearches["digits"].suggester
    study = optuna.create_study(direction="minimize", sampler=suggester._sampler(number, 0, {}, fixed))
    study.add_trials(suggester.history.get_all_trials(0))
    study.enqueue_trial(fixed)
    trial = study.ask()
    for name, distribution in suggester.dimensions.distributions.items():
        trial._suggest(name, distribution)
    return suggester.dimensions.decode(trial.params)


@pytest.mark.parametrize("given", [{"model.width": 24}, {"model.mlp": 16, "training.learning_rate": 0.003}])
def test_a_given_configuration_is_completed_as_by_optuna(tmp_path: Path, given: dict[str, Any]) -> None:
    with opened(small(), tmp_path) as (search, _, _):
        for _ in range(6):
            config = search.next_trial()
            assert config is not None
            run_trial(search, config)
        wanted = oracle(search, 6, search._subsearches["digits"].suggester.dimensions.encode(given))
        asked(tmp_path, ENQUEUE, parameters=given)
        config = search.next_trial()
        assert config is not None
        assert dict(config.parameters) == wanted
        assert dict(config.parameters).items() >= given.items()


@pytest.mark.parametrize("name", ["front", "tpe", "nsga2", "random", "qmc", "grid"])
def test_every_sampler_takes_what_is_given_and_repeats_nothing(tmp_path: Path, name: str) -> None:
    training = {"epochs": 3, "learning_rate": {"choices": [1e-3, 1e-2]}}
    study = small(sampler={"name": name, "startup_trials": 3}, training=training, budget={"trials": 60})
    asked_for = [{"model.width": 64}, {"model.width": 8, "model.mlp": "none", "training.learning_rate": 1e-2}]
    with opened(study, tmp_path) as (search, _, _):
        for given in (*asked_for, asked_for[1]):
            asked(tmp_path, ENQUEUE, parameters=given)
        done = run_all(search)
    found = [tuple(config.parameters.values()) for config in done]
    assert len(found) == len(set(found)) == 8 * 3 * 2, "the whole space, each once"
    assert done[0].parameters["model.width"] == 64
    assert dict(done[1].parameters) == asked_for[1]
    refused = [payload["refused"] for _, payload in notes(tmp_path, ANSWERED) if "refused" in payload]
    assert refused == ["it is in the study already"]


def test_what_is_given_and_cannot_be_trained_is_refused_and_the_search_goes_on(tmp_path: Path) -> None:
    with opened(small(constraints=["params <= 3000"]), tmp_path) as (search, _, _):
        asked(tmp_path, ENQUEUE, parameters={"model.width": 64, "model.mlp": 16, "training.learning_rate": 0.01})
        assert len(run_all(search)) == 8
    ((_, payload),) = notes(tmp_path, ANSWERED)
    assert payload["refused"] == "it cannot be trained because of the constraint params <= 3000"


def test_a_confirmation_is_not_pruned_whoever_asks(tmp_path: Path) -> None:
    with opened(small(budget={"trials": 2}, confirm={"replicates": 1}), tmp_path) as (search, _, _):
        while (config := search.next_trial()) is not None and config.stage == "search":
            run_trial(search, config)
        assert config is not None
        asked(tmp_path, PRUNE, trial=config.key.number)
        assert run_trial(search, config) is Decision.CONTINUE
        run_all(search)
        assert search.finished
    assert {trial.state for trial in stored(tmp_path)} == {TrialState.COMPLETE}
    with opened(small(budget={"trials": 2}, confirm={"replicates": 1}), tmp_path) as (search, _, _):
        assert search.next_trial() is None
    ((_, payload),) = notes(tmp_path, ANSWERED)
    assert "Only a trial that has not is pruned" in payload["refused"]


def test_the_data_set_that_is_asked_for_has_the_turn(tmp_path: Path) -> None:
    study = small(datasets={"digits": {}, "mnist": {}}, budget={"trials": 3})
    with opened(study, tmp_path) as (search, _, _):
        first = search.next_trial()
        asked(tmp_path, ENQUEUE, "digits", parameters={"model.width": 16})
        second, third = search.next_trial(), search.next_trial()
    assert first is not None
    assert second is not None
    assert third is not None
    assert [c.key.dataset for c in (first, second, third)] == ["digits", "digits", "mnist"]
    assert second.parameters["model.width"] == 16


START = [{"model.width": 40}, {"model.width": 48, "model.mlp": 64}]


@pytest.mark.parametrize("slots", [1, 3])
def test_a_deterministic_study_starts_the_same_at_any_concurrency(tmp_path: Path, slots: int) -> None:
    study = small(start=START, deterministic=3, budget={"trials": 9})

    def made(folder: Path, slots: int) -> list[dict[str, Any]]:
        folder.mkdir()
        with opened(study, folder) as (search, _, _):
            flying: list[Any] = []
            while True:
                while len(flying) < slots and (config := search.next_trial()) is not None:
                    flying.append(config)
                if not flying:
                    break
                run_trial(search, flying.pop())
        return [dict(trial.config.parameters) for trial in stored(folder)]

    found = made(tmp_path / "it", slots)
    assert [parameters["model.width"] for parameters in found[:2]] == [40, 48]
    assert len(found) == 9
    assert found == made(tmp_path / "two", 2)


def drive(folder: Path, study: Study, *, left: int | None = None, broken: bool = True) -> bool:
    """Drive a study one trial at a time; with `left`, the driver dies before that write. Return whether it ended.

    While it is `broken`, trial 1 fails.
    """
    clock = Clock()
    with Ledger.open(url_in(folder), clock=clock, monotonic=clock) as ledger:
        writer = hold_of(study, ledger)
        if left is not None:
            _mortal(writer, left)
        search = search_of(study, writer, ledger)
        try:
            while (config := search.next_trial()) is not None:
                _train(search, config, broken)
        except CrashError:
            writer._lost = True  # kill -9 releases nothing
            return False
        finally:
            writer.release()
        return True


def _mortal(writer: StudyWriter, left: int) -> None:
    write = writer._write

    def guarded(*arguments: Any) -> Any:
        nonlocal left
        if left == 0:
            raise CrashError
        left -= 1
        return write(*arguments)

    writer._write = guarded  # type: ignore[method-assign]


def _train(search: Search, config: Any, broken: bool) -> None:
    if broken and config.key.number == 1:
        search.fail(config.key, "once")
        return
    for epoch in range(1, config.epochs + 1):
        if search.report(config.key, report_at(config, epoch)).value == "STOP":
            return


ENQUEUED = [{"model.width": 56}, {"model.width": 8, "model.mlp": 64, "training.learning_rate": 0.02}]


def outcome(folder: Path) -> list[tuple[Any, ...]]:
    trials = [(dict(t.config.parameters), t.state, t.epochs_done, t.sampler_state, t.error) for t in stored(folder)]
    return [*trials, *(tuple(sorted(p.items())) for _, p in notes(folder, ANSWERED))]


def test_a_driver_that_dies_before_any_write_carries_out_each_request_once(tmp_path: Path) -> None:
    study = small(start=[{"model.width": 64}])

    def prepared(folder: Path) -> Path:
        folder.mkdir()
        drive(folder, small(budget={"trials": 2}, start=[{"model.width": 64}]), left=4)
        for parameters in ENQUEUED:
            asked(folder, ENQUEUE, parameters=parameters)
        return folder

    whole = prepared(tmp_path / "whole")
    assert drive(whole, study)
    assert outcome(whole)[1][1] is TrialState.FAIL
    asked(whole, RETRY, trial=1)
    assert drive(whole, study, broken=False)
    wanted = outcome(whole)
    assert [state for _, state, *_ in wanted[:8]] == [TrialState.COMPLETE] * 8
    with Ledger.open(url_in(whole)) as ledger:
        assert not find_unanswered(ledger.events("s"))
    for left in range(0, 60, 3):
        folder = prepared(tmp_path / str(left))
        drive(folder, study, left=left)
        while not drive(folder, study, left=7):
            pass
        asked(folder, RETRY, trial=1)
        while not drive(folder, study, left=5 + left % 5, broken=False):
            pass
        assert [row[:2] for row in outcome(folder)[:8]] == [row[:2] for row in wanted[:8]], left
        answers = [dict(row) for row in outcome(folder)[8:]]
        assert [answer.get("trial") for answer in answers] == [0, 1, 2, 1], left


def observed(search: Search) -> list[tuple[int, Any, Any, Any]]:
    history = search._subsearches["digits"].suggester.history.get_all_trials(0)
    return [(t.number, t.state.name, t.params, t.values) for t in history if t.number < 0]


@pytest.mark.parametrize("objectives", [ONE, TWO])
@pytest.mark.parametrize("name", ["front", "tpe", "nsga2", "gp"])
def test_optuna_is_told_the_trials_that_fit_and_no_other(tmp_path: Path, name: str, objectives: Any) -> None:
    source = small(objectives=objectives, sampler={"name": "random"}, scheduler={"name": "asha"}, budget={"trials": 20})
    there = tmp_path / "there"
    there.mkdir()
    with opened(source, there) as (search, _, _):
        run_all(search)
    model = {**SPACE["model"], "width": {"int": [24, 64], "step": 8}}
    study = small(
        objectives=objectives, sampler={"name": name, "startup_trials": 3}, model=model, scheduler={"name": "asha"}
    )
    with Ledger.open(url_in(there)) as ledger:
        snapshot = ledger.snapshot("s")
    found = find_observations(study, recorded_searches(source, snapshot))
    fitting = [
        trial
        for trial in snapshot.trials
        if trial.config.parameters["model.width"] >= 24 and trial.state is not TrialState.FAIL
    ]
    assert found["finished"] == 20
    assert 0 < found["taken"] == len(fitting) < 20
    assert [each["trial"] for each in found["observations"]["digits"]] == [trial.key.number for trial in fitting]
    unstopped = find_observations(
        study.model_copy(update={"scheduler": small().scheduler}), recorded_searches(source, snapshot)
    )
    assert unstopped["taken"] == sum(trial.state is TrialState.COMPLETE for trial in fitting) < len(fitting)

    here = tmp_path / "here"
    here.mkdir()
    with opened(study, here) as (_, writer, ledger):
        writer.note(WARM_START, None, found)
        search = search_of(study, writer, ledger)
        told = observed(search)
        assert [number for number, *_ in told] == list(range(-len(fitting), 0))
        for (_, state, params, values), trial in zip(told, fitting, strict=True):
            assert search._subsearches["digits"].suggester.dimensions.decode(params) == trial.config.parameters
            if trial.state is TrialState.COMPLETE:
                accuracy = next(e for e in found["observations"]["digits"] if e["trial"] == trial.key.number)["metrics"]
                assert state == "COMPLETE"
                assert values is not None
                assert values[0] == -accuracy["val_accuracy"]
            else:
                as_pruned = name == "front" or (name == "tpe" and objectives is ONE)
                assert state == ("PRUNED" if as_pruned else "COMPLETE")
        done = run_all(search)
        assert [config.key.number for config in done] == list(range(8))
        assert observed(search_of(study, writer, ledger)) == told, "a restart is told the same"
        if name == "nsga2":
            [generation] = SamplerTraits.of("nsga2").observed
            assert stored(here)[0].sampler_state["trial"][generation] == 1, "the second generation"


@pytest.mark.parametrize("objectives", [ONE, TWO])
@pytest.mark.parametrize("name", ["front", "tpe", "nsga2", "gp"])
def test_a_sampler_goes_on_where_a_user_prunes_without_a_scheduler(tmp_path: Path, name: str, objectives: Any) -> None:
    study = small(objectives=objectives, sampler={"name": name, "startup_trials": 3})
    with opened(study, tmp_path) as (search, _, _):
        first, second = search.next_trial(), search.next_trial()
        assert first is not None
        assert second is not None
        search.report(first.key, report_at(first, 1))
        search.pause(second.key)
        for number in (0, 1):
            asked(tmp_path, PRUNE, trial=number)
        search.report(first.key, report_at(first, 2))
        assert len(run_all(search)) == 6
    assert [trial.state for trial in stored(tmp_path)] == [TrialState.PRUNED] * 2 + [TrialState.COMPLETE] * 6


def test_a_pruned_report_in_flight_of_another_trial_changes_nothing(tmp_path: Path) -> None:
    with opened(small(), tmp_path) as (search, _, _):
        first, second = search.next_trial(), search.next_trial()
        assert first is not None
        assert second is not None
        asked(tmp_path, PRUNE, trial=1)
        assert search.report(first.key, report_at(first, 1)).value == "CONTINUE"
        assert search.report(second.key, report_at(second, 1)).value == "STOP"
        assert search.report(second.key, report_at(second, 1)).value == "STOP", "as committed"
    assert [trial.state for trial in stored(tmp_path)[:2]] == [TrialState.RUNNING, TrialState.PRUNED]
