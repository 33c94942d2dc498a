"""What docs/own_sampler_scheduler.md promises to a scheduler of a user's own: which calls come, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ablate.base.errors import StudyMismatchError
from ablate.core.trial import Decision
from ablate.driver.resume import refuse_other_study
from ablate.ledger import Ledger
from ablate.study import parse_study
from support import recording_scheduler
from support.recording_scheduler import CALLS, EDITED
from support.searches import driving, report_at, study_of, url_in

OWN = {"name": f"{recording_scheduler.__name__}:build", "options": {"mine": 1}}
FILE = """\
study: s
datasets: {digits: {patch: 4}}
scheduler: {name: "support.recording_scheduler:build", options: {mine: 1}}
"""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    CALLS.clear()
    EDITED.clear()
    yield
    CALLS.clear()
    EDITED.clear()


def test_after_a_restart_observe_alone_is_called_in_the_order_of_commit(tmp_path: Path) -> None:
    study, url = study_of(scheduler=OWN), url_in(tmp_path)
    with driving(study, url) as search:
        first, second = search.next_trial(), search.next_trial()
        for config, epoch in [(second, 1), (first, 1), (first, 2), (second, 2), (second, 3)]:
            search.report(config.key, report_at(config, epoch))
        search.report(first.key, report_at(first, 2))  # again: the stored decision
        for epoch in range(3, first.epochs + 1):
            search.report(first.key, report_at(first, epoch))
    live = list(CALLS)
    assert {call[0] for call in live} == {"decide"}
    assert [call[1:3] for call in live[:5]] == [(1, 1), (0, 1), (0, 2), (1, 2), (1, 3)]
    assert (0, first.epochs) not in [call[1:3] for call in live]  # the last report ends its trial unasked
    CALLS.clear()
    with driving(study, url):
        assert [("observe", *call[1:]) for call in live] == CALLS


def test_an_edited_rule_is_not_noticed_and_changes_no_decision_of_before(tmp_path: Path) -> None:
    study, url = study_of(scheduler=OWN), url_in(tmp_path)
    with driving(study, url) as search:
        config = search.next_trial()
        assert search.report(config.key, report_at(config, 1)) is Decision.CONTINUE
    EDITED["from"] = 1
    with driving(study, url) as search:
        config = search.next_trial()
        assert search.report(config.key, report_at(config, 1)) is Decision.CONTINUE
        assert search.report(config.key, report_at(config, 2)) is Decision.STOP


def test_an_edited_option_of_the_rule_is_refused(tmp_path: Path) -> None:
    study, url = parse_study(FILE), url_in(tmp_path)
    with driving(study, url) as search:
        config = search.next_trial()
        search.report(config.key, report_at(config, 1))
    with Ledger.open(url) as ledger:
        with ledger.acquire(
            "s", file_text=FILE, fingerprint=study.fingerprint(), seed=study.seed, holder="ada", takeover=True
        ):
            pass
        refuse_other_study(ledger, study, FILE, extend=False)
        edited = FILE.replace("mine: 1", "mine: 2")
        with pytest.raises(StudyMismatchError, match=r"scheduler\.options\.mine: 1 -> 2"):
            refuse_other_study(ledger, parse_study(edited), edited, extend=False)
