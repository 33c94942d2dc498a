"""What each seed scored on each test sample: read from the files beside the checkpoints into the reports table."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ablate.analysis.samples import Spread, spread
from ablate.base.errors import RequestError
from ablate.base.files import open_folder
from ablate.base.redaction import error_text
from ablate.base.sample_files import SampleValues, read_sample_values
from ablate.ledger import ReportRecord, Snapshot, TrialRecord
from ablate.trial import TrialState, checkpoint_folder

SAMPLES = "samples"  # column of the reports table
SAMPLES_TYPE = pl.List(pl.Struct({"metric": pl.String(), "split": pl.String(), "values": pl.List(pl.Float32())}))
ROUNDING = 1e-6  # of the mean size of a value: by how much the mean of values as float32 may miss the metric

logger = logging.getLogger("ablate.analysis")


def sample_column(snapshot: Snapshot) -> pl.Series:
    """Return one list per report of `snapshot`: metric, digest of the split, and the values whose mean it is.

    Null where nothing was kept: for most reports, and for a metric that is no mean over samples. If the place of the
    checkpoints does not answer, a line in the log says so, and the rest is null.
    """
    found: dict[tuple[str, int], SampleValues] = {}
    if snapshot.checkpoints is not None:
        try:
            for trial in snapshot.trials:
                if (kept := _read(snapshot, trial)) is not None:
                    found[trial.key.dataset, trial.key.number] = kept
        except (OSError, RequestError) as error:
            said = error_text(error, snapshot.checkpoints)
            logger.warning("values of single samples are not read (%s): intervals are over seeds alone", said)
    cells = [_cell(report, found.get((report.key.dataset, report.key.number))) for report in snapshot.reports]
    return pl.Series(SAMPLES, cells, SAMPLES_TYPE)


def _read(snapshot: Snapshot, trial: TrialRecord) -> SampleValues | None:
    if trial.config.stage != "confirm" or trial.state != TrialState.COMPLETE or snapshot.checkpoints is None:
        return None
    folder = checkpoint_folder(snapshot.checkpoints, trial.config.origin.key)
    return read_sample_values(open_folder(folder), trial.attempt)


def _cell(report: ReportRecord, kept: SampleValues | None) -> list[dict[str, Any]] | None:
    """Return the values of a report's metrics; those whose mean is not the reported number belong to another run."""
    if kept is None or not report.final:
        return None
    rows = {name: values[report.replicate] for name, values in kept.values.items() if report.replicate < len(values)}
    own = {name: row for name, row in rows.items() if _is_mean(row, report.metrics.get(name))}
    return [{"metric": name, "split": kept.split, "values": row.tolist()} for name, row in own.items()] or None


def _is_mean(row: NDArray[np.float32], reported: float | None) -> bool:
    values = row.astype(np.float64)
    return reported is not None and bool(abs(values.mean() - reported) <= ROUNDING * abs(values).mean())


def spread_of(rows: pl.DataFrame, metric: str) -> Spread | None:
    """Return the spread of a metric over the seeds of `rows`, one row each, and their samples; None if not known."""
    found = values_by_sample(rows[SAMPLES], metric) if SAMPLES in rows.columns else None
    return spread([found[1]]) if found is not None else None


def values_by_sample(cells: pl.Series, metric: str) -> tuple[str, NDArray[np.float64]] | None:
    """Return digest of the split and values [seeds, samples] of a metric, from cells of the column `samples`.

    None unless every seed has them for the same samples.
    """
    rows = [next((part for part in cell or () if part["metric"] == metric), None) for cell in cells.to_list()]
    known = [row for row in rows if row is not None]
    if not known or len(known) < len(rows) or len({(row["split"], len(row["values"])) for row in known}) > 1:
        return None
    return known[0]["split"], np.array([row["values"] for row in known], dtype=np.float64)
