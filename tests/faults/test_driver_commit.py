"""`kill -9` between checkpoint and commit, and between commit and acknowledgement: nothing is lost, done twice or
trained again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.faults import killing
from support.faults.reference import STUDY, Reference
from support.faults.study_runs import StudyRun

SHORT_KILLS = 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", ["before", "after"])
def test_every_life_dies_around_the_commit_of_a_report(
    when: killing.When, long: bool, tmp_path: Path, reference: Reference, measured: Callable[[str], None]
) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY)
    # A life first commits what the one before it had left on disk, so its second commit is the next new report.
    inject = partial(killing.at_report, when, 2 if when == "before" else 1)
    reports = sum(row["epochs_done"] for row in reference.ledger["ablate_trial"])
    committed, kills = 0, 0
    while run.search(inject=inject).wait() == -9:
        kills += 1
        assert run.committed() == committed + 1, "one report a life, no more and no less"
        committed += 1
        if kills == (reports if long else SHORT_KILLS):
            break
    if long:
        assert kills == (reports - 1 if when == "before" else reports), "every report of the study"
    run.finish()
    repeated = reference.compare(run, repeated=0)
    measured(f"kill -9 {when} the commit of a report, {kills} times: {repeated} steps repeated")
