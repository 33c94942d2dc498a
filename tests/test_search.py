"""The search as executors see it: budgets, turns, ends of trials, confirmation, and going on after a crash."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import moocore
import numpy as np
import pytest
from ledgers import SHAPE, Clock
from searches import (
    ONE,
    TWO,
    accuracy,
    driving,
    hold_of,
    report_at,
    run_all,
    run_trial,
    search_of,
    size_of,
    study_of,
    url_in,
)

from ablate.errors import LedgerError, StaleDriverError
from ablate.ledger import Hold, Ledger, TrialRecord
from ablate.search import Search
from ablate.search.confirmation import FrontMember, spread
from ablate.study import Study
from ablate.trial import CONFIRM_SEED_BASE, Decision, Report, TrialConfig, TrialState

BOTH = {"digits": {}, "mnist": {}}


@contextmanager
def opened(study: Study, folder: Path, clock: Clock | None = None) -> Iterator[tuple[Search, Hold, Ledger]]:
    """Yield a search with its hold and ledger."""
    clock = clock or Clock()
    with Ledger.open(url_in(folder), clock=clock) as ledger, hold_of(study, ledger) as hold:
        yield search_of(study, hold, ledger, clock=clock), hold, ledger


def stored(folder: Path) -> list[TrialRecord]:
    """Return the ledger's trials."""
    with Ledger.open(url_in(folder)) as ledger:
        return ledger.trials("s")


def notes(folder: Path, kind: str) -> list[tuple[str | None, dict[str, Any]]]:
    """Return the ledger's notes of one kind."""
    with Ledger.open(url_in(folder)) as ledger:
        return [(n.dataset, n.payload) for n in ledger.notes("s") if n.kind == kind]


def test_a_trial_is_committed_as_running_before_it_is_handed_out(tmp_path: Path) -> None:
    with opened(study_of(replicates=2), tmp_path) as (search, _, ledger):
        config = search.next_trial()
        record = ledger.trials("s")[0]
    assert (record.config, record.state, record.attempt) == (config, TrialState.RUNNING, 1)
    assert record.size == size_of(config.model, SHAPE)
    assert (config.seeds, config.stage, config.study_seed, config.protocol) == ((0, 1), "search", 3, "held_out")


def test_each_hand_out_is_an_attempt_of_its_own(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 2})
    with driving(study, url_in(tmp_path)) as search:
        first, second = search.next_trial(), search.next_trial()
        assert (search.attempt(first.key), search.attempt(second.key)) == (1, 1)
        search.fail(first.key, "its worker died", retry=True)
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
    assert notes(tmp_path, "exhausted") == [("digits", {"search_trials": 2})]


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
        found = [(n.payload, n.created_at - Clock().now) for n in ledger.notes("s") if n.kind == "driver_started"]
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
        assert search.counts() == {"digits": {TrialState.RUNNING: 1, TrialState.PRUNED: 1}}


def test_a_diverged_replicate_fails_its_trial_and_the_study_goes_on(tmp_path: Path) -> None:
    with driving(study_of(replicates=2, budget={"trials": 3}), url_in(tmp_path)) as search:
        config = search.next_trial()
        search.report(config.key, report_at(config, 1))
        report = replace(report_at(config, 2), diverged=(False, True))
        assert search.report(config.key, report) is Decision.STOP
        assert len(run_all(search)) == 2
        assert search.finished
        assert config.key not in {m.config.key for m in search.front("digits")}
    failed = stored(tmp_path)[0]
    assert (failed.state, failed.error) == (TrialState.FAIL, "diverged at epoch 2 (seeds [1])")


def test_an_objective_that_is_never_reported_is_named(tmp_path: Path) -> None:
    objectives = [{"metric": "val_f1", "direction": "maximize"}]
    with driving(study_of(objectives=objectives, budget={"trials": 1}), url_in(tmp_path)) as search:
        run_all(search)
    error = "no finite value of val_f1 in the last report (reported: train_loss, val_accuracy, val_loss)"
    assert stored(tmp_path)[0].error == error


def test_a_failed_attempt_is_tried_three_times(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 2})
    with driving(study, url_in(tmp_path)) as search:
        config = search.next_trial()
        for attempt in (1, 2):
            search.fail(config.key, f"worker {attempt} died", retry=True)
            assert stored(tmp_path)[0].state is TrialState.WAITING
            assert search.next_trial() == config
    with driving(study, url_in(tmp_path)) as search:
        assert search.next_trial() == config
        search.fail(config.key, "worker 3 died", retry=True)
        search.fail(config.key, "again")
        assert len(run_all(search)) == 1
    failed = stored(tmp_path)[0]
    assert (failed.state, failed.error) == (TrialState.FAIL, "worker 3 died (attempt 3 at epoch 0)")


def test_a_report_gives_a_trial_its_three_attempts_back(tmp_path: Path) -> None:
    with driving(study_of(budget={"trials": 1}), url_in(tmp_path)) as search:
        config = search.next_trial()
        for epoch in range(4):
            for _ in range(2):
                search.fail(config.key, "its node died", retry=True)
                assert search.next_trial() == config
            search.report(config.key, report_at(config, epoch + 1))
    with driving(study_of(budget={"trials": 1}), url_in(tmp_path)) as search:
        for _ in range(2):
            assert search.next_trial() == config
            search.fail(config.key, "its node died", retry=True)
        assert search.next_trial() == config
        search.fail(config.key, "its node died", retry=True)
        assert search.finished
    assert str(stored(tmp_path)[0].error) == "its node died (attempt 3 at epoch 4)"
    assert [p["epoch"] for _, p in notes(tmp_path, "retried")] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_retries_noted_without_an_epoch_still_count(tmp_path: Path) -> None:
    with opened(study_of(budget={"trials": 1}), tmp_path) as (search, hold, _):
        config = search.next_trial()
        search.report(config.key, report_at(config, 1))
        hold.note("retried", "digits", {"trial": 0, "message": "as before epochs were noted"})
        hold.requeue(config.key)
    with driving(study_of(budget={"trials": 1}), url_in(tmp_path)) as search:
        assert search.next_trial() == config
        search.fail(config.key, "died", retry=True)
        assert search.next_trial() == config
        search.fail(config.key, "died", retry=True)
        assert search.finished


def test_a_paused_trial_goes_on_and_is_never_given_up(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 1})
    for _ in range(15):
        with driving(study, url_in(tmp_path)) as search:
            config = search.next_trial()
            search.pause(config.key)
            assert stored(tmp_path)[0].state is TrialState.WAITING
    with driving(study, url_in(tmp_path)) as search:
        run_trial(search, search.next_trial())
        search.pause(config.key)
        assert search.finished
    assert [(t.state, t.attempt, t.error) for t in stored(tmp_path)] == [(TrialState.COMPLETE, 16, None)]
    assert notes(tmp_path, "resumed") == notes(tmp_path, "retried") == []


def test_a_trial_that_ends_its_driver_again_and_again_is_given_up(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 1})
    handed = 0
    for _ in range(14):
        with driving(study, url_in(tmp_path)) as search:
            handed += search.next_trial() is not None
            over = search.finished
    assert (handed, over) == (11, True)
    assert "10 times at epoch 0" in str(stored(tmp_path)[0].error)


def test_a_refused_commit_leaves_the_search_as_the_ledger_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of(objectives=ONE, scheduler={"name": "asha"}, budget={"trials": 6})
    with opened(study, tmp_path) as (search, hold, _):
        good, bad = search.next_trial(), search.next_trial()
        search.report(good.key, report_at(good, 1, lambda c, e: 0.9))
        with monkeypatch.context() as broken:
            broken.setattr(hold, "report", refuse)
            with pytest.raises(LedgerError, match="disk full"):
                search.report(bad.key, report_at(bad, 1, lambda c, e: 0.1))
            broken.setattr(hold, "add_trials", refuse)
            with pytest.raises(LedgerError, match="disk full"):
                search.next_trial()
        assert search.report(bad.key, report_at(bad, 1, lambda c, e: 0.1)) is Decision.STOP
        assert search.next_trial().key.number == 2


def refuse(*args: object, **kwargs: object) -> None:
    """Stand in for a ledger that cannot write."""
    raise LedgerError("disk full")


def test_an_overtaken_driver_is_refused(tmp_path: Path) -> None:
    study = study_of()
    with opened(study, tmp_path) as (search, _, ledger):
        config = search.next_trial()
        with hold_of(study, ledger):
            with pytest.raises(StaleDriverError, match="another driver took over"):
                search.report(config.key, report_at(config, 1))
            with pytest.raises(StaleDriverError, match="another driver took over"):
                search.next_trial()


def test_a_driver_that_was_overtaken_is_told_so_without_writing(tmp_path: Path) -> None:
    study = study_of()
    with opened(study, tmp_path) as (search, hold, ledger):
        search.check()
        with hold_of(study, ledger):
            search.check()  # nobody has told it yet: asking costs no look at the ledger
            with pytest.raises(StaleDriverError, match="another driver took over"):
                hold.renew()
            with pytest.raises(StaleDriverError, match=r"another driver took over; this one \(epoch 1\)"):
                search.check()


def test_stop_hands_out_nothing_more_and_the_next_driver_goes_on(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 3})
    with driving(study, url_in(tmp_path)) as search:
        config = search.next_trial()
        search.stop()
        assert search.next_trial() is None
        run_trial(search, config)
        assert not search.finished
    with driving(study, url_in(tmp_path)) as search:
        assert len(run_all(search)) == 2
        assert search.finished


def front_by_definition(trials: list[TrialRecord], values: dict[int, tuple[float, float]]) -> set[int]:
    """Return the numbers of COMPLETE search trials that moocore finds non-dominated."""
    done = [t.key.number for t in trials if t.state is TrialState.COMPLETE and t.config.stage == "search"]
    points = np.array([[-values[n][0], values[n][1]] for n in done])
    return {n for n, keep in zip(done, moocore.is_nondominated(points), strict=True) if keep}


def test_the_confirmed_front_is_that_of_the_finished_trials(tmp_path: Path) -> None:
    study = study_of(scheduler={"name": "asha"}, budget={"trials": 25}, confirm={"replicates": 3})

    def value(config: TrialConfig, epoch: int) -> float:
        if config.key.number == 4 and config.stage == "search":
            return math.nan if epoch == 9 else 0.999
        return accuracy(config, 9) if epoch == 9 else 0.9 + accuracy(config, epoch) / 20  # stopped ones look best

    with driving(study, url_in(tmp_path)) as search:
        run_all(search, value)
        assert search.finished
        members = {m.config.key.number for m in search.front("digits")}
    trials = stored(tmp_path)
    assert {t.state for t in trials} == {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}
    values = {t.key.number: (accuracy(t.config, 9), float(t.params or 0)) for t in trials}
    confirmed = [t for t in trials if t.config.stage == "confirm"]
    assert members == {t.config.source for t in confirmed} == front_by_definition(trials, values)
    assert [t.key.number for t in trials] == list(range(len(trials)))
    for trial in confirmed:
        source = trials[trial.config.source or 0].config
        assert trial.config.seeds == tuple(CONFIRM_SEED_BASE + i for i in range(3))
        assert not set(trial.config.seeds) & set(source.seeds)
        assert (trial.config.model, trial.config.train) == (source.model, source.train)
        assert (trial.state, trial.epochs_done) == (TrialState.COMPLETE, 9)
    assert [p["trial"] for _, p in notes(tmp_path, "test_opened")] == [25]
    assert [p for _, p in notes(tmp_path, "frozen")] == [
        {"search_trials": 25, "confirmed": [t.config.source for t in confirmed]}
    ]


def test_a_broken_constraint_keeps_a_trial_off_the_front(tmp_path: Path) -> None:
    study = study_of(objectives=ONE, constraints=["val_loss >= 0.6"], budget={"trials": 12})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
        best = search.front("digits")
    kept = {c.key: accuracy(c, 9) for c in configs if 1 - accuracy(c, 9) >= 0.6}
    assert len(kept) < len(configs)
    assert [(m.config.key, m.values) for m in best] == [(max(kept, key=kept.__getitem__), (max(kept.values()),))]


class CrashError(Exception):
    """Stands for kill -9 between two writes."""


@pytest.mark.parametrize("survived", range(5))
def test_confirmation_is_the_same_whichever_write_was_the_last(tmp_path: Path, survived: int) -> None:
    study = study_of(budget={"trials": 4}, confirm={"replicates": 2})
    (tmp_path / "calm").mkdir()
    with driving(study, url_in(tmp_path / "calm")) as search:
        run_all(search)
    with opened(study, tmp_path) as (search, hold, _):
        for _ in range(4):
            run_trial(search, search.next_trial())
        left = [survived]
        for name in ("add_trials", "note", "start", "report"):
            setattr(hold, name, dying(getattr(hold, name), left))
        with pytest.raises(CrashError):
            run_all(search)
    with driving(study, url_in(tmp_path)) as search:
        run_all(search)
        assert search.finished

    def facts(folder: Path) -> list[object]:
        return [(t.config, t.state, t.epochs_done) for t in stored(folder)]

    assert facts(tmp_path) == facts(tmp_path / "calm")
    assert len(notes(tmp_path, "test_opened")) == 1
    assert [p["search_trials"] for _, p in notes(tmp_path, "frozen")] == [4]


def dying(write: Any, left: list[int]) -> Any:
    """Return `write`, which raises instead once `left[0]` writes are done."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if left[0] == 0:
            raise CrashError
        left[0] -= 1
        return write(*args, **kwargs)

    return guarded


def test_a_search_that_is_extended_confirms_only_what_is_new(tmp_path: Path) -> None:
    with driving(study_of(budget={"trials": 4}, confirm={"replicates": 2}), url_in(tmp_path)) as search:
        run_all(search)
    before = stored(tmp_path)
    with driving(study_of(budget={"trials": 12}, confirm={"replicates": 2}), url_in(tmp_path)) as search:
        run_all(search)
        assert search.finished
        front = {m.config.key.number for m in search.front("digits")}
    after = stored(tmp_path)
    assert [t.config for t in after[: len(before)]] == [t.config for t in before]
    assert sum(t.config.stage == "search" for t in after) == 12
    sources = [t.config.source for t in after if t.config.stage == "confirm"]
    assert len(sources) == len(set(sources))
    assert front <= set(sources)
    assert len(notes(tmp_path, "frozen")) == 2


def test_confirmation_trials_are_never_stopped(tmp_path: Path) -> None:
    study = study_of(objectives=ONE, scheduler={"name": "asha"}, budget={"trials": 5}, confirm={"replicates": 1})

    def value(config: TrialConfig, epoch: int) -> float:
        return 0.0 if config.stage == "confirm" else accuracy(config, epoch)

    with driving(study, url_in(tmp_path)) as search:
        run_all(search, value)
    last = stored(tmp_path)[-1]
    assert (last.config.stage, last.state, last.epochs_done) == ("confirm", TrialState.COMPLETE, 9)


def test_without_a_finished_trial_there_is_nothing_to_confirm(tmp_path: Path) -> None:
    with driving(study_of(budget={"trials": 2}, confirm={"replicates": 1}), url_in(tmp_path)) as search:
        for _ in range(2):
            search.fail(search.next_trial().key, "boom")
        assert search.next_trial() is None
        assert search.finished
    assert notes(tmp_path, "frozen") == [("digits", {"search_trials": 2, "confirmed": []})]


def test_top_spreads_over_the_front() -> None:
    study = study_of()
    config = TrialConfig.__new__(TrialConfig)
    values = [(0.9, 1e6), (0.89, 9.9e5), (0.88, 9.8e5), (0.5, 1e4), (0.1, 1e2)]
    members = [FrontMember(config=config, values=v) for v in values]
    assert [m.values for m in spread(study, members, 3)] == [(0.9, 1e6), (0.5, 1e4), (0.1, 1e2)]
    assert [m.values for m in spread(study, members, 1)] == [(0.9, 1e6)]
    assert spread(study, members, None) == spread(study, members, 5) == tuple(members)


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
        assert search.counts() == {"digits": {TrialState.COMPLETE: 1}}
