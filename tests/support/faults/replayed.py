"""What search and scheduler must have said, worked out again from the finished ledger alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ablate.core.trial import Decision, TrialState
from ablate.driver.data_checks import check_data
from ablate.engine.models import measure
from ablate.ledger import ReportRecord, Snapshot, TrialRecord
from ablate.study import parse_study
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.state.trial_progress import steps
from support.faults.study_runs import StudyRun
from support.trials import measure_by


def asha_decisions(reports: list[ReportRecord], *, reduction: int, min_epochs: int, epochs: int) -> list[Decision]:
    """Return what ASHA says of each report of a search trial, one replicate each, in the order of their commit.

    A second implementation, for one objective that is minimised, of trials that report every epoch: at a rung a trial
    goes on if fewer than max(1, n // reduction) of the n losses seen there, its own among them, are smaller.
    """
    rungs: dict[int, list[float]] = defaultdict(list)
    levels = {min_epochs * reduction**k for k in range(20)} & set(range(1, epochs))
    decisions = []
    for report in reports:
        if report.epoch not in levels:
            decisions.append(Decision.CONTINUE)
            continue
        seen = rungs[report.epoch]
        seen.append(report.metrics["val_loss"])
        better = sum(loss < seen[-1] for loss in seen)
        decisions.append(Decision.CONTINUE if better < max(1, len(seen) // reduction) else Decision.STOP)
    return decisions


def check_decisions(run: StudyRun) -> int:
    """Fail unless every STOP and CONTINUE is what ASHA says of the reports before it; return how many were STOP."""
    study = parse_study(run.text)
    with run.ledger() as ledger:
        searched = {t.key: t for t in ledger.trials(run.name) if t.config.stage == "search"}
        reports = [r for r in ledger.reports_since(run.name, 0) if r.key in searched]
    epochs = next(iter(searched.values())).config.epochs
    scheduler = study.scheduler
    said = asha_decisions(reports, reduction=scheduler.reduction, min_epochs=scheduler.min_epochs, epochs=epochs)
    assert [report.decision for report in reports] == said
    return said.count(Decision.STOP)


def check_suggestions(run: StudyRun, dataset: str = "digits") -> int:
    """Fail unless every configuration is what the sampler gives when it knows exactly what was committed before it.

    Return how many were compared. Whatever a driver forgot or made up on its way leads to another answer.
    """
    study = parse_study(run.text)
    shapes = check_data(study, None)
    with run.ledger() as ledger:
        trials = [t for t in ledger.trials(run.name) if t.config.stage == "search"]
        reports = ledger.reports_since(run.name, 0)
    for number, trial in enumerate(trials):
        known = [standing(t, trial.created_at) for t in trials[:number]]
        keys = {t.key for t in known}
        before = [r for r in reports if r.created_at < trial.created_at and r.key in keys]
        lane = DatasetSearch.of(study, dataset, measure=measure_by(measure), facts_of=shapes.__getitem__)
        lane.restore(Snapshot(study=None, trials=known, reports=before, events=[]), steps(before, []))
        again = lane.suggest()
        assert again is not None
        assert again.config == trial.config, f"trial {number} was suggested from something else"
    return len(trials)


def standing(trial: TrialRecord, moment: float) -> TrialRecord:
    """Return a trial's record as it stood at `moment`."""
    over = trial.finished_at is not None and trial.finished_at < moment
    return trial if over else replace(trial, state=TrialState.RUNNING, finished_at=None, error=None)
