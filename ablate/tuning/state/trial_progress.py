"""The progress of one trial: its ledger record, updated by each committed write."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.core.config import DatasetFacts, Size
from ablate.core.objectives import means
from ablate.core.trial import Decision, Report, TrialConfig, TrialKey, TrialState, with_test
from ablate.ledger import EventRecord, NewTrial, ReportRecord, TrialRecord

DRIVER_STARTED = "driver_started"
UNSEEN = "training not seen"  # the constraint that a stopped trial violates for its sampler


@dataclass(kw_only=True)
class TrialProgress:
    """A trial's progress; `means` average the `replicates` of the report that counts (`is_counted`).

    `decisions` are by epoch. `attempt` counts how often it was handed out, over all drivers.
    `gpu_seconds` are its seconds times its GPUs; `began` has epoch and seconds of the first report.
    """

    config: TrialConfig
    size: Size
    sampler_state: Mapping[str, Any]
    state: TrialState = TrialState.WAITING
    attempt: int = 0
    epoch: int = 0
    wall_seconds: float = 0.0
    began: tuple[int, float] | None = None
    gpu_seconds: float = 0.0
    means: Mapping[str, float] = field(default_factory=dict)
    replicates: tuple[Mapping[str, float], ...] = ()
    diverged: bool = False
    decisions: dict[int, Decision] = field(default_factory=dict)
    curve: dict[int, Mapping[str, float]] | None = None  # means by epoch; only a campaign asks for them

    @staticmethod
    def of(record: TrialRecord) -> TrialProgress:
        """Return the progress of a stored trial before its reports are applied."""
        return TrialProgress(
            config=record.config,
            size=record.size,
            sampler_state=record.sampler_state,
            state=record.state,
            attempt=record.attempt,
        )

    @property
    def key(self) -> TrialKey:
        """The trial's key."""
        return self.config.key

    @property
    def number(self) -> int:
        """The trial's number within its data set."""
        return self.config.key.number

    def take(self, step: ReportSummary) -> None:
        """Apply one committed report."""
        self.gpu_seconds += (step.wall_seconds - self.wall_seconds) * step.gpus
        if self.is_counted(step):
            self.means, self.replicates = step.means, step.replicates
        else:
            of_seeds = zip(self.replicates, step.replicates, strict=True)
            self.means = with_test(self.means, step.means)
            self.replicates = tuple(with_test(counted, last) for counted, last in of_seeds)
        self.epoch, self.wall_seconds = step.epoch, step.wall_seconds
        self.began = self.began or (step.epoch, step.wall_seconds)
        self.diverged = step.diverged
        self.decisions[step.epoch] = step.decision
        if self.curve is not None:
            self.curve[step.epoch] = step.means

    def is_counted(self, step: ReportSummary) -> bool:
        """Return whether `step`, the trial's next report, is the one that counts from now on (see `counted_place`)."""
        best = self.config.best
        return best is None or best.replaces(*(each.get(best.metric, math.nan) for each in (step.means, self.means)))

    def metric(self, name: str, seed: int | None = None) -> float:
        """Return a metric as of the report that counts, the mean or that of one seed; NaN if there is none."""
        found = self.means if seed is None else self.replicates[self.config.seeds.index(seed)]
        return metric_of(name, means=found, size=self.size, wall_seconds=self.wall_seconds)


def further(like: TrialProgress, number: int, facts: DatasetFacts, **changed: Any) -> NewTrial:
    """Return trial `number`: the configuration of another one, except for what is `changed`."""
    config = replace(like.config, key=replace(like.key, number=number), **changed)
    return NewTrial(config=config, size=like.size, facts=facts)


@dataclass(frozen=True, kw_only=True)
class ReportSummary:
    """One report, averaged (`means`) and by replicate, with the committed decision and the GPUs of its trial."""

    key: TrialKey
    epoch: int
    means: Mapping[str, float]
    replicates: tuple[Mapping[str, float], ...]
    wall_seconds: float
    diverged: bool
    final: bool
    decision: Decision
    gpus: float = 1.0

    @staticmethod
    def of(key: TrialKey, report: Report, decision: Decision, gpus: float = 1.0) -> ReportSummary:
        """Return the summary of a report that was just committed."""
        return ReportSummary(
            key=key,
            epoch=report.epoch,
            means=means(report.metrics),
            replicates=tuple(report.metrics),
            wall_seconds=report.wall_seconds,
            diverged=any(report.diverged),
            final=report.final,
            decision=decision,
            gpus=gpus,
        )


def steps(records: Iterable[ReportRecord], events: Iterable[EventRecord]) -> list[ReportSummary]:
    """Return summaries in commit order of stored reports, which come ordered by trial, epoch and replicate.

    Of the events, those of drivers that started say how many GPUs their trials had.
    """
    found: dict[int, ReportSummary] = {}
    gpus = {each.driver_term: each.payload.get("gpus_per_trial") for each in events if each.kind == DRIVER_STARTED}
    for (key, epoch), group in groupby(records, key=lambda r: (r.key, r.epoch)):
        first, *others = group
        report = Report(
            epoch=epoch,
            metrics=tuple(row.metrics for row in (first, *others)),
            wall_seconds=first.wall_seconds,
            diverged=tuple(row.diverged for row in (first, *others)),
            final=first.final,
        )
        found[first.rowid] = ReportSummary.of(key, report, first.decision, gpus.get(first.driver_term) or 1.0)
    return [found[rowid] for rowid in sorted(found)]


def metric_of(name: str, *, means: Mapping[str, float], size: Size, wall_seconds: float) -> float:
    """Return the metric `name` of a study file, NaN if it is not known."""
    if name in size:
        return float(size[name])
    return wall_seconds if name == "wall_seconds" else means.get(name, math.nan)


def loss_matrix(rows: Iterable[tuple[float, ...]], width: int) -> NDArray[np.float64]:
    """Return losses as an array [n, m]; infinities become 1e300 or -1e300."""
    return np.clip(np.array(list(rows), dtype=np.float64).reshape(-1, width), -1e300, 1e300)
