"""Requests of users to a study's driver: events that need no lease, each answered once by a driver's event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from sqlalchemy import Connection, insert, select

from ablate.base.errors import LedgerError
from ablate.base.plain_text import one_printable_line, storable
from ablate.core.code_version import Code
from ablate.ledger.records import EventRecord
from ablate.ledger.schema import note_table, study_table

REQUESTED, ANSWERED = "requested", "answered"
ENVIRONMENT = "environment"  # of a campaign: the packages of its driver, when they were others than before
OPENED, JUDGED = "opened", "judged"  # of a campaign: events of its code, and of a decision
NO_DRIVER = 0  # the term of an event that no driver wrote
Command = Literal["enqueue", "prune", "retry", "stop", "judge", "close"]
ENQUEUE, PRUNE, RETRY, STOP, JUDGE, CLOSE = get_args(Command)
ARGUMENT = {ENQUEUE: "parameters", PRUNE: "trial", RETRY: "trial", STOP: "term", JUDGE: "parameters"}
ARGUMENT[CLOSE] = "parameters"
LONGEST_MESSAGE = 500  # characters of a request that are shown


class Change(BaseModel):
    """A change that a campaign is asked to judge: settings over the champion's, by dotted name, and perhaps code.

    `runs` are those of a candidate at most, None for the campaign's number.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    settings: dict[str, Any]
    code: Code | None = None
    runs: PositiveInt | None = None
    note: str | None = None
    by: str | None = None


class Request(BaseModel):
    """A request to the driver of a study, read from an event that any user of the ledger may have written.

    `rowid`, `dataset` and `created_at` are those of the event. A request with a `fault` has no command: no driver
    carries it out.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    rowid: int
    dataset: str | None
    created_at: float
    message: str
    command: Command | None
    trial: NonNegativeInt | None = None
    parameters: dict[str, Any] | None = None
    term: int | None = None
    from_start: bool = False
    fault: str = ""

    @staticmethod
    def of(event: EventRecord) -> Request:
        """Return the request of an event, with its fault if the payload is no request."""
        head: dict[str, Any] = {name: getattr(event, name) for name in ("rowid", "dataset", "created_at")}
        asked = {name: event.payload.get(name) for name in ("message", "command", *ARGUMENT.values())}
        asked["from_start"] = event.payload.get("from_start", False)
        try:
            return Request.model_validate(head | asked)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            rule = f"{place}: {first['msg']}" if place else first["msg"].removeprefix("Value error, ")
            fault = one_printable_line(f"it is no request ({rule})")
            return Request(**head, message=f"event {event.rowid}", command=None, fault=fault)

    @field_validator("message")
    @classmethod
    def _printable(cls, text: str) -> str:
        return one_printable_line(storable(text, LONGEST_MESSAGE))

    @model_validator(mode="after")
    def _require_argument(self) -> Self:
        if self.command is None and not self.fault:
            raise ValueError(f"it names no command: {', '.join(ARGUMENT)}")
        if self.command is not None and getattr(self, ARGUMENT[self.command]) is None:
            raise ValueError(f"{self.command} needs {ARGUMENT[self.command]}")
        return self


def add_request(connection: Connection, study: str, dataset: str | None, text: str, *, now: float) -> int:
    """Insert a request once and return its rowid; raise LedgerError if there is no such study.

    It leaves the study's lease and revision alone, so that it neither waits for the driver nor disturbs it.
    """
    study_id = connection.execute(select(study_table.c.id).where(study_table.c.name == study)).scalar_one_or_none()
    if study_id is None:
        raise LedgerError(f"study {study!r} is not in this ledger")
    same = (note_table.c.study_id == study_id) & (note_table.c.kind == REQUESTED) & (note_table.c.payload == text)
    if (known := connection.execute(select(note_table.c.id).where(same)).scalar()) is not None:
        return int(known)  # committed by an attempt whose acknowledgement was lost
    row = {"kind": REQUESTED, "dataset": dataset, "payload": text, "driver_term": NO_DRIVER, "created_at": now}
    return int(
        connection.execute(insert(note_table).returning(note_table.c.id), {"study_id": study_id, **row}).scalar_one()
    )


def find_unanswered(events: Iterable[EventRecord]) -> list[Request]:
    """Return the requests among `events` that no driver has answered, in order."""
    found = list(events)
    answered = {event.payload.get("request") for event in found if event.kind == ANSWERED}
    return [Request.of(event) for event in found if event.kind == REQUESTED and event.rowid not in answered]


def find_refused(events: Sequence[EventRecord]) -> list[tuple[Request, str]]:
    """Return each request that a driver could not carry out, with the reason."""
    reasons = {e.payload.get("request"): e.payload.get("refused") for e in events if e.kind == ANSWERED}
    asked = [event for event in events if event.kind == REQUESTED]
    return [(Request.of(event), str(reasons[event.rowid])) for event in asked if reasons.get(event.rowid)]
