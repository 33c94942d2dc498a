"""The writes of a StudyWriter in a fenced transaction: checked states, idempotent reports, dense numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, func, insert, select, update

from ablate.base.errors import LedgerError
from ablate.base.plain_text import storable
from ablate.core.objectives import SIZE_METRICS
from ablate.core.trial import Decision, Report, TrialKey, TrialState
from ablate.ledger.lease import forget
from ablate.ledger.records import NewTrial, metrics_to_text, to_text
from ablate.ledger.schema import lease_table, note_table, report_table, study_table, trial_table

# Built once: SQLAlchemy then finds the compiled statement by identity.
_FENCE = (
    update(lease_table)
    .where(
        lease_table.c.study_id == bindparam("study"),
        lease_table.c.term == bindparam("own"),
        lease_table.c.revision == bindparam("previous"),
    )
    .values(revision=bindparam("next"), active_seconds=bindparam("active"))
)
_STANDING = select(lease_table.c.term, lease_table.c.revision).where(lease_table.c.study_id == bindparam("study"))
_TRIAL = select(
    trial_table.c.id, trial_table.c.state, trial_table.c.attempt, trial_table.c.epochs_done, trial_table.c.replicates
).where(
    trial_table.c.study_id == bindparam("study"),
    trial_table.c.dataset == bindparam("dataset"),
    trial_table.c.number == bindparam("number"),
)
_DECISION = select(report_table.c.decision).where(
    and_(
        report_table.c.trial_id == bindparam("trial"),
        report_table.c.epoch == bindparam("epoch"),
        report_table.c.replicate == 0,
    )
)
_INSERT_REPORT = insert(report_table)
_CHANGE = update(trial_table).where(trial_table.c.id == bindparam("trial"))


@dataclass(frozen=True, kw_only=True)
class Scope:
    """One fenced transaction: connection, study, term, revision and time (`now`, UTC epoch seconds)."""

    connection: Connection
    study: str
    study_id: int
    term: int
    revision: int
    now: float


def fence(connection: Connection, study_id: int, term: int, previous: int, active_seconds: float) -> bool:
    """Raise the study's revision and lock its lease for the transaction; return False if it is another driver's."""
    values = {"study": study_id, "own": term, "previous": previous, "next": previous + 1, "active": active_seconds}
    return connection.execute(_FENCE, values).rowcount == 1


def standing(connection: Connection, study_id: int) -> tuple[int, int]:
    """Return the study's term and revision, after waiting for any transaction in flight on them."""
    row = connection.execute(_STANDING.with_for_update(), {"study": study_id}).one()
    return row.term, row.revision


def delete_study(scope: Scope) -> None:
    """Delete a study with all that belongs to it; its driver cannot write any more."""
    forget(scope.connection, scope.study_id)
    scope.connection.execute(delete(lease_table).where(lease_table.c.study_id == scope.study_id))
    scope.connection.execute(delete(study_table).where(study_table.c.id == scope.study_id))


def add_trials(scope: Scope, records: Sequence[NewTrial]) -> None:
    """Insert `records` as WAITING; raise LedgerError if their numbers leave a gap or repeat."""
    by_dataset: dict[str, list[NewTrial]] = defaultdict(list)
    for record in records:
        if record.config.key.study != scope.study:
            raise LedgerError(f"trial {record.config.key} does not belong to study {scope.study!r}")
        by_dataset[record.config.key.dataset].append(record)
    for dataset, group in by_dataset.items():
        here = and_(trial_table.c.study_id == scope.study_id, trial_table.c.dataset == dataset)
        highest = scope.connection.execute(select(func.max(trial_table.c.number)).where(here)).scalar_one()
        following = 0 if highest is None else highest + 1
        for expected, record in enumerate(group, start=following):
            if record.config.key.number != expected:
                raise LedgerError(f"trial {record.config.key} refused: the next number of {dataset!r} is {expected}")
    if records:
        scope.connection.execute(insert(trial_table), [_trial_row(scope, record) for record in records])


def start(scope: Scope, key: TrialKey) -> int:
    """Begin an attempt and return its number."""
    trial = _trial(scope, key)
    _require(key, trial, TrialState.WAITING, TrialState.RUNNING, doing="start")
    values: dict[str, Any] = {"state": TrialState.RUNNING, "attempt": trial.attempt + 1, "driver_term": scope.term}
    if trial.attempt == 0:
        values["started_at"] = scope.now
    _change(scope, trial, values)
    return int(trial.attempt) + 1


def requeue(scope: Scope, key: TrialKey, error: str | None) -> None:
    """Set a running trial back to WAITING."""
    trial = _trial(scope, key)
    _require(key, trial, TrialState.RUNNING, doing="requeue")
    _change(scope, trial, {"state": TrialState.WAITING, "error": _read_stored(error), "driver_term": scope.term})


def report(
    scope: Scope, key: TrialKey, report: Report, decision: Decision, state: TrialState | None, error: str | None
) -> Decision:
    """Insert a report once and return the stored decision."""
    trial = _trial(scope, key)
    stored = scope.connection.execute(_DECISION, {"trial": trial.id, "epoch": report.epoch}).scalar_one_or_none()
    if stored is not None:
        return Decision(stored)
    _require(key, trial, TrialState.RUNNING, doing=f"report epoch {report.epoch} of")
    if report.epoch <= trial.epochs_done:
        raise LedgerError(f"trial {key}: epoch {report.epoch} reported after epoch {trial.epochs_done}")
    if len(report.metrics) != trial.replicates:
        raise LedgerError(f"trial {key}: {len(report.metrics)} replicates reported, it has {trial.replicates}")
    if report.diverged and len(report.diverged) != trial.replicates:
        marks = len(report.diverged)
        raise LedgerError(f"trial {key}: {trial.replicates} replicates reported, but {marks} marks of divergence")
    scope.connection.execute(_INSERT_REPORT, _report_rows(scope, trial.id, report, decision))
    values: dict[str, Any] = {
        "epochs_done": report.epoch,
        "wall_seconds": float(report.wall_seconds),
        "checkpoint": report.checkpoint,
        "driver_term": scope.term,
    }
    sizes = {name: report.metrics[0].get(name) for name in SIZE_METRICS}  # of a trainable that is measured by training
    values |= {name: int(size) for name, size in sizes.items() if size is not None}
    _change(scope, trial, values | (_ending(scope, state, error) if state is not None else {}))
    return decision


def finish(scope: Scope, key: TrialKey, state: TrialState, error: str | None) -> None:
    """End a trial, once."""
    trial = _trial(scope, key)
    if trial.state == state and state.finished:
        return
    allowed = (TrialState.RUNNING,) if state is TrialState.COMPLETE else (TrialState.WAITING, TrialState.RUNNING)
    _require(key, trial, *allowed, doing=f"set {state} on")
    _change(scope, trial, {"driver_term": scope.term, **_ending(scope, state, error)})


def reopen(scope: Scope, key: TrialKey, *, from_start: bool) -> None:
    """Set a failed trial back to WAITING; a report that ended it is deleted, because it may come out differently.

    With `from_start` all its reports are deleted.
    """
    trial = _trial(scope, key)
    _require(key, trial, TrialState.FAIL, doing="reopen")
    own = report_table.c.trial_id == trial.id
    gone = own if from_start else own & (report_table.c.decision == Decision.STOP)
    scope.connection.execute(delete(report_table).where(gone))
    last = select(report_table.c.epoch, report_table.c.checkpoint).where(own).order_by(report_table.c.epoch.desc())
    kept = scope.connection.execute(last.limit(1)).one_or_none()
    values: dict[str, Any] = {"state": TrialState.WAITING, "error": None, "finished_at": None}
    reached = {"epochs_done": kept.epoch if kept else 0, "checkpoint": kept.checkpoint if kept else None}
    _change(scope, trial, values | reached | {"driver_term": scope.term})


def set_mlflow_run(scope: Scope, key: TrialKey, run_id: str) -> None:
    """Store a trial's MLflow run."""
    _change(scope, _trial(scope, key), {"mlflow_run_id": run_id})


def note(scope: Scope, kind: str, dataset: str | None, payload: Mapping[str, Any]) -> None:
    """Append an event."""
    row = {
        "study_id": scope.study_id,
        "kind": kind,
        "dataset": dataset,
        "payload": to_text({name: _read_stored(value) for name, value in payload.items()}, f"note {kind!r}"),
        "driver_term": scope.term,
        "created_at": scope.now,
    }
    scope.connection.execute(insert(note_table), row)


def _read_stored(value: Any) -> Any:
    return storable(value) if isinstance(value, str) else value


def _trial(scope: Scope, key: TrialKey) -> Row[*tuple[Any, ...]]:
    where = {"study": scope.study_id, "dataset": key.dataset, "number": key.number}
    row = scope.connection.execute(_TRIAL, where).one_or_none() if key.study == scope.study else None
    if row is None:
        raise LedgerError(f"trial {key} is not in study {scope.study!r}")
    return row


def _require(key: TrialKey, trial: Row[*tuple[Any, ...]], *allowed: TrialState, doing: str) -> None:
    if trial.state not in allowed:
        raise LedgerError(f"cannot {doing} trial {key}: it is {trial.state}, not {' or '.join(allowed)}")


def _change(scope: Scope, trial: Row[*tuple[Any, ...]], values: Mapping[str, Any]) -> None:
    scope.connection.execute(_CHANGE, {"trial": trial.id, "revision": scope.revision, **values})


def _ending(scope: Scope, state: TrialState, error: str | None) -> dict[str, Any]:
    if not state.finished:
        raise LedgerError(f"{state} does not end a trial")
    return {"state": state, "finished_at": scope.now, "error": _read_stored(error)}


def _trial_row(scope: Scope, record: NewTrial) -> dict[str, Any]:
    config, size = record.config, record.size
    return {
        "study_id": scope.study_id,
        "dataset": config.key.dataset,
        "number": config.key.number,
        "stage": config.stage,
        "config": to_text(config.to_json(), f"trial {config.key}"),
        "replicates": len(config.seeds),
        "state": TrialState.WAITING,
        "attempt": 0,
        "epochs_done": 0,
        "wall_seconds": 0.0,
        "size": to_text(dict(size), f"size of trial {config.key}"),
        **{name: size.get(name) for name in SIZE_METRICS},
        "shape": record.facts.model_dump_json() if record.facts else None,
        "sampler_state": to_text(dict(record.sampler_state), f"sampler state of trial {config.key}"),
        "driver_term": scope.term,
        "revision": scope.revision,
        "created_at": scope.now,
    }


def _report_rows(scope: Scope, trial_id: int, report: Report, decision: Decision) -> list[dict[str, Any]]:
    diverged = report.diverged or (False,) * len(report.metrics)
    same = {
        "study_id": scope.study_id,
        "trial_id": trial_id,
        "epoch": report.epoch,
        "final": int(report.final),
        "decision": decision,
        "checkpoint": report.checkpoint,
        "wall_seconds": float(report.wall_seconds),
        "driver_term": scope.term,
        "created_at": scope.now,
    }
    pairs = zip(report.metrics, diverged, strict=True)
    return [
        {**same, "replicate": index, "metrics": metrics_to_text(metrics), "diverged": int(gone)}
        for index, (metrics, gone) in enumerate(pairs)
    ]
