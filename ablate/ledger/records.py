"""The records of the ledger as frozen dataclasses, and their JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from pydantic import ValidationError
from sqlalchemy import RowMapping

from ablate.base.errors import LedgerError
from ablate.base.files import Place
from ablate.base.plain_text import one_printable_line
from ablate.base.redaction import error_text
from ablate.core.config import DatasetFacts, Size
from ablate.core.objectives import mean
from ablate.core.trial import Decision, TrialConfig, TrialKey, TrialState, counted_place, with_test
from ablate.ledger.lease import is_dead, is_here

# Errors that a damaged row can raise; RecursionError is that of JSON with too deep nesting.
DAMAGED = (ValidationError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class NewTrial:
    """A suggestion, before it is committed; it enters the ledger as WAITING."""

    config: TrialConfig
    size: Size = field(default_factory=dict)
    facts: DatasetFacts | None = None
    sampler_state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """A study and the holder of its lease; times are UTC epoch seconds, and the holder's are None without one.

    `term` is that of the lease. `active_seconds` is how long drivers have worked on the study. `store` and
    `tracking` are the last places of checkpoints and tracking, without credentials (None if unknown). `renewed_at` is
    when the lease was last renewed, by the clock of the holder's machine. `holder_here` is true if the holder's process
    is one of this machine, and `holder_gone` if that process had ended when the record was read.
    """

    name: str
    file_text: str
    fingerprint: str
    seed: int
    term: int
    revision: int
    created_at: float
    holder: str | None
    host: str | None
    pid: int | None
    held_since: float | None
    held_until: float | None
    active_seconds: float = 0.0
    store: str | None = None
    tracking: str | None = None
    renewed_at: float | None = None
    holder_here: bool = False
    holder_gone: bool = False


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A stored trial; times are UTC epoch seconds, `wall_seconds` is training alone over all attempts.

    `size` is what was known before training; `params`, `params_body` and `flops` are from it or from a report.
    `revision` is the study's revision at the trial's last change (see Ledger.trials_since).
    """

    config: TrialConfig
    state: TrialState
    attempt: int
    epochs_done: int
    wall_seconds: float
    size: dict[str, float]
    params: int | None
    params_body: int | None
    flops: int | None
    facts: DatasetFacts | None
    sampler_state: dict[str, Any]
    error: str | None
    checkpoint: str | None
    mlflow_run_id: str | None
    driver_term: int
    revision: int
    created_at: float
    started_at: float | None
    finished_at: float | None

    @property
    def key(self) -> TrialKey:
        """The trial's key."""
        return self.config.key

    @property
    def q(self) -> float | None:
        """Q = K M / P (paper A, Eq. 12), or None if the trial was not measured."""
        if not self.size or self.facts is None:
            return None
        return self.facts.overdetermination(self.size, self.config.task, self.config.protocol)

    @property
    def evaluated_samples(self) -> tuple[int | None, int | None]:
        """The numbers of validation and test samples, None if not known."""
        return self.facts.evaluated_samples(self.config.task, self.config.protocol) if self.facts else (None, None)


@dataclass(frozen=True, kw_only=True)
class ReportRecord:
    """One replicate's share of a committed report; `rowid` grows with every report of the study."""

    rowid: int
    key: TrialKey
    replicate: int
    epoch: int
    metrics: dict[str, float]
    diverged: bool
    final: bool
    decision: Decision
    checkpoint: str | None
    wall_seconds: float
    driver_term: int
    created_at: float


def counted_reports(config: TrialConfig, reports: Sequence[ReportRecord]) -> list[ReportRecord]:
    """Return the rows of the report of a trial that counts, with its metrics on the test split (`with_test`).

    `reports` are all of the trial, by epoch and replicate.
    """
    by_epoch = [list(rows) for _, rows in groupby(reports, key=lambda report: report.epoch)]
    name = "" if config.best is None else config.best.metric
    place = counted_place(config.best, ({name: mean(row.metrics.get(name) for row in rows)} for rows in by_epoch))
    return [
        row if row is last else replace(row, metrics=with_test(row.metrics, last.metrics))
        for row, last in (zip(by_epoch[place], by_epoch[-1], strict=True) if by_epoch else ())
    ]


@dataclass(frozen=True, kw_only=True)
class EventRecord:
    """An event of the study, such as the freezing of a front or the opening of the test split."""

    rowid: int
    kind: str
    dataset: str | None
    payload: dict[str, Any]
    driver_term: int
    created_at: float


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event before it is committed, in the transaction of the write that it belongs to."""

    kind: str
    dataset: str | None
    payload: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Glance:
    """A study at one moment: its trials by data set and state, and the rowid of its newest event (0 without one)."""

    study: StudyRecord
    counts: dict[str, dict[TrialState, int]]
    last_event: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The whole record of one study at one moment; `study` is None if the ledger has no such study.

    Trials are ordered by data set and number, reports by trial, epoch and replicate, `events` by commit.
    `checkpoints` is the place of the trials' files if they may be read too; the ledger itself does not name it.
    """

    study: StudyRecord | None
    trials: list[TrialRecord]
    reports: list[ReportRecord]
    events: list[EventRecord]
    checkpoints: Place | None = None


def to_text(value: object, what: str) -> str:
    """Return `value` as strict JSON; raise LedgerError if it is not JSON (NaN, infinity, foreign types)."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise LedgerError(f"{what} cannot be stored as JSON: {error}") from error


def metrics_to_text(metrics: Mapping[str, float]) -> str:
    """Return one replicate's metrics as JSON: NaN as null, infinities as "inf" and "-inf"."""
    values: dict[str, object] = {}
    for name, value in metrics.items():
        number = float(value)
        values[name] = number if math.isfinite(number) else (None if math.isnan(number) else str(number))
    return json.dumps(values, separators=(",", ":"))


def metrics_from_text(text: str) -> dict[str, float]:
    """Return the metrics of `metrics_to_text`, null as NaN."""
    return {name: math.nan if value is None else float(value) for name, value in json.loads(text).items()}


def study_from_row(row: RowMapping) -> StudyRecord:
    """Return the record of a row of study and lease."""
    names = (
        "name", "fingerprint", "seed", "term", "revision", "created_at", "holder", "host", "pid", "held_since",
        "held_until", "active_seconds", "store", "tracking",
    )  # fmt: skip
    held = {"renewed_at": row["held_until"] and row["held_until"] - row["lease_seconds"]}
    held |= {"holder_here": is_here(row), "holder_gone": is_dead(row)}
    return StudyRecord(file_text=row["file"], **{name: row[name] for name in names}, **held)


def trial_from_row(row: RowMapping) -> TrialRecord:
    """Return the record of a trial's row; raise LedgerError if it is damaged."""
    same = (
        "attempt", "epochs_done", "wall_seconds", "params", "params_body", "flops", "error", "checkpoint",
        "mlflow_run_id", "driver_term", "revision", "created_at", "started_at", "finished_at",
    )  # fmt: skip
    try:
        config = TrialConfig.from_json(json.loads(row["config"]))
        return TrialRecord(
            config=config,
            state=TrialState(row["state"]),
            facts=config.settings.facts_type.model_validate_json(row["shape"]) if row["shape"] else None,
            sampler_state=json.loads(row["sampler_state"]),
            size=json.loads(row["size"]),
            **{name: row[name] for name in same},
        )
    except DAMAGED as error:
        raise _explain_damage(f"trial {row['dataset']}/{row['number']}", error) from error


def report_from_row(row: RowMapping, study: str) -> ReportRecord:
    """Return the record of a report's row joined with its trial's data set and number; raise LedgerError."""
    key = TrialKey(study=study, dataset=row["dataset"], number=row["number"])
    try:
        metrics = metrics_from_text(row["metrics"])
    except DAMAGED as error:
        raise _explain_damage(f"epoch {row['epoch']} of trial {row['dataset']}/{row['number']}", error) from error
    same = ("replicate", "epoch", "checkpoint", "wall_seconds", "driver_term", "created_at")
    return ReportRecord(
        rowid=row["id"],
        key=key,
        metrics=metrics,
        diverged=bool(row["diverged"]),
        final=bool(row["final"]),
        decision=Decision(row["decision"]),
        **{name: row[name] for name in same},
    )


def event_from_row(row: RowMapping) -> EventRecord:
    """Return the record of an event's row; raise LedgerError if it is damaged.

    A request whose payload cannot be read has none: the driver refuses it.
    """
    kind = row["kind"]
    try:
        term, created_at = int(row["driver_term"]), float(row["created_at"])
        payload = _request_payload(row) if kind == "requested" else json.loads(row["payload"])
        if not isinstance(payload, dict):
            raise TypeError("its payload is no JSON object")
    except DAMAGED as error:
        raise _explain_damage(f"event {row['id']} ({kind!r})", error) from error
    same = {"rowid": row["id"], "kind": kind, "dataset": row["dataset"]}
    return EventRecord(**same, payload=payload, driver_term=term, created_at=created_at)


def _request_payload(row: RowMapping) -> dict[str, Any]:
    try:
        payload = json.loads(row["payload"])
    except DAMAGED:
        return {}
    return payload if isinstance(payload, dict) else {}


def _explain_damage(what: str, error: Exception) -> LedgerError:
    said = error_text(error, first_line=True)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        said = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return LedgerError(one_printable_line(f"{what} is damaged: {said}"))
