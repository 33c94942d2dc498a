"""What follows from a report of a trial: whether the study can go on, the decision, and the trial's state."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ablate.base.errors import StudyFailedError
from ablate.core.objectives import on_test, value_fault
from ablate.core.trial import Decision, Report, TrialState, place_of, with_test
from ablate.tuning.state.trial_progress import ReportSummary, TrialProgress, metric_of

if TYPE_CHECKING:
    from ablate.study import Study
    from ablate.tuning.dataset_search import DatasetSearch


def require_objectives(search: DatasetSearch, trial: TrialProgress, report: Report) -> None:
    """Raise StudyFailedError if no replicate reports a metric that the study needs: no trial would.

    The same holds if the first report of all has a value that no objective can have, such as a percentage. A
    candidate of a campaign whose champion has reported fails alone.
    """
    study, campaign = search.study, search.campaign
    if campaign is not None and place_of(trial.sampler_state) and campaign.champion_reported:
        return
    fault = _faulty_value(study, report)
    if fault and not any(each.decisions for each in search.trials.values()):
        raise StudyFailedError(f"trial {trial.key}: {fault}")
    for name, size in trial.size.items():
        for told in (metrics[name] for metrics in report.metrics if name in metrics):
            if not math.isclose(told, size, rel_tol=1e-6):
                raise StudyFailedError(
                    f"trial {trial.key}: size(config) gives {name} {size:,.12g}, and its first report has {told:,.12g}."
                    " The search goes by `size`: let it return what `train` builds, or rename the reported number"
                )
    if lacking := lacking_metrics(study, {name for metrics in report.metrics for name in metrics}, trial.size):
        raise StudyFailedError(f"trial {trial.key}: {lacking}")


def lacking_metrics(study: Study, reported: Collection[str], sizes: Iterable[str]) -> str:
    """Return what is said of a first report without a metric that the study needs, else an empty text."""
    known = {*reported, *sizes, "wall_seconds"}
    needed = [*(o.metric for o in study.objectives), *(c.metric for c in study.constraints)]
    needed += [study.tuning_metric] if study.tuning_metric is not None else []
    missing = [name for name in dict.fromkeys(needed) if name not in known]
    if not missing:
        return ""
    return (
        f"its first report has no {', '.join(missing)}, which the study file asks for"
        f" (reported: {', '.join(sorted(reported))}). Report it, or change objectives and name of the study"
    )


def judge(
    search: DatasetSearch, trial: TrialProgress, report: Report
) -> tuple[Decision, TrialState | None, str | None]:
    """Return the decision on a report, the state in which it ends its trial or None, and the error of a FAIL."""
    study = search.study
    if fault := _faulty_value(study, report):
        return Decision.STOP, TrialState.FAIL, fault
    report = _without_diverged(study, trial, report)
    step = ReportSummary.of(trial.key, report, Decision.CONTINUE)
    means = step.means if trial.is_counted(step) else with_test(trial.means, step.means)
    if step.diverged and (report.final or trial.config.stage != "confirm"):
        seeds = [s for s, gone in zip(trial.config.seeds, report.diverged, strict=True) if gone]
        return Decision.STOP, TrialState.FAIL, f"diverged at {study.unit} {report.epoch} (seeds {seeds})"
    if report.final:
        missing = _missing_objectives(study, trial, means, step.wall_seconds)
        if missing:
            known, which = ", ".join(sorted(means)), "last" if trial.config.best is None else "best"
            error = f"no finite value of {', '.join(missing)} in the {which} report (reported: {known})"
            if absent := [name for name in missing if name not in means]:
                error += f": report {', '.join(absent)} in every {study.unit}"
            return Decision.STOP, TrialState.FAIL, error
        return Decision.CONTINUE, TrialState.COMPLETE, None
    decision = search.decide(trial, step)
    if decision is Decision.CONTINUE or search.is_users(trial):
        return Decision.CONTINUE, None, None
    lacking = [name for name in _missing_objectives(study, trial, means, step.wall_seconds) if name not in means]
    if not lacking:
        return decision, TrialState.PRUNED, None
    error = f"no {', '.join(lacking)} in the report of {study.unit} {report.epoch}, by which trials are stopped"
    return decision, TrialState.FAIL, error


def _faulty_value(study: Study, report: Report) -> str:
    """Return why a value in a report cannot be that of its metric, or an empty text."""
    for metrics in report.metrics:
        for metric, value in metrics.items():
            if fault := value_fault(study.objectives, metric, value):
                return f"at {study.unit} {report.epoch} {fault}"
    return ""


def _without_diverged(study: Study, trial: TrialProgress, report: Report) -> Report:
    """Return a report without its diverged replicates if the study says what they count as, and one is left.

    A replicate whose objectives are not finite at the end counts as diverged. The seeds of a tuning trial choose
    independently, so one that diverged does not end the others.
    """
    counted = study.compare is not None and bool(study.compare.diverged)
    if not counted and trial.config.stage != "tune":
        return report
    names = [o.metric for o in study.objectives] if report.final else []
    gone = report.diverged or (False,) * len(report.metrics)
    left = tuple(
        metrics
        for metrics, diverged in zip(report.metrics, gone, strict=True)
        if not diverged and all(math.isfinite(metrics.get(name, 0.0)) for name in names)
    )
    return replace(report, metrics=left, diverged=()) if left else report


def _missing_objectives(
    study: Study, trial: TrialProgress, means: Mapping[str, float], wall_seconds: float
) -> list[str]:
    """Return the objectives that have no finite value in `means`; a confirmation is judged on the test split."""
    names = [o.metric for o in study.objectives]
    if trial.config.stage == "confirm":
        confirms = study.compare is None
        names = [on_test(name) if confirms or on_test(name) in means else name for name in names]
    values = {name: metric_of(name, means=means, size=trial.size, wall_seconds=wall_seconds) for name in names}
    return [name for name, value in values.items() if not abs(value) < float("inf")]
