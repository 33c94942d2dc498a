"""Writes a study under a lease: every write is one transaction, fenced by the lease's term."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, update

from ablate.base.errors import LedgerError, LedgerMovedError, StaleDriverError
from ablate.core.trial import Decision, Report, TrialKey, TrialState
from ablate.ledger import writes
from ablate.ledger.database import Database
from ablate.ledger.lease import Lease, LeaseRequest
from ablate.ledger.records import NewEvent, NewTrial
from ablate.ledger.schema import lease_table

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Attempt(Generic[T]):
    """One write across its retries: the revision before it, and the answer of a commit that may have happened."""

    previous: int | None
    answers: list[T]


class StudyWriter:
    """Writes one study while its term is the newest; thread-safe.

    Each method commits before it returns. Once another driver has raised the term, it writes nothing and
    raises StaleDriverError. It raises LedgerError if the trial's state does not allow the request or the database does
    not answer. Transient faults are retried. A commit whose acknowledgement was lost is recognised by the study's
    revision and not repeated.
    """

    def __init__(
        self,
        database: Database,
        wanted: LeaseRequest,
        lease: Lease,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.study = wanted.study
        self.holder = wanted.holder
        self.term = lease.term
        self.lease_seconds = wanted.lease_seconds
        self._database = database
        self._study_id = lease.study_id
        self._revision: int | None = lease.revision
        self._clock = clock
        self._monotonic = monotonic
        self._active_before = lease.active_seconds
        self._active_since: float | None = None  # monotonic seconds of the first write
        self._lock = threading.RLock()
        self._lost: LedgerError | None = None  # why this driver may not write any more
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name=f"lease of {self.study}", daemon=True)
        self._heart.start()

    @property
    def lost(self) -> bool:
        """Whether a write or the heartbeat has found that another driver took over the study, or the ledger is gone."""
        return self._lost is not None

    def active_seconds(self) -> float:
        """Return the seconds that all drivers have worked on the study, this one from its first write.

        Monotonic clocks measure it. Each write and each heartbeat stores it.
        """
        since = self._active_since
        return self._active_before + (0.0 if since is None else self._monotonic() - since)

    def check(self) -> None:
        """Raise StaleDriverError or LedgerMovedError if the lease is known to be lost; query no database."""
        if self._lost is not None:
            raise self._lost

    def add_trials(self, records: Sequence[NewTrial], event: NewEvent | None = None) -> None:
        """Commit suggestions as WAITING and `event`, all or none.

        Raises LedgerError if a number is not its data set's next.
        """
        if records or event is not None:
            self._write(lambda scope: writes.add_trials(scope, records), event)

    def start(self, key: TrialKey) -> int:
        """Set a WAITING or RUNNING trial to RUNNING and return the number of this attempt, from 1."""
        return self._write(lambda scope: writes.start(scope, key))

    def requeue(self, key: TrialKey, error: str | None = None, event: NewEvent | None = None) -> None:
        """Set a RUNNING trial back to WAITING, with `event`; `error` says why its attempt ended."""
        self._write(lambda scope: writes.requeue(scope, key, error), event)

    def report(
        self, key: TrialKey, report: Report, decision: Decision, state: TrialState | None = None,
        error: str | None = None, event: NewEvent | None = None,
    ) -> Decision:  # fmt: skip
        """Commit a report with its decision, the trial's end if `state` is given, and `event`.

        Returns the stored decision.

        A repeated epoch is ignored and its first decision returned. Raises LedgerError unless the trial is RUNNING, the
        epoch is later than its last one, and there is one mapping of metrics per replicate.
        """
        return self._write(lambda scope: writes.report(scope, key, report, decision, state, error), event)

    def finish(self, key: TrialKey, state: TrialState, error: str | None = None, event: NewEvent | None = None) -> None:
        """End a trial, with `event`; a repeat with the same state is ignored, COMPLETE needs a RUNNING trial."""
        self._write(lambda scope: writes.finish(scope, key, state, error), event)

    def reopen(self, key: TrialKey, event: NewEvent, *, from_start: bool = False) -> None:
        """Set a FAIL trial back to WAITING, without the report that ended it, or any report; commit `event` with it."""
        self._write(lambda scope: writes.reopen(scope, key, from_start=from_start), event)

    def set_mlflow_run(self, key: TrialKey, run_id: str) -> None:
        """Store the MLflow run of a trial."""
        self._write(lambda scope: writes.set_mlflow_run(scope, key, run_id))

    def note(self, kind: str, dataset: str | None = None, payload: Mapping[str, Any] | None = None) -> None:
        """Append an event to the study's log."""
        self._write(lambda scope: writes.note(scope, kind, dataset, payload or {}))

    def release(self) -> None:
        """Stop the heartbeat and free the study for the next driver; may be called again."""
        self._ended.set()
        if threading.current_thread() is not self._heart:
            self._heart.join()
        with self._lock:
            if not self._lost:
                self._database.write(lambda connection: self._extend(connection, None), retry=False)
                self._database.checkpoint()

    def delete_study(self) -> None:
        """Delete the study with all that belongs to it; this was the last write."""
        with self._lock:
            self._write(writes.delete_study)
            self._lost = LedgerError(f"study {self.study!r} is deleted")

    def renew(self) -> None:
        """Renew the lease; raise StaleDriverError if another driver holds it."""
        with self._lock:
            self._require_held()
            until = self._clock() + self.lease_seconds
            if not self._commit(lambda connection: self._extend(connection, until), retry=False):
                raise self._stale()

    def __enter__(self) -> StudyWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.release()
        except LedgerError:
            if error is None:
                raise
            log.warning("the lease of study %r could not be released; it ends by itself", self.study)

    def _write(self, body: Callable[[writes.Scope], T], event: NewEvent | None = None) -> T:
        def act(scope: writes.Scope) -> T:
            result = body(scope)
            if event is not None:
                writes.note(scope, event.kind, event.dataset, event.payload)
            return result

        with self._lock:
            self._require_held()
            if self._active_since is None:
                self._active_since = self._monotonic()
            attempt: _Attempt[T] = _Attempt(previous=self._revision, answers=[])
            self._revision = None  # unknown until the outcome is known
            result, self._revision = self._commit(lambda connection: self._fenced(connection, attempt, act))
            return result

    def _commit(self, body: Callable[[Connection], T], *, retry: bool = True) -> T:
        try:
            return self._database.write(body, retry=retry)
        except LedgerMovedError as error:
            self._lost = error
            raise

    def _fenced(self, connection: Connection, attempt: _Attempt[T], body: Callable[[writes.Scope], T]) -> tuple[T, int]:
        if attempt.previous is None:
            term, attempt.previous = writes.standing(connection, self._study_id)
            if term != self.term:
                raise self._stale()
        revision = attempt.previous + 1
        if not writes.fence(connection, self._study_id, self.term, attempt.previous, self.active_seconds()):
            if attempt.answers and writes.standing(connection, self._study_id) == (self.term, revision):
                return attempt.answers[0], revision
            raise self._stale()
        scope = writes.Scope(
            connection=connection,
            study=self.study,
            study_id=self._study_id,
            term=self.term,
            revision=revision,
            now=self._clock(),
        )
        attempt.answers[:] = [body(scope)]
        return attempt.answers[0], revision

    def _require_held(self) -> None:
        if self._ended.is_set():
            raise LedgerError(f"study {self.study!r}: this driver has released it and may not write any more")

    def _stale(self) -> LedgerError:
        self._lost = StaleDriverError(
            f"study {self.study!r}: another driver took over; this one (term {self.term}) may not write any more"
        )
        return self._lost

    def _extend(self, connection: Connection, until: float | None) -> bool:
        mine = (lease_table.c.study_id == self._study_id) & (lease_table.c.term == self.term)
        values = {"held_until": until, "beat": lease_table.c.beat + 1, "active_seconds": self.active_seconds()}
        return bool(connection.execute(update(lease_table).where(mine).values(values)).rowcount)

    def _beat(self) -> None:
        interval = self.lease_seconds / 3
        said = False
        while not self._ended.wait(interval):
            try:
                started = time.monotonic()
                self.renew()
                self._database.checkpoint()
                said = False
                interval = max(0.0, self.lease_seconds / 3 - (time.monotonic() - started))
            except (StaleDriverError, LedgerMovedError):
                return
            except LedgerError as error:
                if self._ended.is_set():
                    return
                if not said:
                    log.warning("the lease of study %r could not be renewed, trying on: %s", self.study, error)
                said = True
                interval = min(1.0, self.lease_seconds / 3)
