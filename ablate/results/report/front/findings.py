"""The findings of one data set, computed once for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ablate.core.config import Protocol
from ablate.core.objectives import count_states, is_share
from ablate.results.analysis import (
    Confirmations,
    CurveFit,
    Hypervolume,
    confirmations,
    fit_curve,
    front_stage,
    hypervolume,
    metric_at,
    pooled,
    quality_objective,
)
from ablate.results.analysis.assessment import Assessment, assessments
from ablate.results.analysis.study_warnings import StudyWarning
from ablate.results.report.confirmation import withheld_text
from ablate.results.report.front.cautions import cautions
from ablate.results.report.front.summary import Pick, size_metric, summary
from ablate.results.report.tables import last_reports, quality_name, replicate_values
from ablate.study import Study

STATE_WORDS = {
    "COMPLETE": "complete",
    "PRUNED": "stopped early",
    "FAIL": "failed",
    "RUNNING": "unfinished",
    "WAITING": "waiting",
}


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings of one data set; `front` is its part of `front_table`.

    `listed` are its trials as in the ledger; in `trials` and `reports` those of one network's seeds are pooled. While a
    confirmation or an extended search is unfinished there are no picks, assessment and fit, and `answer` says why.
    """

    dataset: str
    protocol: Protocol
    stage: str
    listed: pl.DataFrame
    trials: pl.DataFrame
    reports: pl.DataFrame
    front: pl.DataFrame
    confirmations: Confirmations
    hypervolume: Hypervolume
    fit: CurveFit
    answer: str
    picks: tuple[Pick, ...]
    assessed: Assessment | None
    warnings: tuple[StudyWarning, ...]

    @property
    def tested(self) -> bool:
        """Whether the numbers are of confirmation runs on the test split."""
        return self.stage == "confirm"

    @property
    def provisional(self) -> bool:
        """Whether a confirmation, or an extended search, is unfinished."""
        return self.confirmations.is_open

    @property
    def confirmed(self) -> bool:
        """Whether the numbers are of a test split that influenced no choice, and every confirmation has ended."""
        return self.tested and not self.provisional and self.protocol == "held_out"


def findings(
    study: Study,
    dataset: str,
    trials: pl.DataFrame,
    reports: pl.DataFrame,
    front: pl.DataFrame,
    notes: Sequence[Any] = (),
    *,
    assessed: Mapping[str, Assessment] | None = None,
) -> Findings:
    """Return the findings of one data set; every argument may be empty, `assessed` is as in `front_table`."""
    if assessed is None:
        assessed = assessments(study, trials, reports, notes)
    listed = trials.filter(pl.col("dataset") == dataset)
    own, own_reports = pooled(listed, reports.filter(pl.col("dataset") == dataset) if reports.height else reports)
    rows = front.filter(pl.col("dataset") == dataset)
    known = confirmations(listed, dataset, notes)
    answer, picks = summary(study, dataset, rows, assessed.get(dataset))
    if rows.height and (withheld := withheld_text(study, known)):
        answer, picks = withheld, ()
    return Findings(
        dataset=dataset,
        protocol=study.protocol,
        stage=front_stage(own, dataset),
        listed=listed,
        trials=own,
        reports=own_reports,
        front=rows,
        confirmations=known,
        hypervolume=hypervolume(own, study.objectives, constraints=study.constraints),
        fit=front_fit(study, rows.clear() if known.is_open else rows, own_reports),
        answer=answer,
        picks=picks,
        assessed=assessed.get(dataset),
        warnings=cautions(study, dataset, listed, rows, known),
    )


def front_fit(study: Study, front: pl.DataFrame, reports: pl.DataFrame) -> CurveFit:
    """Fit error (1 - accuracy, or the loss) against size along the front, with the replicates of each network."""
    objective, size = quality_objective(study.objectives), size_metric(study)
    last = last_reports(reports)
    sizes, errors, networks = [], [], []
    for row in front.iter_rows(named=True):
        metric = metric_at(objective.metric, row["stage"])
        values = replicate_values(last, row["dataset"], row["trial"], metric) or [row[quality_name(study)]]
        sizes += [float(row[size] or 0)] * len(values)
        errors += [1 - value if is_share(metric) else value for value in values]
        networks += [row["trial"]] * len(values)
    return fit_curve(sizes, errors, networks=networks)


def state_counts(trials: pl.DataFrame) -> dict[str, dict[str, int]]:
    """Return {stage: {state: number of trials}}, stages in the order search, confirm; absent ones are omitted."""
    counts: dict[str, dict[str, int]] = {}
    for stage in ("search", "confirm"):
        states = trials.filter(pl.col("stage") == stage)["state"].to_list() if trials.height else []
        if states:
            counts[stage] = {state: count for state, count in count_states(states).items() if count}
    return counts


def counts_text(counts: dict[str, dict[str, int]]) -> str:
    """Return `24 search trials (15 complete, 9 stopped early), 5 confirmation trials (5 complete)`."""
    parts = []
    for stage, states in counts.items():
        total = sum(states.values())
        listed = ", ".join(f"{number} {STATE_WORDS[state]}" for state, number in states.items())
        word = "confirmation" if stage == "confirm" else "search"
        parts.append(f"{total:,} {word} trial{'s' * (total != 1)} ({listed})")
    return ", ".join(parts) or "no trials"
