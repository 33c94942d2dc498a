"""What MLflow's own SQLite file holds about a study, in a form in which an interrupted study equals another."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from typing import Any

from support.faults.study_runs import StudyRun

# Times, ids that MLflow or the driver made up, and what counts attempts.
MAY_DIFFER = ("ablate.attempt", "ablate.study_id", "mlflow.parentRunId")
OTHERS = ("wall_seconds",)


def canonical(run: StudyRun) -> list[dict[str, Any]]:
    """Return every run that was not deleted: name, status, parameters, tags, and all points of all metrics.

    A point that was sent twice is there twice.
    """
    found = []
    with closing(sqlite3.connect(f"file:{run.runs / 'mlflow.db'}?mode=ro", uri=True)) as database:
        points, parameters, tags = (_by_run(database, table) for table in ("metrics", "params", "tags"))
        rows = database.execute("SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage = 'active'").fetchall()
    for run_id, name, status in rows:
        found.append(
            {
                "name": name,
                "status": status,
                "parameters": sorted((row["key"], row["value"]) for row in parameters[run_id]),
                "tags": sorted(
                    (row["key"], row["value"])
                    for row in tags[run_id]
                    if row["key"] not in MAY_DIFFER and "model" not in row["key"]
                ),
                "points": sorted(
                    (row["key"], row["step"], row["value"], row["is_nan"])
                    for row in points[run_id]
                    if row["key"] not in OTHERS
                ),
            }
        )
    return sorted(found, key=lambda each: str(each["name"]))


def _by_run(database: sqlite3.Connection, table: str) -> dict[str, list[dict[str, Any]]]:
    cursor = database.execute(f"SELECT * FROM {table}")
    names = [column[0] for column in cursor.description]
    found = defaultdict(list)
    for values in cursor:
        row = dict(zip(names, values, strict=True))
        found[row["run_uuid"]].append(row)
    return found
