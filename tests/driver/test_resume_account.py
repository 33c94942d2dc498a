"""What a resume says: what was found, who was there last, what goes on from where, and what the interruption cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ablate.core.trial import Decision, Report, TrialConfig, TrialKey, TrialState
from ablate.driver import resume as resumption
from ablate.execution.executor import Paused, Turn
from ablate.execution.packing import Packing, member_of
from ablate.ledger import Ledger
from ablate.study import Study
from ablate.tuning import Search
from support.ledgers import Clock
from support.searches import ONE, driving, hold_of, report_at, run_all, search_of, study_of, url_in

BOTH = {"digits": {}, "mnist": {}}


def timed(config: TrialConfig, epoch: int, seconds: float) -> Report:
    """Return a report that says how long training took, as a real one does: never the same twice."""
    return replace(report_at(config, epoch), wall_seconds=seconds)


def found_in(study: Study, folder: Path) -> resumption.Found | None:
    """Return what a driver of `study` would find."""
    with Ledger.open(url_in(folder)) as ledger:
        return resumption.find(ledger, study)


def go_on(study: Study, folder: Path, first: Callable[[TrialConfig], list[Report]]) -> tuple[str, str]:
    """Resume with a driver whose trials report `first` and then their rest; return what it says, start and end."""
    clock = Clock(Clock().now + 3 * 3600 + 5)
    with (
        Ledger.open(url_in(folder), clock=clock, monotonic=clock) as ledger,
        hold_of(study, ledger, holder="bob (process 7)") as writer,
    ):
        found = resumption.find(ledger, study)
        assert found is not None
        start = resumption.start_text(found, now=clock())
        search = search_of(study, writer, ledger)
        while (config := search.next_trial()) is not None:
            done = 0
            for report in first(config):
                search.report(config.key, report)
                done = report.epoch
            for epoch in range(done + 1, config.epochs + 1):
                if search.report(config.key, timed(config, epoch, 100.0 + epoch)) is Decision.STOP:
                    break
        return start, resumption.end_text(found, ledger, search.returns())


def killed_at(study: Study, folder: Path, epochs: list[int]) -> list[TrialConfig]:
    """Run trials side by side so far, and leave them as a killed driver does."""
    with driving(study, url_in(folder)) as search:
        configs = [search.next_trial() for _ in epochs]
        for config, last in zip(configs, epochs, strict=True):
            for epoch in range(1, last + 1):
                search.report(config.key, timed(config, epoch, 1.25 * epoch))
    return configs


def test_a_fresh_study_has_nothing_to_say(tmp_path: Path) -> None:
    assert found_in(study_of(), tmp_path) is None
    with driving(study_of(), url_in(tmp_path)) as search:
        assert search.returns() == ()
    assert found_in(study_of(), tmp_path) is None
    with driving(study_of(budget={"trials": 2}), url_in(tmp_path)) as search:
        run_all(search)
        assert search.returns() == ()


def test_what_was_found_is_said_with_who_was_there_last(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 9})
    killed_at(study, tmp_path, [9, 4, 0, 2])
    with driving(study, url_in(tmp_path)) as search:
        for _ in range(3):
            search.pause(search.next_trial().key)
    start, _ = go_on(study, tmp_path, lambda config: [])
    assert start.splitlines() == [
        "Study 's' continues: 4 trials in the ledger, 1 finished.",
        "3 trials were in training: digits 1 from epoch 4, digits 2 from epoch 0, digits 3 from epoch 2.",
        "The last commit was 3 hours ago (2023-11-14 22:13:20 UTC), by ada.",
    ]


def test_long_lists_are_counted_and_waiting_trials_are_told_apart(tmp_path: Path) -> None:
    study = study_of(datasets=BOTH, budget={"trials": 4}, confirm={"replicates": 2})
    killed_at(study, tmp_path, [1, 2, 3, 4, 5, 6, 7])
    found = found_in(study, tmp_path)
    assert found is not None
    text = resumption.start_text(found, now=found.last_at + 59.6)
    named = "digits 0 from epoch 1, mnist 0 from epoch 2, digits 1 from epoch 3, mnist 1 from epoch 4, digits 2 from"
    assert f"7 trials were in training: {named} epoch 5 and 2 more." in text
    assert "was 59 seconds ago" in text
    folds = resumption.start_text(replace(found, unit="fold"), now=found.last_at)
    assert folds.splitlines()[1] == text.splitlines()[1].replace("epoch", "fold")
    only = study_of(datasets=BOTH, only=["mnist"])
    found = found_in(only, tmp_path)
    assert found is not None
    assert {key.dataset for key, _ in found.begun} == {"mnist"}
    with driving(study, url_in(tmp_path)) as search:
        finish_searching(search)
    found = found_in(study, tmp_path)
    assert found is not None
    assert found.waiting == len(found.trials) - 8 - 1 > 0
    assert f"8 finished, {found.waiting} waiting for a first start." in resumption.start_text(found, now=0)
    assert "1 trial was in training: digits 4 from epoch 0." in resumption.start_text(found, now=0)


def finish_searching(search: Search) -> None:
    """Run the search's trials and stop when the first confirmation would start."""
    while (config := search.next_trial()) is not None and config.stage == "search":
        for epoch in range(1, 10):
            search.report(config.key, timed(config, epoch, 50.0 + epoch))
    assert config is not None
    search._writer.requeue(config.key)


def test_checkpoints_that_were_whole_cost_nothing(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 4})
    configs = killed_at(study, tmp_path, [4, 1, 0])
    stored = {configs[0].key: [(4, 5.0)], configs[1].key: [(1, 1.25)]}
    _, end = go_on(study, tmp_path, lambda config: [timed(config, *pair) for pair in stored.get(config.key, [])])
    assert end == (
        "Resumed: 3 trials continued from their last committed epoch; lost: no trial, no report, no epoch of training."
    )


def test_a_checkpoint_ahead_of_the_ledger_costs_nothing(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 1})
    killed_at(study, tmp_path, [4])
    _, end = go_on(study, tmp_path, lambda config: [timed(config, 5, 6.25)])
    assert "1 trial continued from its last committed epoch; lost: no trial, no report, no epoch" in end


def test_a_damaged_checkpoint_is_what_was_lost(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 3})
    configs = killed_at(study, tmp_path, [7, 2])
    stored = {configs[0].key: [(6, 7.5)], configs[1].key: [(2, 2.5)]}
    _, end = go_on(study, tmp_path, lambda config: [timed(config, *pair) for pair in stored.get(config.key, [])])
    assert end == (
        "Resumed: 1 trial continued from its last committed epoch, 1 went back from epoch 7 to 6 (digits 0: its newest"
        " checkpoint was damaged or missing); lost: no trial, no report, 1 epoch of training to repeat."
    )


def test_a_trial_without_any_checkpoint_repeats_all_it_had_reported(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 2}, training={"epochs": 9})
    killed_at(study, tmp_path, [1])
    _, end = go_on(study, tmp_path, lambda config: [timed(config, 1, 1.75)])
    assert "1 went back from epoch 1 to 0 (digits 0:" in end
    assert end.endswith("1 epoch of training to repeat.")


def test_several_losses_are_listed_and_added_up(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 2}, objectives=ONE)
    configs = killed_at(study, tmp_path, [7, 5])
    stored = {configs[0].key: (5, 6.25), configs[1].key: (1, 99.0)}
    _, end = go_on(study, tmp_path, lambda config: [timed(config, *stored[config.key])] if config.key in stored else [])
    assert "0 trials continued" in end
    assert "2 went back (digits 0 from epoch 7 to 5, digits 1 from epoch 5 to 0: their newest checkpoints were" in end
    assert end.endswith("lost: no trial, no report, 7 epochs of training to repeat.")


@pytest.mark.services
def test_a_trial_that_paused_waits_for_the_next_driver_and_is_not_suspected(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 1})
    for attempt in range(1, 13):
        with driving(study, url_in(tmp_path)) as search:
            packing = Packing(search=search, member=partial(member_of, search=search, store=tmp_path))
            pack = packing.begin()
            assert pack is not None
            (member,) = pack.members.values()
            assert member.attempt == attempt
            packing.take(pack, Turn(outcomes={member.config.key: Paused()}))
            assert not pack.members
            assert +Counter(search.counts()["digits"]) == {TrialState.WAITING: 1}


def test_each_attempt_is_measured_against_what_was_committed_then(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 1})
    with driving(study, url_in(tmp_path)) as search:
        config = search.next_trial()
        for epoch in (1, 2, 3):
            search.report(config.key, timed(config, epoch, 1.25 * epoch))
        search.fail(config.key, "its node died", kind="died")
        search.next_trial()
        search.report(config.key, timed(config, 2, 2.5))
        search.report(config.key, timed(config, 3, 9.0))
        search.report(config.key, timed(config, 4, 10.0))
        search.fail(config.key, "its node died", kind="died")
        search.next_trial()
        found = [(r.attempt, r.committed, r.continued, r.repeated) for r in search.returns()]
    assert found == [(2, 3, 2, 1), (3, 4, None, 0)]


def test_trials_that_were_given_up_are_named_and_a_finished_study_lost_nothing(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 2})
    for _ in range(11):
        with driving(study, url_in(tmp_path)) as search:
            search.next_trial()
    _, end = go_on(study, tmp_path, lambda config: [])
    given_up = "1 given up (digits 0); lost: no"
    assert end.startswith(f"Resumed: 0 trials continued from their last committed epoch, {given_up}")
    start, end = go_on(study, tmp_path, lambda config: [])
    assert start.startswith("Study 's' continues: 2 trials in the ledger, all finished.\nThe last commit was")
    assert start.endswith("by bob (process 7).")
    assert end == "Resumed: nothing was in training; lost: no trial, no report, no epoch of training."


def test_a_lost_row_would_be_said(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 1})
    killed_at(study, tmp_path, [3])
    found = found_in(study, tmp_path)
    assert found is not None
    ghost = TrialKey(study="s", dataset="digits", number=8)
    more: dict[str, Any] = {"trials": found.trials | {ghost}, "reports": found.reports | {(ghost, 1, 0), (ghost, 2, 0)}}
    with Ledger.open(url_in(tmp_path)) as ledger:
        assert "; lost: 1 trial, 2 reports, no epoch" in resumption.end_text(replace(found, **more), ledger, ())
        assert "no fold of training" in resumption.end_text(replace(found, unit="fold"), ledger, ())
