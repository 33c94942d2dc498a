"""The ledger: the only record of what happened in a study, read from anywhere, written by one driver at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import Connection, RowMapping, Select, bindparam, func, or_, select

from ablate.base.errors import LedgerError, NoLedgerError
from ablate.base.processes import this_process
from ablate.core.config import LARGEST
from ablate.core.trial import TrialState
from ablate.ledger.database import Database
from ablate.ledger.lease import LEASE_SECONDS, LeaseRequest, claim
from ablate.ledger.records import (
    EventRecord,
    Glance,
    ReportRecord,
    Snapshot,
    StudyRecord,
    TrialRecord,
    event_from_row,
    report_from_row,
    study_from_row,
    to_text,
    trial_from_row,
)
from ablate.ledger.requests import ANSWERED, REQUESTED, Request, add_request, find_unanswered
from ablate.ledger.schema import lease_table, note_table, report_table, study_table, trial_table
from ablate.ledger.study_writer import StudyWriter

RETRY_SECONDS = 30.0
R = TypeVar("R")


class Ledger:
    """Reads every study in one database and grants leases to write one; safe to share among threads.

    Reads need no lease and never block a writer; each is one consistent snapshot.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._monotonic = monotonic

    @staticmethod
    def open(
        url: str,
        *,
        create: bool = True,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Ledger:
        """Open `sqlite:///PATH` or `postgresql+psycopg://USER@HOST/DATABASE`.

        With `create`, missing tables are made. A transient fault (a locked file, a lost connection) is retried for up
        to `retry_seconds`. `clock` returns UTC epoch seconds for timestamps, `monotonic` seconds for durations. Raises
        LedgerError in one line, never with a password, if the database is unreachable, unwritable, damaged, of another
        schema version, or absent with `create=False`.
        """
        return Ledger(Database(url, create=create, retry_seconds=retry_seconds), clock=clock, monotonic=monotonic)

    @staticmethod
    def look(url: str) -> str:
        """Return in one line what is at `url`, creating nothing; raise LedgerError if it cannot hold a ledger."""
        try:
            with Ledger.open(url, create=False, retry_seconds=0.0) as ledger:
                count = len(ledger.studies())
                return f"{ledger.url}: {count} {'study' if count == 1 else 'studies'}"
        except NoLedgerError as error:
            Database.refuse_where_none_can_be_made(url)
            return f"{str(error).removeprefix('ledger ')} yet; the first study makes one"

    @property
    def url(self) -> str:
        """The storage URL without its password."""
        return self._database.place

    @property
    def id(self) -> str:
        """The id that was made with the tables."""
        return self._database.ledger_id

    def close(self) -> None:
        """Close every connection."""
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def acquire(
        self,
        study: str,
        *,
        file_text: str,
        fingerprint: str,
        seed: int,
        holder: str,
        lease_seconds: float = LEASE_SECONDS,
        takeover: bool = False,
        unrenewed: tuple[object, ...] | None = None,
        store: str | None = None,
        tracking: str | None = None,
        afresh: bool = False,
    ) -> StudyWriter:
        """Create the study or raise its term by one, and return the writer that holds its lease.

        Raises LedgerHeldError (who, where, since when) while another driver holds the lease, unless `takeover`. A lease
        has ended if it was released, if its process is gone from this machine, or if it still has the mark `unrenewed`
        that its LedgerHeldError gave `lease_seconds` ago. Raises StudyMismatchError if the study was started with
        another seed. File and fingerprint are replaced; so are `store` and `tracking` (without credentials) if given.
        With `afresh` the study's trials are deleted, and StudyMismatchError is raised if one of them has reported.
        """
        wanted = LeaseRequest(
            study=study,
            file_text=file_text,
            fingerprint=fingerprint,
            seed=seed,
            holder=holder,
            process=this_process(),
            now=self._clock(),
            lease_seconds=lease_seconds,
            takeover=takeover,
            unrenewed=unrenewed,
            store=store,
            tracking=tracking,
            afresh=afresh,
        )
        lease = self._database.write(lambda connection: claim(connection, wanted))
        return StudyWriter(self._database, wanted, lease, clock=self._clock, monotonic=self._monotonic)

    def studies(self) -> list[StudyRecord]:
        """Return every study, ordered by name."""
        return [study_from_row(row) for row in self._rows(self._studies().order_by(study_table.c.name))]

    def study(self, name: str) -> StudyRecord | None:
        """Return one study, or None."""
        rows = self._rows(self._studies().where(study_table.c.name == name))
        return study_from_row(rows[0]) if rows else None

    def trials(self, name: str, dataset: str | None = None) -> list[TrialRecord]:
        """Return a study's trials ordered by data set and number."""
        query = _TRIALS.where(study_table.c.name == name)
        if dataset is not None:
            query = query.where(trial_table.c.dataset == dataset)
        return self._made(trial_from_row, self._rows(query.order_by(*_BY_TRIAL)))

    def trials_since(self, name: str, revision: int) -> list[TrialRecord]:
        """Return the trials changed after `revision`, in the order of their last change (revision)."""
        query = _TRIALS.where(study_table.c.name == name, trial_table.c.revision > revision)
        return self._made(trial_from_row, self._rows(query.order_by(trial_table.c.revision, *_BY_TRIAL)))

    def reports(
        self, name: str, dataset: str | None = None, number: int | None = None, *, after: int = 0
    ) -> list[ReportRecord]:
        """Return a study's reports of the epochs after `after`, ordered by data set, trial, epoch and replicate."""
        query = _REPORTS.where(study_table.c.name == name)
        if after > 0:
            query = query.where(report_table.c.epoch > after)
        if dataset is not None:
            query = query.where(trial_table.c.dataset == dataset)
        if number is not None:
            query = query.where(trial_table.c.number == number)
        return self._made(partial(report_from_row, study=name), self._rows(query.order_by(*_BY_REPORT)))

    def last_report(self, name: str) -> int:
        """Return the rowid of the report of a study that was committed last, 0 without any: a cursor."""
        of_study = report_table.join(study_table, report_table.c.study_id == study_table.c.id)
        last = select(func.max(report_table.c.id).label("last")).select_from(of_study)
        return self._rows(last.where(study_table.c.name == name))[0]["last"] or 0

    def reports_since(self, name: str, rowid: int) -> list[ReportRecord]:
        """Return the reports committed after the one with `rowid` (0: all) in the order of commit.

        `rowid` of the last one is the cursor of the next call: a study's rowids become visible in rising order.
        """
        query = _REPORTS.where(study_table.c.name == name, report_table.c.id > rowid)
        return self._made(partial(report_from_row, study=name), self._rows(query.order_by(report_table.c.id)))

    def snapshot(self, name: str, number: int | None = None) -> Snapshot:
        """Return a study with its trials, reports and events as of one moment, in one read transaction.

        With `number`, trials and reports are those of that number only.
        """
        trials_asked, reports_asked = (
            query if number is None else query.where(trial_table.c.number == min(number, LARGEST))
            for query in (_TRIALS, _REPORTS)
        )
        queries = (
            self._studies().where(study_table.c.name == name),
            trials_asked.where(study_table.c.name == name).order_by(*_BY_TRIAL),
            reports_asked.where(study_table.c.name == name).order_by(*_BY_REPORT),
            _NOTES.where(study_table.c.name == name),
        )
        studies, trials, reports, events = self._database.read(
            lambda connection: [_fetch(connection, query) for query in queries]
        )
        return Snapshot(
            study=study_from_row(studies[0]) if studies else None,
            trials=self._made(trial_from_row, trials),
            reports=self._made(partial(report_from_row, study=name), reports),
            events=self._made(event_from_row, events),
        )

    def events(self, name: str) -> list[EventRecord]:
        """Return a study's events in the order of commit."""
        return self._made(event_from_row, self._rows(_NOTES.where(study_table.c.name == name)))

    def request(self, name: str, payload: Mapping[str, Any], *, dataset: str | None = None) -> int:
        """Commit a user's request to the driver of a study, whoever holds its lease, and return its rowid."""
        text = to_text({**payload, "token": uuid4().hex}, "request")  # tells a repeated write from a second request
        return self._database.write(lambda connection: add_request(connection, name, dataset, text, now=self._clock()))

    def requests(self, name: str) -> list[Request]:
        """Return the requests to a study's driver that are not answered yet, in order."""
        found = self._database.read(lambda connection: _fetch(connection, _REQUESTS, {"study": name}))
        return find_unanswered(self._made(event_from_row, found))

    def counts(self, name: str) -> dict[str, dict[TrialState, int]]:
        """Return for each data set how many of its trials are in each state that occurs."""
        return _counted(self._rows(_COUNTS.where(study_table.c.name == name)))

    def glance(self, name: str) -> Glance | None:
        """Return a study without its trials, reports and events, in one read transaction; None if there is none."""
        newest = select(func.max(note_table.c.id).label("rowid")).join(study_table)
        queries: tuple[Select[Any], ...] = (self._studies(), _COUNTS, newest)
        studies, counts, events = self._database.read(
            lambda connection: [_fetch(connection, query.where(study_table.c.name == name)) for query in queries]
        )
        if not studies:
            return None
        return Glance(study=study_from_row(studies[0]), counts=_counted(counts), last_event=events[0]["rowid"] or 0)

    def _made(self, make: Callable[[RowMapping], R], rows: Iterable[RowMapping]) -> list[R]:
        """Return the records of rows; raise LedgerError that names this ledger if one is damaged."""
        try:
            return [make(row) for row in rows]
        except LedgerError as error:
            raise LedgerError(f"ledger {self.url}: {error}") from error

    def _studies(self) -> Select[Any]:
        lease = [column for column in lease_table.columns if column.name not in ("study_id", "token")]
        return select(*study_table.columns, *lease).join(lease_table)

    def _rows(self, query: Select[Any]) -> list[RowMapping]:
        return self._database.read(lambda connection: _fetch(connection, query))


def _counted(rows: Iterable[RowMapping]) -> dict[str, dict[TrialState, int]]:
    found: dict[str, dict[TrialState, int]] = {}
    for row in rows:
        found.setdefault(row["dataset"], {})[TrialState(row["state"])] = row["n"]
    return found


def _fetch(connection: Connection, query: Select[Any], values: Mapping[str, Any] | None = None) -> list[RowMapping]:
    return list(connection.execute(query, values).mappings())


_TRIALS = select(trial_table).join(study_table, trial_table.c.study_id == study_table.c.id)
_REPORTS = (
    select(report_table, trial_table.c.dataset, trial_table.c.number)
    .join(trial_table, report_table.c.trial_id == trial_table.c.id)
    .join(study_table, report_table.c.study_id == study_table.c.id)
)
_NOTES = select(note_table).join(study_table).order_by(note_table.c.id)
# Read at every report: built once, so that SQLAlchemy finds the compiled statement by identity.
_REQUESTS = _NOTES.where(
    study_table.c.name == bindparam("study"), or_(*(note_table.c.kind == kind for kind in (REQUESTED, ANSWERED)))
)
_BY_TRIAL = (trial_table.c.dataset, trial_table.c.number)
_STATE = (trial_table.c.dataset, trial_table.c.state)
_COUNTS = select(*_STATE, func.count().label("n")).join(study_table).group_by(*_STATE).order_by(*_STATE)
_BY_REPORT = (*_BY_TRIAL, report_table.c.epoch, report_table.c.replicate)
