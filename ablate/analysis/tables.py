"""Trials and reports as tables: polars from the ledger, Parquet on disk (docs/tables.md)."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from ablate.analysis.sample_tables import SAMPLES, SAMPLES_TYPE, sample_column
from ablate.base.errors import ResultsDownError
from ablate.base.files import DiskFolder
from ablate.base.plain_text import spreadsheet_cell
from ablate.base.redaction import error_text
from ablate.ledger import ReportRecord, Snapshot, TrialRecord
from ablate.objectives import SIZE_METRICS, means
from ablate.study.space import Choices, Range, Space

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
    "diverged": pl.Boolean(),
    "checkpoint": pl.String(),
    "wall_seconds": pl.Float64(),
    "driver_epoch": pl.Int64(),
    "created_at": pl.Float64(),
    SAMPLES: SAMPLES_TYPE,
}
TRIALS_FILE = "trials.parquet"
REPORTS_FILE = "reports.parquet"
STUDY_FILE = "study.yaml"


def trials_table(snapshot: Snapshot) -> pl.DataFrame:
    """Return one row per trial, ordered by data set and number (columns: docs/tables.md).

    After TRIAL_COLUMNS come the parameters by dotted name, ordered by name, then the metrics: the mean over
    replicates of the trial's last report. Null: the trial has no value; NaN: the value was not finite.
    """
    return _trials(snapshot.trials, snapshot.reports)


def reports_table(snapshot: Snapshot) -> pl.DataFrame:
    """Return one row per replicate and report, ordered by data set, trial, epoch and replicate (docs/tables.md)."""
    return _reports(snapshot)


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


def last_means(reports: Iterable[ReportRecord]) -> dict[str, float]:
    """Return each metric's mean over the replicates of the last epoch in `reports`, in order of first appearance."""
    by_epoch: dict[int, list[ReportRecord]] = {}
    for report in reports:
        by_epoch.setdefault(report.epoch, []).append(report)
    last = by_epoch[max(by_epoch)] if by_epoch else []
    return means([report.metrics for report in last])


def _trials(trials: list[TrialRecord], reports: list[ReportRecord]) -> pl.DataFrame:
    by_trial: dict[tuple[str, int], list[ReportRecord]] = {}
    for report in reports:
        by_trial.setdefault((report.key.dataset, report.key.number), []).append(report)
    last = [last_means(by_trial.get((trial.key.dataset, trial.key.number), ())) for trial in trials]
    rows = [_trial_row(trial) for trial in trials]
    columns = {name: pl.Series(name, [row[name] for row in rows], dtype) for name, dtype in TRIAL_COLUMNS.items()}
    for name in sorted({name for trial in trials for name in trial.config.parameters} - {"variant"}):
        column = _own_name(name, columns, "parameter")
        columns[column] = _parameter(column, [trial.config.parameters.get(name) for trial in trials])
    for name in dict.fromkeys(name for values in last for name in values):
        column = _own_name(name, columns, "metric")
        columns[column] = pl.Series(column, [values.get(name) for values in last], pl.Float64())
    return pl.DataFrame(list(columns.values()))


def _reports(snapshot: Snapshot) -> pl.DataFrame:
    reports, rows = snapshot.reports, []
    configs = {(trial.key.dataset, trial.key.number): trial.config for trial in snapshot.trials}
    for report in reports:
        config = configs[report.key.dataset, report.key.number]
        fixed: dict[str, Any] = {name: getattr(report, name, None) for name in REPORT_COLUMNS}
        fixed |= {"study": report.key.study, "dataset": report.key.dataset, "trial": report.key.number}
        rows.append(fixed | {"stage": config.stage, "seed": config.seeds[report.replicate]})
    columns = {name: pl.Series(name, [row[name] for row in rows], dtype) for name, dtype in REPORT_COLUMNS.items()}
    columns[SAMPLES] = sample_column(snapshot)
    for name in dict.fromkeys(name for report in reports for name in report.metrics):
        column = _own_name(name, columns, "metric")
        columns[column] = pl.Series(column, [report.metrics.get(name) for report in reports], pl.Float64())
    return pl.DataFrame(list(columns.values()))


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
        **{name: getattr(trial, name) for name in own + times},
    }


def _own_name(name: str, taken: Mapping[str, object], kind: str) -> str:
    return f"{kind}.{name}" if name in taken else name


def _parameter(name: str, values: list[Any]) -> pl.Series:
    """Return a column of Boolean, Int64 or Float64 if every value is one, otherwise of String (JSON if not text)."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pl.Series(name, values, pl.Boolean())
    if kinds == {int}:
        return pl.Series(name, values, pl.Int64())
    if kinds and kinds <= {int, float}:
        return pl.Series(name, [None if value is None else float(value) for value in values], pl.Float64())
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pl.Series(name, texts, pl.String())


def searched_values(table: pl.DataFrame, space: Space) -> list[dict[str, Any]]:
    """Return the searched settings of each row of a trials table, as the sampler chose them, active ones only."""
    columns = {
        name: f"parameter.{name}" if name in TRIAL_COLUMNS and name != "variant" else name for name in space.ranges
    }
    there = {name: column for name, column in columns.items() if column in table.columns}
    found = []
    for row in table.select("trial", *there.values()).iter_rows(named=True):
        values: dict[str, Any] = {}
        for name, column in there.items():
            if space.is_active(name, values):
                values[name] = _value(space.ranges[name], row[column])
        found.append(values)
    return found


def _value(spec: Range, cell: Any) -> Any:
    """Return the value of a range that a cell of its column means: a column of mixed values holds them as JSON."""
    if isinstance(spec, Choices):
        for choice in spec.choices:
            if not isinstance(choice, str) and cell == (choice if choice is None else json.dumps(choice)):
                return choice
    return spec.read(cell)


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
    """Return a table as CSV whose text cells no spreadsheet interprets as formulas; empty cells are missing values.

    Columns of lists are left out.
    """
    texts, flat = pl.selectors.string(), table.select(~pl.selectors.nested())
    return flat.with_columns(texts.map_elements(spreadsheet_cell, return_dtype=pl.String)).write_csv()
