"""The lease of a study's driver: it ends if it is not renewed, and at once if its process is gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from ablate.base.errors import LedgerHeldError, StudyMismatchError
from ablate.base.processes import Process, is_gone, this_place
from ablate.ledger.schema import lease_table, note_table, report_table, serialise, study_table, trial_table

LEASE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class LeaseRequest:
    """A request for the lease of a study: who asks, with which file and places; `now` is in UTC epoch seconds.

    `unrenewed` is the mark (see LedgerHeldError) that the current lease had `lease_seconds` ago; a lease that still has
    this mark has ended. `store` and `tracking` are stored without credentials; None keeps the stored value. `afresh`
    asks for the study without the trials that it has, none of which has reported.
    """

    study: str
    file_text: str
    fingerprint: str
    seed: int
    holder: str
    process: Process
    now: float
    lease_seconds: float
    takeover: bool
    unrenewed: tuple[object, ...] | None
    store: str | None
    tracking: str | None
    afresh: bool = False
    token: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A granted request: the study's row, its new term, the revision and active seconds to continue from."""

    study_id: int
    term: int
    revision: int
    active_seconds: float


def is_dead(row: RowMapping) -> bool:
    """Return whether a lease's holder is certainly gone: its pid belongs to this place and no longer exists."""
    return row["pid"] is not None and is_gone(place=row["place"], pid=int(row["pid"]), started=row["process_started"])


def is_here(row: RowMapping) -> bool:
    """Return whether a lease's holder is a process of this boot of this machine, and of this pid namespace."""
    return row["pid"] is not None and row["place"] == this_place()


def claim(connection: Connection, wanted: LeaseRequest) -> Lease:
    """Create the study or raise its term by one; raise LedgerHeldError while another driver holds the lease.

    No clock decides. A lease has ended if it was released, if its process is gone from this machine, or if the request
    shows that it was not renewed. Raises StudyMismatchError if the stored seed differs.
    """
    serialise(connection)
    found = connection.execute(select(study_table).where(study_table.c.name == wanted.study)).mappings().one_or_none()
    if found is None:
        return _create(connection, wanted)
    if found["seed"] != wanted.seed and not wanted.afresh:
        raise StudyMismatchError(
            f"study {wanted.study!r} was started with seed {found['seed']}, the file says {wanted.seed}"
        )
    where = lease_table.c.study_id == found["id"]
    row = connection.execute(select(lease_table).where(where).with_for_update()).mappings().one()
    if row["token"] == wanted.token:  # committed by an attempt whose acknowledgement was lost
        return _grant(row, row["term"])
    over = row["held_until"] is None or is_dead(row) or _mark(row) == wanted.unrenewed
    if not wanted.takeover and not over:
        here = row["place"] == wanted.process.place
        lease_seconds = float(row["lease_seconds"])
        raise LedgerHeldError(_held(wanted.study, row), mark=_mark(row), lease_seconds=lease_seconds, here=here)
    if wanted.afresh:
        _refuse_reported(connection, found["id"], wanted.study)
        forget(connection, found["id"])
    term = row["term"] + 1
    connection.execute(update(lease_table).where(where).values(term=term, **_holder(wanted)))
    asked = {"file": wanted.file_text, "fingerprint": wanted.fingerprint, "seed": wanted.seed, **_places(wanted)}
    changed = {name: value for name, value in asked.items() if found[name] != value}
    if changed:
        connection.execute(update(study_table).where(study_table.c.id == found["id"]).values(**changed))
    return _grant(row, term)


def forget(connection: Connection, study_id: int) -> None:
    """Delete the trials, reports and events of a study."""
    for table in (report_table, trial_table, note_table):
        connection.execute(delete(table).where(table.c.study_id == study_id))


def _refuse_reported(connection: Connection, study_id: int, name: str) -> None:
    if connection.execute(select(report_table.c.id).where(report_table.c.study_id == study_id).limit(1)).first():
        raise StudyMismatchError(f"study {name!r} has reported meanwhile: type the same command again")


def _create(connection: Connection, wanted: LeaseRequest) -> Lease:
    row = {
        "name": wanted.study,
        "file": wanted.file_text,
        "fingerprint": wanted.fingerprint,
        "seed": wanted.seed,
        "created_at": wanted.now,
        **_places(wanted),
    }
    study_id = int(connection.execute(insert(study_table).returning(study_table.c.id), row).scalar_one())
    connection.execute(insert(lease_table).values(study_id=study_id, term=1, revision=0, **_holder(wanted)))
    return Lease(study_id=study_id, term=1, revision=0, active_seconds=0.0)


def _grant(row: RowMapping, term: int) -> Lease:
    active = float(row["active_seconds"])
    return Lease(study_id=row["study_id"], term=term, revision=row["revision"], active_seconds=active)


def _mark(row: RowMapping) -> tuple[object, ...]:
    return row["term"], row["revision"], row["beat"]


def _places(wanted: LeaseRequest) -> dict[str, str]:
    places = {"store": wanted.store, "tracking": wanted.tracking}
    return {name: place for name, place in places.items() if place is not None}


def _holder(wanted: LeaseRequest) -> dict[str, Any]:
    return {
        "holder": wanted.holder,
        "host": wanted.process.host,
        "place": wanted.process.place,
        "pid": wanted.process.pid,
        "process_started": wanted.process.started,
        "token": wanted.token,
        "held_since": wanted.now,
        "held_until": wanted.now + wanted.lease_seconds,
        "lease_seconds": wanted.lease_seconds,
    }


def _held(study: str, row: RowMapping) -> str:
    since = datetime.fromtimestamp(row["held_since"], tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"study {study!r} is held by {row['holder']} (host {row['host']}, pid {row['pid']}) since {since}."
        " Stop that driver, or take the study over with --takeover"
    )
