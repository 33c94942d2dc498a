"""Notes a comparison's margins in its ledger, so that a report can say whether they were set before the results."""

from __future__ import annotations

from ablate.analysis.comparison_warnings import MARGIN, last_noted, noted_margins
from ablate.ledger import Ledger, StudyWriter
from ablate.study import Study


def note_margins(writer: StudyWriter, ledger: Ledger, study: Study) -> None:
    """Write an event with the file's margins and the number of trials that have ended, if the margins are others."""
    if study.compare is None:
        return
    noted = noted_margins(study.compare)
    if noted != last_noted(ledger.events(study.name)):
        ended = sum(trial.state.finished for trial in ledger.trials(study.name))
        writer.note(MARGIN, payload=noted | {"ended": ended})
