"""A resumed study names the trials that it found, the last driver, and the epoch from which each trial continues."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ablate.core.trial import Report, TrialConfig, TrialState
from ablate.driver import resume as resumption
from ablate.execution.executor import Paused, Turn
from ablate.execution.packing import Packing, member_of
from ablate.ledger import Ledger
from ablate.study import Study
from ablate.tuning import Search
from support.ledgers import Clock
from support.searches import driving, report_at, run_all, study_of, url_in

BOTH = {"digits": {}, "mnist": {}}


def timed(config: TrialConfig, epoch: int, seconds: float) -> Report:
    """Return a report that says how long training took, as a real one does: never the same twice."""
    return replace(report_at(config, epoch), wall_seconds=seconds)


def found_in(study: Study, folder: Path) -> resumption.Found | None:
    """Return what a driver of `study` would find."""
    with Ledger.open(url_in(folder)) as ledger:
        return resumption.find(ledger, study)


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
    with driving(study_of(), url_in(tmp_path)):
        pass
    assert found_in(study_of(), tmp_path) is None


def test_a_finished_study_says_who_has_finished_it(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 2})
    with driving(study, url_in(tmp_path)) as search:
        run_all(search)
    found = found_in(study, tmp_path)
    assert found is not None
    text = resumption.start_text(found, now=found.last_at + 7200)
    assert text.startswith(
        "Study 's' continues: 2 trials in the ledger, all finished.\nThe last commit was 2 hours ago"
    )
    assert text.endswith("by ada.")


def test_what_was_found_is_said_with_who_was_there_last(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 9})
    killed_at(study, tmp_path, [9, 4, 0, 2])
    with driving(study, url_in(tmp_path)) as search:
        for _ in range(3):
            search.pause(search.next_trial().key)
    found = found_in(study, tmp_path)
    assert found is not None
    assert resumption.start_text(found, now=Clock().now + 3 * 3600 + 5).splitlines() == [
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
    assert found.waiting == found.trials - 8 - 1 > 0
    assert f"8 finished, {found.waiting} waiting for a first start." in resumption.start_text(found, now=0)
    assert "1 trial was in training: digits 4 from epoch 0." in resumption.start_text(found, now=0)


def finish_searching(search: Search) -> None:
    """Run the search's trials and stop when the first confirmation would start."""
    while (config := search.next_trial()) is not None and config.stage == "search":
        for epoch in range(1, 10):
            search.report(config.key, timed(config, epoch, 50.0 + epoch))
    assert config is not None
    search._writer.requeue(config.key)


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
