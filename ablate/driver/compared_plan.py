"""Notes a comparison's margins and seeds in its ledger: a report tells what was planned before the results."""

from __future__ import annotations

from ablate.ledger import Ledger, StudyWriter
from ablate.results.statistics.looks import PLAN, last_plan, plan_of
from ablate.study import Study


def note_plan(writer: StudyWriter, ledger: Ledger, study: Study) -> None:
    """Write an event with the file's margins and seeds and the number of ended trials, if the plan is another."""
    if study.compare is None:
        return
    plan = plan_of(study)
    if plan != last_plan(ledger.events(study.name)):
        ended = sum(trial.state.finished for trial in ledger.trials(study.name))
        writer.note(PLAN, payload=plan | {"ended": ended})
