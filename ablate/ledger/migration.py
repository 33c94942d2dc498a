"""Migrates a ledger of schema version 1 to the current one, in the transaction of the driver that opens it."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Table, func, select, union_all, update
from sqlalchemy.schema import CreateColumn

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

SINCE_VERSION_2: dict[Table, tuple[str, ...]] = {
    version_table: ("ledger_id",),
    study_table: ("store", "tracking"),
    lease_table: ("lease_seconds", "beat", "active_seconds"),
}


def columns_of(table: Table, version: int) -> list[Column[object]]:
    """Return the columns that `table` has in schema `version`."""
    later = SINCE_VERSION_2.get(table, ()) if version < 2 else ()
    return [column for column in table.columns if column.name not in later]


def migrate(connection: Connection) -> bool:
    """Add what SCHEMA_VERSION has and version 1 lacks; return False if another process did so first."""
    serialise(connection)
    if stored_version(connection) != 1:
        return False
    for table, names in SINCE_VERSION_2.items():
        for name in names:
            column = CreateColumn(table.columns[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column}")
    for study_id, seconds in _seconds_by_commits(connection).items():
        where = lease_table.c.study_id == study_id
        connection.execute(update(lease_table).where(where).values(active_seconds=seconds))
    connection.execute(update(version_table).values(version=SCHEMA_VERSION, ledger_id=new_id()))
    return True


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
