"""A ledger's tables in a form in which an interrupted study equals an uninterrupted one, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Table, select

from ablate.ledger import Ledger
from ablate.ledger.schema import (
    lease_table,
    metadata,
    note_table,
    report_table,
    study_table,
    trial_table,
    version_table,
)
from support.ledgers import raw_connection

TIMES = frozenset({"created_at", "started_at", "finished_at", "wall_seconds"})
# What may differ, and nothing else: when, by which driver and at which attempt it was done, and MLflow's own names.
MAY_DIFFER: Mapping[str, frozenset[str]] = {
    version_table.name: frozenset({"ledger_id"}),
    study_table.name: TIMES | {"store", "tracking"},
    lease_table.name: frozenset(column.name for column in lease_table.columns) - {"study_id"},
    trial_table.name: TIMES | {"attempt", "driver_term", "revision", "mlflow_run_id"},
    report_table.name: TIMES | {"driver_term"},
    note_table.name: TIMES | {"driver_term"},
}
OF_A_RESUME = frozenset({"driver_started", "resumed", "retried"})  # kinds of notes that only say what happened
ATTEMPT = re.compile(r"-attempt-\d+")  # part of a checkpoint's name

Dump = dict[str, list[dict[str, Any]]]


def dump(ledger: Ledger, *, ordered: bool = True) -> Dump:
    """Return every table, every column that may not differ, in the order of commit; ids as ranks.

    Without `ordered`, for studies whose events come in any order: rows by what they are about, and no ids.
    """
    with raw_connection(ledger) as connection:
        return {table.name: _canonical(connection, table, ordered) for table in metadata.sorted_tables}


def raw(ledger: Ledger) -> Dump:
    """Return every table but the lease as it is: for "not one row was added or changed"."""
    with raw_connection(ledger) as connection:
        return {t.name: _rows(connection, t) for t in metadata.sorted_tables if t.name != lease_table.name}


def first_difference(one: Dump, other: Dump) -> str:
    """Return the first row and column in which two dumps differ, or nothing."""
    for table in one.keys() | other.keys():
        rows, others = one.get(table, []), other.get(table, [])
        for place, (row, its) in enumerate(zip(rows, others, strict=False)):
            for column in row.keys() | its.keys():
                if row.get(column) != its.get(column):
                    return f"{table}[{place}].{column}: {row.get(column)!r} != {its.get(column)!r} (row {row})"
        if len(rows) != len(others):
            extra = max(rows, others, key=len)[min(len(rows), len(others))]
            return f"{table}: {len(rows)} rows != {len(others)} rows, the first one more: {extra}"
    return ""


def _canonical(connection: Any, table: Table, ordered: bool) -> list[dict[str, Any]]:
    rows = _rows(connection, table)
    if table.name == note_table.name:
        rows = [row for row in rows if row["kind"] not in OF_A_RESUME]
    trials = {row["id"]: f"{row['dataset']}/{row['number']}" for row in _rows(connection, trial_table)}
    for rank, row in enumerate(rows):
        for name in MAY_DIFFER.get(table.name, frozenset()) & row.keys():
            del row[name]
        if "trial_id" in row:
            row["trial_id"] = trials[row["trial_id"]]
        if row.get("checkpoint"):
            row["checkpoint"] = ATTEMPT.sub("", row["checkpoint"])
        if "id" in row:
            row["id"] = rank if ordered else None
    return rows if ordered else sorted(rows, key=repr)


def _rows(connection: Any, table: Table) -> list[dict[str, Any]]:
    found = connection.execute(select(table).order_by(*table.primary_key.columns))
    return [dict(row) for row in found.mappings()]
