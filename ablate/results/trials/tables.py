"""Trials and reports as tables: polars from the ledger, Parquet on disk (docs/tables.md)."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from ablate.base.errors import ResultsDownError
from ablate.base.files import DiskFolder
from ablate.base.plain_text import spreadsheet_cell
from ablate.base.redaction import error_text
from ablate.core.objectives import SIZE_METRICS, means
from ablate.core.trial import TrialKey
from ablate.ledger import ReportRecord, Snapshot, TrialRecord, counted_reports
from ablate.results.trials.sample_tables import SAMPLES, SAMPLES_TYPE, sample_column
from ablate.study.space import Space
from ablate.study.values import texts_of

TRIAL_COLUMNS: dict[str, pl.DataType] = {
    "study": pl.String(),
    "dataset": pl.String(),
    "trial": pl.Int64(),
    "stage": pl.String(),
    "source": pl.Int64(),
    "variant": pl.String(),
    "state": pl.String(),
    "attempt": pl.Int64(),
    "replicates": pl.Int64(),
    "epochs": pl.Int64(),
    "max_epochs": pl.Int64(),
    "params": pl.Int64(),
    "params_body": pl.Int64(),
    "flops": pl.Int64(),
    "q": pl.Float64(),
    "validation_samples": pl.Int64(),
    "test_samples": pl.Int64(),
    "wall_seconds": pl.Float64(),
    "error": pl.String(),
    "checkpoint": pl.String(),
    "mlflow_run_id": pl.String(),
    "created_at": pl.Float64(),
    "started_at": pl.Float64(),
    "finished_at": pl.Float64(),
    "parameters": pl.String(),
}
REPORT_COLUMNS: dict[str, pl.DataType] = {
    "study": pl.String(),
    "dataset": pl.String(),
    "trial": pl.Int64(),
    "stage": pl.String(),
    "replicate": pl.Int64(),
    "seed": pl.Int64(),
    "epoch": pl.Int64(),
    "decision": pl.String(),
    "final": pl.Boolean(),
    "counts": pl.Boolean(),
    "diverged": pl.Boolean(),
    "checkpoint": pl.String(),
    "wall_seconds": pl.Float64(),
    "driver_term": pl.Int64(),
    "created_at": pl.Float64(),
    SAMPLES: SAMPLES_TYPE,
}
TRIALS_FILE = "trials.parquet"
REPORTS_FILE = "reports.parquet"
STUDY_FILE = "study.yaml"
NOT_THERE = object()


def trials_table(snapshot: Snapshot) -> pl.DataFrame:
    """Return one row per trial, ordered by data set and number (columns: docs/tables.md).

    After TRIAL_COLUMNS come the parameters by dotted name, ordered by name, then the metrics: the mean over
    replicates of the report of the trial that counts, and further costs of `size`. Null: the trial has no value; NaN:
    the value was not finite.
    """
    trials, counted = snapshot.trials, _counted(snapshot)
    costs = [{name: v for name, v in trial.size.items() if name not in SIZE_METRICS} for trial in trials]
    values_of = [
        {**means([row.metrics for row in counted[trial.key]]), **known}
        for trial, known in zip(trials, costs, strict=True)
    ]
    rows = [_trial_row(trial) for trial in trials]
    columns = {name: pl.Series(name, [row[name] for row in rows], dtype) for name, dtype in TRIAL_COLUMNS.items()}
    for name in sorted({name for trial in trials for name in trial.config.parameters} - {"variant"}):
        column = _own_name(name, columns, "parameter")
        columns[column] = _parameter(column, [trial.config.parameters.get(name, NOT_THERE) for trial in trials])
    for name in dict.fromkeys(name for values in values_of for name in values):
        column = _own_name(name, columns, "metric")
        columns[column] = pl.Series(column, [values.get(name) for values in values_of], pl.Float64())
    return pl.DataFrame(list(columns.values()))


def reports_table(snapshot: Snapshot) -> pl.DataFrame:
    """Return one row per replicate and report, ordered by data set, trial, epoch and replicate (docs/tables.md)."""
    counted = {row.rowid: row for of_trial in _counted(snapshot).values() for row in of_trial}
    reports, configs = snapshot.reports, {trial.key: trial.config for trial in snapshot.trials}
    metrics = [  # those on the test split are in the report that counts
        {name: value for name, value in each.metrics.items() if not name.startswith("test_")}
        if each.rowid not in counted
        else counted[each.rowid].metrics
        for each in reports
    ]
    own: dict[str, list[Any] | pl.Series] = {
        "study": [report.key.study for report in reports],
        "dataset": [report.key.dataset for report in reports],
        "trial": [report.key.number for report in reports],
        "stage": [configs[report.key].stage for report in reports],
        "seed": [configs[report.key].seeds[report.replicate] for report in reports],
        "counts": [report.rowid in counted for report in reports],
        SAMPLES: sample_column(snapshot, [counted.get(report.rowid) for report in reports]),
    }
    columns = {
        name: pl.Series(name, own[name] if name in own else [getattr(report, name) for report in reports], dtype)
        for name, dtype in REPORT_COLUMNS.items()
    }
    for name in dict.fromkeys(name for values in metrics for name in values):
        column = _own_name(name, columns, "metric")
        columns[column] = pl.Series(column, [values.get(name) for values in metrics], pl.Float64())
    return pl.DataFrame(list(columns.values()))


def write_tables(snapshot: Snapshot, home: Path) -> tuple[Path, Path]:
    """Write trials.parquet and reports.parquet below `home`, each atomically; raise ResultsDownError."""
    paths = (home / TRIALS_FILE, home / REPORTS_FILE)
    _put(parquet_bytes(trials_table(snapshot)), paths[0])
    _put(parquet_bytes(reports_table(snapshot)), paths[1])
    return paths


def write_study_file(text: str, home: Path) -> Path:
    """Write `study.yaml` below `home` atomically and return its path; raise ResultsDownError."""
    _put(text.encode(), home / STUDY_FILE)
    return home / STUDY_FILE


def cannot_write(what: str, error: OSError) -> ResultsDownError:
    """Return the one-line error of a disk that cannot store `what`."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ResultsDownError(
        f"{what} cannot be written: {error_text(error, Path(what))}; {'free some space there' if full else 'fix that'}"
        " and run the same command again: the ledger has all that it would say"
    )


def by_trial(snapshot: Snapshot) -> dict[TrialKey, list[ReportRecord]]:
    """Return the reports of each trial."""
    of_trial: dict[TrialKey, list[ReportRecord]] = {trial.key: [] for trial in snapshot.trials}
    for report in snapshot.reports:
        of_trial[report.key].append(report)
    return of_trial


def _counted(snapshot: Snapshot) -> dict[TrialKey, list[ReportRecord]]:
    """Return the rows of the report of each trial that counts (`counted_reports`)."""
    of_trial = by_trial(snapshot)
    return {trial.key: counted_reports(trial.config, of_trial[trial.key]) for trial in snapshot.trials}


def _trial_row(trial: TrialRecord) -> dict[str, Any]:
    config = trial.config
    own = ("attempt", "wall_seconds", *SIZE_METRICS, "error", "checkpoint", "mlflow_run_id")
    times = ("created_at", "started_at", "finished_at")
    return {
        "study": config.key.study,
        "dataset": config.key.dataset,
        "trial": config.key.number,
        "stage": config.stage,
        "source": config.source,
        "variant": config.parameters.get("variant", config.variant),
        "state": str(trial.state),
        "replicates": len(config.seeds),
        "epochs": trial.epochs_done,
        "max_epochs": config.epochs,
        "q": trial.q,
        "validation_samples": trial.evaluated_samples[0],
        "test_samples": trial.evaluated_samples[1],
        "parameters": json.dumps(dict(config.parameters)),
        **{name: getattr(trial, name) for name in own + times},
    }


def _own_name(name: str, taken: Mapping[str, object], kind: str) -> str:
    return f"{kind}.{name}" if name in taken else name


def _parameter(name: str, values: list[Any]) -> pl.Series:
    """Return a column in which different values differ: of Boolean, Int64 or Float64, otherwise of texts (`texts_of`).

    A value is NOT_THERE in a trial without the parameter, whose cell is null. Null as a value is null too, unless
    there are such trials.
    """
    keys, gap = [repr(value) for value in values], NOT_THERE if NOT_THERE in values else None
    cells = {key: value for key, value in zip(keys, values, strict=True) if value is not gap}
    there = [*cells.values()]  # True, 1, 1.0 and "1" are four
    kinds = {type(value) for value in there}
    dtype: pl.DataType = pl.String()
    if kinds == {bool}:
        dtype = pl.Boolean()
    elif kinds == {int} and all(-(2**63) <= value < 2**63 for value in there):
        dtype = pl.Int64()
    elif float in kinds and kinds <= {int, float} and _are_distinct_floats(there, len(cells)):
        dtype, cells = pl.Float64(), {text: float(value) for text, value in cells.items()}
    else:
        cells = dict(zip(cells, texts_of(cells.values()), strict=True))
    return pl.Series(name, [cells.get(key) for key in keys], dtype)


def _are_distinct_floats(values: Sequence[float], count: int) -> bool:
    """Return whether each of `values` is a floating-point number exactly, and `count` of them differ."""
    return all(abs(v) < 2**1023 and float(v) == v for v in values) and len({float(value) for value in values}) == count


def searched_values(table: pl.DataFrame, space: Space) -> list[dict[str, Any]]:
    """Return the searched settings of each row of a trials table, as the sampler chose them."""
    parameters = (json.loads(text) for text in table["parameters"])
    return [{name: value for name, value in row.items() if name in space.ranges} for row in parameters]


def parquet_bytes(table: pl.DataFrame) -> bytes:
    """Return a table as the content of a Parquet file."""
    content = BytesIO()
    table.write_parquet(content)
    return content.getvalue()


def _put(content: bytes, path: Path) -> None:
    try:
        DiskFolder(path.parent).write(path.name, content)
    except OSError as error:
        raise cannot_write(str(path), error) from error


def csv_text(table: pl.DataFrame) -> str:
    """Return a table as CSV in which no spreadsheet finds a formula, also in headings; empty cells are missing values.

    Columns of lists are left out.
    """
    texts, flat = pl.selectors.string(), table.select(~pl.selectors.nested())
    cells = flat.with_columns(texts.map_elements(spreadsheet_cell, return_dtype=pl.String))
    return cells.rename(spreadsheet_cell).write_csv()
