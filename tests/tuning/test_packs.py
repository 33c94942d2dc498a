"""Trials for one worker: of one group key, unfinished ones first, and none beside one that may end its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ablate.core.trial import Decision, TrialConfig, TrialState
from ablate.engine.training.family import family
from ablate.ledger import Ledger
from ablate.ledger.requests import PRUNE, RETRY
from ablate.study import Study
from ablate.tuning import Search
from ablate.tuning.state.trial_queue import PATIENCE
from support.ledgers import Clock
from support.searches import hold_of, report_at, run_all, run_trial, search_of, stored, study_of, url_in


def width_of(config: TrialConfig) -> str | None:
    return f"{config.key.dataset} {family(config).model.width}"


@contextmanager
def packing(
    study: Study, folder: Path, key: Callable[[TrialConfig], str | None] = width_of
) -> Iterator[tuple[Search, list[str]]]:
    """Yield a search whose trials can share a pack where `key` is equal, and the trials whose key was asked for."""
    asked: list[str] = []

    def noted(config: TrialConfig) -> str | None:
        asked.append(str(config.key))
        return key(config)

    clock = Clock()
    with Ledger.open(url_in(folder), clock=clock, monotonic=clock) as ledger, hold_of(study, ledger) as writer:
        yield search_of(study, writer, ledger, PATIENCE, noted), asked


def rates_of(**changes: Any) -> Study:
    """Return a study that searches one architecture's learning rate."""
    fields: dict[str, Any] = {
        "model": {"width": 8, "depth": 1},
        "training": {"epochs": 3, "learning_rate": {"float": [1e-4, 1e-1], "log": True}},
    }
    return study_of(**(fields | changes))


def numbers(configs: tuple[TrialConfig, ...]) -> list[int]:
    return [config.key.number for config in configs]


def test_a_pack_takes_the_next_suggestions_of_one_key(tmp_path: Path) -> None:
    with packing(rates_of(), tmp_path) as (search, asked):
        pack = search.next_pack(5)
        assert numbers(pack) == [0, 1, 2, 3, 4]
        assert numbers(search.next_pack(2, pack)) == [5, 6], "free places"
        assert numbers(search.next_pack(20)) == [7, 8, 9, 10, 11], "the budget"
        assert search.next_pack(3) == search.next_pack(3, pack) == ()
        assert len(asked) == len(set(asked)), "a key is asked for once"
    assert [record.state for record in stored(tmp_path)] == [TrialState.RUNNING] * 12


def test_suggestions_of_another_key_wait_for_the_next_pack_and_are_not_many(tmp_path: Path) -> None:
    study = study_of(model={"width": {"choices": [8, 16, 24, 32]}, "depth": 1}, budget={"trials": 40})
    seen: list[int] = []
    with packing(study, tmp_path) as (search, _):
        while pack := search.next_pack(4):
            assert len({width_of(config) for config in pack}) == 1
            assert sum(record.state is TrialState.WAITING for record in stored(tmp_path)) <= 4
            seen += numbers(pack)
            for config in pack:
                run_trial(search, config)
    assert sorted(seen) == list(range(40))


def test_all_that_is_suggested_does_not_depend_on_packs_where_nothing_is_learned(tmp_path: Path) -> None:
    study = study_of(model={"width": {"choices": [8, 16]}, "depth": 1}, budget={"trials": 20})
    with packing(study, tmp_path) as (search, _):
        while pack := search.next_pack(6):
            for config in pack:
                run_trial(search, config)
    with packing(study, tmp_path / "single") as (search, _):
        alone = run_all(search)
    assert [dict(r.config.parameters) for r in stored(tmp_path)] == [dict(config.parameters) for config in alone]


def test_a_trial_without_a_key_is_alone(tmp_path: Path) -> None:
    with packing(rates_of(), tmp_path, lambda config: None) as (search, _):
        first = search.next_pack(5)
        assert numbers(first) == [0]
        assert search.next_pack(5, first) == ()
        assert numbers(search.next_pack(5)) == [1]


def test_every_draw_of_a_row_is_tuned_in_one_pack_although_the_rows_take_turns(tmp_path: Path) -> None:
    rows = [{"name": f"w{w}", "model": {"width": w}} for w in (8, 16, 24, 32, 40)]
    study = study_of(
        model={"depth": 1},
        training={"epochs": 2},
        variants=rows,
        tune={"trials": 6, "training.learning_rate": {"float": [1e-4, 1e-1], "log": True}},
        sampler={"name": "design"},
        budget={"trials": 1_000_000},
        compare={"baseline": "w8"},
    )
    with packing(study, tmp_path) as (search, _):
        packs = [search.next_pack(6) for _ in rows]
        assert [len(pack) for pack in packs] == [6] * 5
        assert [{c.variant for c in pack} for pack in packs] == [{f"w{w}"} for w in (8, 16, 24, 32, 40)]
        assert search.next_pack(6) == (), "the rows wait for their tuning"
        for config in (config for pack in packs for config in pack):
            run_trial(search, config)
        assert [c.stage for c in search.next_pack(6)] == ["search"]


def test_unfinished_trials_of_the_key_come_first_and_others_keep_their_place(tmp_path: Path) -> None:
    study = study_of(model={"width": {"choices": [8, 16]}, "depth": 1}, sampler={"name": "grid"}, training=GRID)
    with packing(study, tmp_path) as (search, _):
        first = search.next_pack(2)
        other = next(width for width in (8, 16) if width != family(first[0]).model.width)
        for config in first:
            search.pause(config.key)
        waiting = [r.config.key.number for r in stored(tmp_path) if family(r.config).model.width == other]
        assert waiting[0] == min(numbers(search.next_pack(1))), "what waited longest is first"
        again = search.next_pack(2)
        assert numbers(again)[0] in (*waiting, *numbers(first))


GRID = {"epochs": 3, "learning_rate": {"choices": [1e-3, 1e-2, 3e-2]}}


def test_a_trial_whose_process_died_trains_alone_until_it_reports_again(tmp_path: Path) -> None:
    with packing(rates_of(budget={"trials": 4}), tmp_path) as (search, _):
        pack = search.next_pack(3)
        for config in pack:
            search.fail(config.key, "its process died", kind="died")
        alone = search.next_pack(3)
        assert numbers(alone) == [0]
        assert search.next_pack(2, alone) == (), "nothing joins it"
        assert numbers(search.next_pack(3)) == [1]
        assert search.report(alone[0].key, report_at(alone[0], 1)) is Decision.CONTINUE
        search.pause(alone[0].key)
        fresh = [search.next_pack(3) for _ in range(2)]
        assert [numbers(each) for each in fresh] == [[2], [0, 3]], "it has reported: it may share again"


def test_a_trial_that_two_drivers_left_at_the_same_epoch_trains_alone(tmp_path: Path) -> None:
    study = rates_of(budget={"trials": 3})
    sizes = []
    for _ in range(4):
        with packing(study, tmp_path) as (search, _):
            sizes.append([len(search.next_pack(3)) for _ in range(2)])
    assert sizes == [[3, 0], [3, 0], [1, 1], [1, 1]]


def test_a_pruned_trial_joins_no_pack(tmp_path: Path) -> None:
    with packing(rates_of(budget={"trials": 3}), tmp_path) as (search, _):
        pack = search.next_pack(3)
        search.pause(pack[1].key)
        search.pause(pack[2].key)
        search.fail(pack[1].key, "given up")
        assert numbers(search.next_pack(3, pack[:1])) == [2]


def test_what_users_ask_for_is_done_while_a_pack_is_filled(tmp_path: Path) -> None:
    with packing(rates_of(budget={"trials": 4}), tmp_path) as (search, _):
        pack = search.next_pack(4)
        for config in pack[1:3]:
            search.pause(config.key)
        search.fail(pack[3].key, "planted")
        with Ledger.open(url_in(tmp_path)) as ledger:
            for command, trial in ((PRUNE, 1), (RETRY, 3)):
                ledger.request("s", {"command": command, "message": command, "trial": trial}, dataset="digits")
        search._requests.seconds = 0.0
        assert numbers(search.next_pack(3, pack[:1])) == [2, 3]
    assert stored(tmp_path)[1].state is TrialState.PRUNED


def test_a_trial_that_drivers_leave_joins_no_pack_although_the_first_of_it_has_reported(tmp_path: Path) -> None:
    study = rates_of(budget={"trials": 2})
    with packing(study, tmp_path) as (search, _):
        search.next_pack(2)
    with packing(study, tmp_path) as (search, _):
        pack = search.next_pack(2)
        assert numbers(pack) == [0, 1]
        search.report(pack[0].key, report_at(pack[0], 1))
    with packing(study, tmp_path) as (search, _):
        assert [numbers(search.next_pack(2)) for _ in range(2)] == [[0], [1]], "two drivers left trial 1 at one epoch"


def test_a_stopped_search_hands_out_nothing(tmp_path: Path) -> None:
    with packing(rates_of(), tmp_path) as (search, _):
        pack = search.next_pack(2)
        search.pause(pack[1].key)
        search.stop()
        assert search.next_pack(1, pack[:1]) == ()
        assert search.next_pack(2) == search.next_pack(2, pack) == ()


@pytest.mark.parametrize("size", [1, 3])
def test_a_deterministic_study_asks_for_the_same_trials_in_packs(size: int, tmp_path: Path) -> None:
    study = rates_of(sampler={"name": "tpe", "startup_trials": 3}, deterministic=4, budget={"trials": 14})
    with packing(study, tmp_path) as (search, _):
        while pack := search.next_pack(size):
            for config in reversed(pack):
                run_trial(search, config)
    with packing(study, tmp_path / "single") as (search, _):
        alone = run_all(search)
    assert [dict(r.config.parameters) for r in stored(tmp_path)] == [dict(config.parameters) for config in alone]
