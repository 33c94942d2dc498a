"""Migrates a ledger of an older schema version to the current one, in the transaction of the driver that opens it."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Table, func, select, union_all, update
from sqlalchemy.schema import CreateColumn, CreateTable

from ablate.ledger.schema import (
    SCHEMA_VERSION,
    lease_table,
    new_id,
    note_table,
    report_table,
    serialise,
    stored_version,
    study_table,
    trial_table,
    version_table,
)

STAGE_RULE = "ablate_trial_stage"  # the name of a constraint
SINCE_VERSION_2: dict[Table, tuple[str, ...]] = {
    version_table: ("ledger_id",),
    study_table: ("store", "tracking"),
    lease_table: ("lease_seconds", "beat", "active_seconds"),
}


def columns_of(table: Table, version: int) -> list[Column[object]]:
    """Return the columns that `table` has in schema `version`."""
    later = SINCE_VERSION_2.get(table, ()) if version < 2 else ()
    return [column for column in table.columns if column.name not in later]


def migrate(connection: Connection) -> int | None:
    """Bring the tables to SCHEMA_VERSION and return the version before; None if another process did so first."""
    serialise(connection)
    before = stored_version(connection)
    if before is None or before >= SCHEMA_VERSION:
        return None
    if before < 2:
        _to_version_2(connection)
    _to_version_3(connection)
    connection.execute(update(version_table).values(version=SCHEMA_VERSION))
    return before


def _to_version_2(connection: Connection) -> None:
    for table, names in SINCE_VERSION_2.items():
        for name in names:
            column = CreateColumn(table.columns[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column}")
    for study_id, seconds in _seconds_by_commits(connection).items():
        where = lease_table.c.study_id == study_id
        connection.execute(update(lease_table).where(where).values(active_seconds=seconds))
    connection.execute(update(version_table).values(ledger_id=new_id()))


def _to_version_3(connection: Connection) -> None:
    """Let the stage of a trial be `tune`.

    SQLite cannot change a constraint, so its text is replaced as https://sqlite.org/lang_altertable.html#otheralter
    describes for CHECK constraints.
    """
    now = str(CreateTable(trial_table).compile(dialect=connection.dialect))
    rule = next(line.strip().rstrip(",") for line in now.splitlines() if STAGE_RULE in line)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"ALTER TABLE {trial_table.name} DROP CONSTRAINT {STAGE_RULE}")
        connection.exec_driver_sql(f"ALTER TABLE {trial_table.name} ADD {rule}")
        return
    where = f"type = 'table' AND name = '{trial_table.name}'"
    text = str(connection.exec_driver_sql(f"SELECT sql FROM sqlite_master WHERE {where}").scalar_one())
    older = next(line.strip().rstrip(",") for line in text.splitlines() if STAGE_RULE in line)
    version = int(connection.exec_driver_sql("PRAGMA schema_version").scalar_one())
    connection.exec_driver_sql("PRAGMA writable_schema=ON")
    connection.exec_driver_sql(f"UPDATE sqlite_master SET sql = ? WHERE {where}", (text.replace(older, rule),))
    connection.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema=OFF")


def _seconds_by_commits(connection: Connection) -> dict[int, float]:
    """Return how long the drivers of each study worked, each from its `driver_started` event to its last commit.

    Version 1 stored no active time. It compared its time budget with these seconds.
    """
    started, reported, finished = note_table.c, report_table.c, trial_table.c
    acts = union_all(
        select(started.study_id, started.driver_epoch, started.created_at.label("moment")),
        select(reported.study_id, reported.driver_epoch, reported.created_at),
        select(finished.study_id, finished.driver_epoch, finished.finished_at).where(finished.finished_at.is_not(None)),
    ).subquery()
    last = select(acts.c.study_id, acts.c.driver_epoch, func.max(acts.c.moment).label("at"))
    last = last.group_by(acts.c.study_id, acts.c.driver_epoch)
    first = select(started.study_id, started.driver_epoch, func.min(started.created_at).label("at"))
    first = first.where(started.kind == "driver_started").group_by(started.study_id, started.driver_epoch)
    ends = {(row.study_id, row.driver_epoch): row.at for row in connection.execute(last)}
    total: dict[int, float] = {}
    for row in connection.execute(first):
        end = ends[row.study_id, row.driver_epoch]
        total[row.study_id] = total.get(row.study_id, 0.0) + max(0.0, end - row.at)
    return total
