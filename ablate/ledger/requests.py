"""Requests of users to a study's driver: events that need no lease, each answered once by a driver's event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, insert, select

from ablate.base.errors import LedgerError
from ablate.ledger.records import EventRecord, to_text
from ablate.ledger.schema import note_table, study_table

REQUESTED, ANSWERED = "requested", "answered"
NO_DRIVER = 0  # the term of an event that no driver wrote


def new_request(payload: Mapping[str, Any]) -> str:
    """Return the text of a request; its token tells a repeated write from a second request."""
    return to_text({**payload, "token": uuid4().hex}, "request")


def add_request(connection: Connection, study: str, dataset: str | None, text: str, *, now: float) -> None:
    """Insert a request once; raise LedgerError if there is no such study.

    It leaves the study's lease and revision alone, so that it neither waits for the driver nor disturbs it.
    """
    study_id = connection.execute(select(study_table.c.id).where(study_table.c.name == study)).scalar_one_or_none()
    if study_id is None:
        raise LedgerError(f"study {study!r} is not in this ledger")
    same = (note_table.c.study_id == study_id) & (note_table.c.kind == REQUESTED) & (note_table.c.payload == text)
    if connection.execute(select(note_table.c.id).where(same)).first() is not None:
        return  # committed by an attempt whose acknowledgement was lost
    row = {"kind": REQUESTED, "dataset": dataset, "payload": text, "driver_epoch": NO_DRIVER, "created_at": now}
    connection.execute(insert(note_table), {"study_id": study_id, **row})


def find_unanswered(events: Iterable[EventRecord]) -> list[EventRecord]:
    """Return the requests among `events` that no driver has answered, in order."""
    found = list(events)
    answered = {event.payload.get("request") for event in found if event.kind == ANSWERED}
    return [event for event in found if event.kind == REQUESTED and event.rowid not in answered]


def find_refused(events: Sequence[EventRecord]) -> list[tuple[EventRecord, str]]:
    """Return each request that a driver could not carry out, with the reason."""
    reasons = {e.payload.get("request"): e.payload.get("refused") for e in events if e.kind == ANSWERED}
    asked = [event for event in events if event.kind == REQUESTED]
    return [(event, str(reasons[event.rowid])) for event in asked if reasons.get(event.rowid)]
