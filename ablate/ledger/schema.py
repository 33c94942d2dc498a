"""The ledger's tables: one definition for SQLite and PostgreSQL (docs/ledger.md)."""

from __future__ import annotations

from functools import partial
from typing import get_args
from uuid import uuid4

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    select,
    text,
)

from ablate.base.errors import LedgerError
from ablate.core.trial import Decision, Stage, TrialState

SCHEMA_VERSION = 5
ADVISORY_LOCK = 0x61626C617465  # "ablate": serialises table creation and takeover on PostgreSQL

metadata = MetaData()
_needed = partial(Column, nullable=False)
_rowid = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER is a rowid on SQLite


def _one_of(column: str, values: list[str], name: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})", name=name)


version_table = Table(
    "ablate_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("ledger_id", Text),  # made with the tables; a study's home names it
)

study_table = Table(
    "ablate_study",
    metadata,
    Column("id", _rowid, primary_key=True),
    _needed("name", Text, unique=True),
    _needed("file", Text),
    _needed("fingerprint", Text),
    _needed("seed", BigInteger),
    _needed("created_at", Double),
    Column("store", Text),  # where checkpoints and tracking are, without credentials; NULL where unknown
    Column("tracking", Text),
)

# Separate from the study's row, which holds the whole file, because every write updates this row.
lease_table = Table(
    "ablate_lease",
    metadata,
    Column("study_id", _rowid, ForeignKey("ablate_study.id"), primary_key=True, autoincrement=False),
    _needed("term", Integer),
    _needed("revision", BigInteger),
    Column("holder", Text),
    Column("host", Text),
    Column("place", Text),
    Column("pid", Integer),
    Column("process_started", Text),
    _needed("token", Text),
    Column("held_since", Double),
    Column("held_until", Double),
    _needed("lease_seconds", Double, server_default="60"),
    _needed("beat", BigInteger, server_default="0"),  # counts renewals
    _needed("active_seconds", Double, server_default="0"),  # of all drivers, by monotonic clocks
)

trial_table = Table(
    "ablate_trial",
    metadata,
    Column("id", _rowid, primary_key=True),
    _needed("study_id", _rowid, ForeignKey("ablate_study.id")),
    _needed("dataset", Text),
    _needed("number", Integer),
    _needed("stage", Text),
    _needed("config", Text),
    _needed("replicates", Integer),
    _needed("state", Text),
    _needed("attempt", Integer),
    _needed("epochs_done", Integer),
    _needed("wall_seconds", Double),
    Column("params", BigInteger),
    Column("params_body", BigInteger),
    Column("flops", BigInteger),
    _needed("size", Text),  # what is known before training; the three columns before it hold what a report told too
    Column("shape", Text),
    _needed("sampler_state", Text),
    Column("error", Text),
    Column("checkpoint", Text),
    Column("mlflow_run_id", Text),
    _needed("driver_term", Integer),
    _needed("revision", BigInteger),
    _needed("created_at", Double),
    Column("started_at", Double),
    Column("finished_at", Double),
    UniqueConstraint("study_id", "dataset", "number", name="ablate_trial_number"),
    CheckConstraint("number >= 0", name="ablate_trial_number_positive"),
    _one_of("state", [str(state) for state in TrialState], "ablate_trial_state"),
    _one_of("stage", list(get_args(Stage)), "ablate_trial_stage"),
    Index("ablate_trial_revision", "study_id", "revision"),
)

report_table = Table(
    "ablate_report",
    metadata,
    Column("id", _rowid, primary_key=True),
    _needed("study_id", _rowid, ForeignKey("ablate_study.id")),
    _needed("trial_id", _rowid, ForeignKey("ablate_trial.id")),
    _needed("epoch", Integer),
    _needed("replicate", Integer),
    _needed("metrics", Text),
    _needed("diverged", Integer),
    _needed("final", Integer),
    _needed("decision", Text),
    Column("checkpoint", Text),
    _needed("wall_seconds", Double),
    _needed("driver_term", Integer),
    _needed("created_at", Double),
    UniqueConstraint("trial_id", "epoch", "replicate", name="ablate_report_once"),
    _one_of("decision", [str(decision) for decision in Decision], "ablate_report_decision"),
    Index("ablate_report_cursor", "study_id", "id"),
)

note_table = Table(
    "ablate_note",
    metadata,
    Column("id", _rowid, primary_key=True),
    _needed("study_id", _rowid, ForeignKey("ablate_study.id"), index=True),
    _needed("kind", Text),
    Column("dataset", Text),
    _needed("payload", Text),
    _needed("driver_term", Integer),
    _needed("created_at", Double),
)


def serialise(connection: Connection) -> None:
    """Let only one transaction past this point at a time; on SQLite BEGIN IMMEDIATE already does so."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})


def stored_version(connection: Connection) -> int | None:
    """Return the schema version in the database, or None if it has no ledger."""
    if not inspect(connection).has_table(version_table.name):
        return None
    version = connection.execute(select(version_table.c.version)).scalar_one_or_none()
    return None if version is None else int(version)


def ledger_id(connection: Connection) -> str:
    """Return the id that was made with the tables."""
    return str(connection.execute(select(version_table.c.ledger_id)).scalar_one())


def create(connection: Connection) -> None:
    """Create the tables of SCHEMA_VERSION unless another process did so first."""
    serialise(connection)
    if stored_version(connection) is None:
        metadata.create_all(connection)
        connection.execute(insert(version_table).values(version=SCHEMA_VERSION, ledger_id=uuid4().hex))


def check_version(version: int, place: str) -> None:
    """Raise LedgerError unless `version` is the schema of this ablate."""
    if version == SCHEMA_VERSION:
        return
    older = version < SCHEMA_VERSION
    advice = "start a new ledger or use the ablate that wrote it" if older else "upgrade ablate"
    age = "an older" if older else "a newer"
    raise LedgerError(f"ledger {place} was written by {age} ablate (schema {version}, here {SCHEMA_VERSION}): {advice}")
