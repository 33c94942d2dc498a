"""The search as executors see it: budgets, turns, and going on after a crash."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import LedgerError
from ablate.core.trial import Decision, Report, TrialConfig, TrialState
from ablate.engine.training.family import family
from ablate.ledger import Ledger
from ablate.tuning import Search
from support.ledgers import SHAPE, Clock
from support.searches import (
    ONE,
    TWO,
    driving,
    notes,
    opened,
    report_at,
    run_all,
    run_trial,
    size_of,
    stored,
    study_of,
    url_in,
)

BOTH = {"digits": {}, "mnist": {}}


def test_a_trial_is_committed_as_running_before_it_is_handed_out(tmp_path: Path) -> None:
    with opened(study_of(replicates=2), tmp_path) as (search, _, ledger):
        config = search.next_trial()
        record = ledger.trials("s")[0]
    assert (record.config, record.state, record.attempt) == (config, TrialState.RUNNING, 1)
    assert record.size == size_of(family(config).model, SHAPE)._asdict()
    assert (config.seeds, config.stage, config.study_seed, config.protocol) == ((0, 1), "search", 3, "held_out")


def test_each_hand_out_is_an_attempt_of_its_own(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 2})
    with driving(study, url_in(tmp_path)) as search:
        first, second = search.next_trial(), search.next_trial()
        assert (search.attempt(first.key), search.attempt(second.key)) == (1, 1)
        search.fail(first.key, "its worker died", kind="died")
        assert search.next_trial() == first
        assert (search.attempt(first.key), search.attempt(second.key)) == (2, 1)
    with driving(study, url_in(tmp_path)) as search:
        assert [search.next_trial(), search.next_trial()] == [first, second]
        assert (search.attempt(first.key), search.attempt(second.key)) == (3, 2)
    assert [t.attempt for t in stored(tmp_path)] == [3, 2]


@pytest.mark.parametrize(
    ("scope", "trials", "expected"),
    [("per_dataset", 5, {"digits": 5, "mnist": 5}), ("total", 5, {"digits": 3, "mnist": 2})],
)
def test_the_budget_is_spent_in_turns(tmp_path: Path, scope: str, trials: int, expected: dict[str, int]) -> None:
    study = study_of(datasets=BOTH, budget={"trials": trials, "scope": scope})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
        assert search.finished
    assert Counter(c.key.dataset for c in configs) == expected
    assert [c.key.dataset for c in configs] == (["digits", "mnist"] * 5)[: len(configs)]


def test_what_a_used_up_data_set_leaves_goes_to_the_others(tmp_path: Path) -> None:
    variants = [{"name": name, "model": {"width": 8 * i}} for i, name in enumerate("abcdef", start=1)]
    study = study_of(
        datasets=BOTH, model={}, training={"epochs": 1}, budget={"trials": 6, "scope": "total"},
        variants=[v | ({"datasets": ["mnist"]} if v["name"] > "b" else {}) for v in variants],
    )  # fmt: skip
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
    assert Counter(c.key.dataset for c in configs) == {"digits": 2, "mnist": 4}
    assert {c.variant for c in configs if c.key.dataset == "digits"} == {"a", "b"}
    assert [payload["search_trials"] for _, payload in notes(tmp_path, "exhausted")] == [2]


def test_the_wall_clock_counts_every_driver_but_not_the_time_between(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 100, "wall_clock": "100s"})
    clock = Clock()

    def trials_until(limit: int) -> int:
        done = 0
        with driving(study, url_in(tmp_path), clock=clock) as search:
            while done < limit and (config := search.next_trial()) is not None:
                clock.now += 20
                run_trial(search, config)
                done += 1
            if done < limit:
                assert search.finished
        return done

    assert trials_until(2) == 2
    clock.now += 10_000
    assert trials_until(2) == 2
    clock.now += 10_000
    assert trials_until(9) == 1
    clock.now += 10_000
    assert trials_until(9) == 0


def test_time_that_is_up_stays_up(tmp_path: Path) -> None:
    """The last commit may lie before the end, and the question behind it: the next driver must not train one more."""
    study = study_of(budget={"trials": 100, "wall_clock": "100s"})
    clock = Clock()
    with driving(study, url_in(tmp_path), clock=clock) as search:
        config = search.next_trial()
        clock.now += 99
        run_trial(search, config)
        clock.now += 2
        assert search.next_trial() is None
        assert search.finished
    assert notes(tmp_path, "time_up") == [("digits", {"wall_clock": 100.0, "search_trials": 1})]
    for _ in range(2):
        clock.now += 10_000
        with driving(study, url_in(tmp_path), clock=clock) as search:
            assert search.next_trial() is None
            assert search.finished
    longer = study_of(budget={"trials": 100, "wall_clock": "120s"})
    with driving(longer, url_in(tmp_path), clock=clock) as search:
        assert search.next_trial() is not None
        clock.now += 20
        assert search.next_trial() is None


def dump(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return every row of every table but the lease."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables if "lease" not in name}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"confirm": {"replicates": 2}, "scheduler": {"name": "asha"}},
        {"budget": {"trials": 50, "scope": "total"}, "model": {}, "training": {"epochs": 2}, "variants": []},
        {"budget": {"trials": 50, "wall_clock": "100s"}, "confirm": {"replicates": 1}},
    ],
    ids=["plain", "confirmed", "exhausted", "timed"],
)
def test_resuming_a_finished_study_adds_no_row(tmp_path: Path, changes: dict[str, Any]) -> None:
    study = study_of(**({"datasets": BOTH, "budget": {"trials": 3}} | changes))
    clock = Clock()
    with driving(study, url_in(tmp_path), clock=clock) as search:
        while (config := search.next_trial()) is not None:
            clock.now += 30
            run_trial(search, config)
        assert search.finished
    before = dump(tmp_path)
    assert {"ablate_study", "ablate_trial", "ablate_report", "ablate_note"} <= before.keys()
    for _ in range(3):
        clock.now += 1000
        with driving(study, url_in(tmp_path), clock=clock) as search:
            assert search.next_trial() is None
            assert search.finished
            search.check()
    assert dump(tmp_path) == before


def test_a_driver_is_noted_with_its_holder_at_its_first_act(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 2})
    clock = Clock()
    with driving(study, url_in(tmp_path), clock=clock) as search:
        clock.now += 50
        assert notes(tmp_path, "driver_started") == []
        config = search.next_trial()
        run_trial(search, config)
        assert search.next_trial() is not None
    with Ledger.open(url_in(tmp_path)) as ledger:
        found = [(n.payload, n.created_at - Clock().now) for n in ledger.events("s") if n.kind == "driver_started"]
    assert found == [({"holder": "ada"}, 50.0)]


def test_after_a_crash_unfinished_trials_come_first_with_what_they_reported(tmp_path: Path) -> None:
    study = study_of(datasets=BOTH, budget={"trials": 4})
    with driving(study, url_in(tmp_path)) as search:
        first, second, third = (search.next_trial() for _ in range(3))
        run_trial(search, second)
        for epoch in (1, 2):
            search.report(third.key, report_at(third, epoch))
    with driving(study, url_in(tmp_path)) as search:
        assert [search.next_trial(), search.next_trial()] == [first, third]
        assert search.report(third.key, report_at(third, 2)) is Decision.CONTINUE
        run_trial(search, third)
        run_trial(search, first)
        run_all(search)
        assert search.finished
    found = stored(tmp_path)
    assert [(t.key.dataset, t.key.number) for t in found] == [(d, n) for d in BOTH for n in range(4)]
    assert {t.state for t in found} == {TrialState.COMPLETE}
    assert {t.key: t.attempt for t in found if t.attempt > 1} == {first.key: 2, third.key: 2}
    assert sorted(p["trial"] for _, p in notes(tmp_path, "resumed")) == [0, 1]


def test_a_repeated_report_gets_the_decision_that_stands(tmp_path: Path) -> None:
    study = study_of(objectives=ONE, scheduler={"name": "asha"})
    with opened(study, tmp_path) as (search, _, ledger):
        good, bad = search.next_trial(), search.next_trial()
        assert search.report(good.key, report_at(good, 1, lambda c, e: 0.9)) is Decision.CONTINUE
        assert search.report(bad.key, report_at(bad, 1, lambda c, e: 0.1)) is Decision.STOP
        assert search.report(bad.key, report_at(bad, 1, lambda c, e: 1.0)) is Decision.STOP
        assert search.report(bad.key, report_at(bad, 2, lambda c, e: 1.0)) is Decision.STOP
        assert search.report(good.key, report_at(good, 1, lambda c, e: 0.0)) is Decision.CONTINUE
        assert [(r.key, r.epoch) for r in ledger.reports("s")] == [(good.key, 1), (bad.key, 1)]
        assert +Counter(search.counts()["digits"]) == {TrialState.RUNNING: 1, TrialState.PRUNED: 1}


def test_a_report_without_its_objective_where_trials_are_stopped_is_a_failure_that_says_so(tmp_path: Path) -> None:
    with opened(study_of(objectives=ONE, scheduler={"name": "asha"}), tmp_path) as (search, _, _):
        good, bad = search.next_trial(), search.next_trial()
        search.report(good.key, report_at(good, 1, lambda c, e: 0.9))
        search.report(bad.key, report_at(bad, 1, lambda c, e: 0.95))
        search.report(good.key, report_at(good, 3, lambda c, e: 0.9))
        report = report_at(bad, 3)
        lacking = tuple({k: v for k, v in one.items() if k != "val_accuracy"} for one in report.metrics)
        decision = search.report(bad.key, replace(report, metrics=lacking))
    assert decision is Decision.STOP
    found = stored(tmp_path)[1]
    assert (found.state, found.error) == (
        TrialState.FAIL,
        "no val_accuracy in the report of epoch 3, by which trials are stopped",
    )


def test_many_threads_share_one_search(tmp_path: Path) -> None:
    study = study_of(datasets=BOTH, scheduler={"name": "asha"}, budget={"trials": 12}, confirm={"replicates": 1})
    done: list[TrialConfig] = []
    errors: list[BaseException] = []

    def work(search: Search) -> None:
        try:
            while not search.finished:
                if (config := search.next_trial()) is not None:
                    run_trial(search, config)
                    done.append(config)
        except BaseException as error:
            errors.append(error)

    with driving(study, url_in(tmp_path)) as search:
        threads = [threading.Thread(target=work, args=(search,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert errors == []
    trials = stored(tmp_path)
    assert sorted(c.key for c in done) == [t.key for t in trials]
    assert {t.attempt for t in trials} == {1}
    for dataset in BOTH:
        numbers = [t.key.number for t in trials if t.key.dataset == dataset]
        assert numbers == list(range(len(numbers)))
        assert sum(t.config.stage == "search" and t.key.dataset == dataset for t in trials) == 12


def test_wall_seconds_can_be_an_objective(tmp_path: Path) -> None:
    objectives = [*ONE, {"metric": "wall_seconds", "direction": "minimize"}]
    with driving(study_of(objectives=objectives, budget={"trials": 3}), url_in(tmp_path)) as search:
        run_all(search)
        assert {m.values[1] for m in search.front("digits")} == {9.0}


def test_a_report_of_an_unknown_epoch_order_is_refused_by_the_ledger(tmp_path: Path) -> None:
    with driving(study_of(objectives=TWO), url_in(tmp_path)) as search:
        config = search.next_trial()
        search.report(config.key, report_at(config, 3))
        with pytest.raises(LedgerError, match="epoch 2 reported after epoch 3"):
            search.report(config.key, report_at(config, 2))
        late = Report(epoch=9, metrics=report_at(config, 9).metrics, wall_seconds=9.0, final=True)
        assert search.report(config.key, late) is Decision.CONTINUE
        assert +Counter(search.counts()["digits"]) == {TrialState.COMPLETE: 1}
