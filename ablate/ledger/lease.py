"""Who drives a study: a lease that ends by itself, and at once when its process is gone."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, RowMapping, insert, select, update

from ablate.errors import LedgerHeldError, StudyMismatchError
from ablate.ledger.schema import lease_table, serialise, study_table


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process among all machines: `place` is where its pid means something, `started` tells reused pids apart."""

    host: str
    place: str
    pid: int
    started: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A request for a study: who asks, with which file, for how long; times in UTC epoch seconds."""

    study: str
    file_text: str
    fingerprint: str
    seed: int
    holder: str
    process: Process
    now: float
    lease_seconds: float
    takeover: bool
    token: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A granted claim: the study's row, its new epoch and the revision to go on from."""

    study_id: int
    epoch: int
    revision: int


def this_process() -> Process:
    """Return the identity of the running process."""
    pid = os.getpid()
    return Process(host=socket.gethostname(), place=_place(), pid=pid, started=_started(pid) or "")


def is_dead(row: RowMapping) -> bool:
    """Whether the holder in a lease's row is certainly gone: its pid was of this place and is no more."""
    if row["place"] != _place() or row["pid"] is None:
        return False
    try:
        os.kill(int(row["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    started = _started(int(row["pid"]))
    return started is not None and bool(row["process_started"]) and started != row["process_started"]


def claim(connection: Connection, wanted: Claim) -> Grant:
    """Create the study or raise its epoch by one; raise LedgerHeldError while another's lease is live.

    StudyMismatchError where the stored seed is another one.
    """
    serialise(connection)
    found = connection.execute(select(study_table).where(study_table.c.name == wanted.study)).mappings().one_or_none()
    if found is None:
        return _create(connection, wanted)
    if found["seed"] != wanted.seed:
        raise StudyMismatchError(
            f"study {wanted.study!r} was started with seed {found['seed']}, the file says {wanted.seed}"
        )
    where = lease_table.c.study_id == found["id"]
    row = connection.execute(select(lease_table).where(where).with_for_update()).mappings().one()
    if row["token"] == wanted.token:  # committed by an attempt whose acknowledgement was lost
        return Grant(study_id=found["id"], epoch=row["epoch"], revision=row["revision"])
    if not wanted.takeover and row["held_until"] is not None and row["held_until"] > wanted.now and not is_dead(row):
        here = row["place"] == wanted.process.place
        raise LedgerHeldError(_held(wanted.study, row), until=float(row["held_until"]), here=here)
    epoch = row["epoch"] + 1
    connection.execute(update(lease_table).where(where).values(epoch=epoch, **_holder(wanted)))
    if (found["file"], found["fingerprint"]) != (wanted.file_text, wanted.fingerprint):
        changed = {"file": wanted.file_text, "fingerprint": wanted.fingerprint}
        connection.execute(update(study_table).where(study_table.c.id == found["id"]).values(**changed))
    return Grant(study_id=found["id"], epoch=epoch, revision=row["revision"])


def _create(connection: Connection, wanted: Claim) -> Grant:
    row = {
        "name": wanted.study,
        "file": wanted.file_text,
        "fingerprint": wanted.fingerprint,
        "seed": wanted.seed,
        "created_at": wanted.now,
    }
    study_id = int(connection.execute(insert(study_table).returning(study_table.c.id), row).scalar_one())
    connection.execute(insert(lease_table).values(study_id=study_id, epoch=1, revision=0, **_holder(wanted)))
    return Grant(study_id=study_id, epoch=1, revision=0)


def _holder(wanted: Claim) -> dict[str, Any]:
    return {
        "holder": wanted.holder,
        "host": wanted.process.host,
        "place": wanted.process.place,
        "pid": wanted.process.pid,
        "process_started": wanted.process.started,
        "token": wanted.token,
        "held_since": wanted.now,
        "held_until": wanted.now + wanted.lease_seconds,
    }


def _held(study: str, row: RowMapping) -> str:
    since, until = (
        datetime.fromtimestamp(row[name], tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        for name in ("held_since", "held_until")
    )
    return (
        f"study {study!r} is held by {row['holder']} (host {row['host']}, pid {row['pid']}) since {since}; its lease"
        f" lasts until {until} unless renewed. Stop that driver, wait, or take the study over with --takeover"
    )


def _place() -> str:
    # A pid means something only within one boot of one machine and one pid namespace (containers share host names).
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"host {socket.gethostname()}"


def _started(pid: int) -> str | None:
    """Start time of `pid` in clock ticks since boot (proc(5), field 22); "gone" for a zombie, None where unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "gone" if fields[0] in "ZX" else fields[19]
