"""What happens in a study while it runs, as values for programs: changes of trials, and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ablate.core.trial import TrialKey, TrialState
from ablate.ledger import Ledger, ReportRecord, TrialRecord

Tell = Callable[[Mapping[str, Any]], object]


def follow(ledger: Ledger, study: str, tell: Tell | None) -> Callable[[], None]:
    """Return what tells the news of a study each time that it is called; without `tell`, what does nothing."""
    return (lambda: None) if tell is None else _Events(ledger, study, tell).update


class _Events:
    """Tells what a ledger has received of a study since the last call of `update` (docs/json.md).

    New trials are told before reports, and reports before the ends of trials.
    """

    def __init__(self, ledger: Ledger, study: str, tell: Tell) -> None:
        self._ledger, self._study, self._tell = ledger, study, tell
        trials = ledger.trials(study)
        self._states: dict[TrialKey, TrialState] = {trial.key: trial.state for trial in trials}
        self._revision = max((trial.revision for trial in trials), default=0)
        self._report = ledger.last_report(study)
        counts = {state.value: sum(trial.state is state for trial in trials) for state in TrialState}
        tell({"event": "started", "study": study, "trials": counts})

    def update(self) -> None:
        """Tell what is new."""
        trials = self._ledger.trials_since(self._study, self._revision)
        changed = [trial for trial in trials if self._states.get(trial.key) is not trial.state]
        for trial in changed:
            if not trial.state.finished:
                self._tell(_of_trial(trial))
        for report in self._ledger.reports_since(self._study, self._report):
            self._report = max(self._report, report.rowid)
            self._tell(_of_report(report))
        for trial in changed:
            if trial.state.finished:
                self._tell(_of_trial(trial))
        self._states |= {trial.key: trial.state for trial in changed}
        self._revision = max((trial.revision for trial in trials), default=self._revision)


def _of_trial(trial: TrialRecord) -> dict[str, Any]:
    return {
        "event": "trial",
        "trial": str(trial.key),
        "stage": trial.config.stage,
        "state": trial.state.value,
        "epochs": trial.epochs_done,
        "parameters": dict(trial.config.parameters),
        "error": trial.error,
    }


def _of_report(report: ReportRecord) -> dict[str, Any]:
    return {
        "event": "report",
        "trial": str(report.key),
        "replicate": report.replicate,
        "epoch": report.epoch,
        "decision": report.decision.value,
        "metrics": report.metrics,
    }
