"""What each seed scored on each test sample: read from the files beside the checkpoints into the reports table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ablate.base.errors import RequestError
from ablate.base.files import open_folder
from ablate.base.redaction import error_text
from ablate.base.sample_files import SampleValues, read_sample_values
from ablate.core.trial import TrialState, checkpoint_folder
from ablate.ledger import ReportRecord, Snapshot, TrialRecord
from ablate.results.statistics.crossed import Spread, spread

SAMPLES = "samples"  # column of the reports table
SAMPLES_TYPE = pl.List(pl.Struct({"metric": pl.String(), "split": pl.String(), "values": pl.List(pl.Float32())}))
ROUNDING = 1e-6  # of the mean size of a value: by how much the mean of values as float32 may miss the metric

logger = logging.getLogger("ablate.results.trials")


def sample_column(snapshot: Snapshot, counted: Sequence[ReportRecord | None]) -> pl.Series:
    """Return one list per report of `snapshot`: metric, digest of the split, and the values whose mean it is.

    `counted` are the reports that count, and None for each other one.

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
    cells = [report and _cell(report, found.get((report.key.dataset, report.key.number))) for report in counted]
    return pl.Series(SAMPLES, cells, SAMPLES_TYPE)


def _read(snapshot: Snapshot, trial: TrialRecord) -> SampleValues | None:
    if trial.config.stage != "confirm" or trial.state != TrialState.COMPLETE or snapshot.checkpoints is None:
        return None
    folder = checkpoint_folder(snapshot.checkpoints, trial.config.origin.key)
    return read_sample_values(open_folder(folder), trial.attempt)


def _cell(report: ReportRecord, kept: SampleValues | None) -> list[dict[str, Any]] | None:
    """Return the values of a report's metrics; those whose mean is not the reported number belong to another run."""
    if kept is None:
        return None
    rows = {name: values[report.replicate] for name, values in kept.values.items() if report.replicate < len(values)}
    wide = {name: row.astype(np.float64) for name, row in rows.items() if name in report.metrics}
    miss = {name: abs(row.mean() - report.metrics[name]) for name, row in wide.items()}
    own = {name: rows[name] for name, row in wide.items() if miss[name] <= ROUNDING * abs(row).mean()}
    return [{"metric": name, "split": kept.split, "values": row.tolist()} for name, row in own.items()] or None


def spread_of(rows: pl.DataFrame, metric: str) -> Spread | None:
    """Return the spread of a metric over the seeds of `rows`, one row each, and their samples.

    None unless each seed has values for the same samples.
    """
    found = values_by_sample(rows, metric, ("trial", "seed"))
    known = {(split, len(values)) for split, values in found.values()}
    if len(found) < rows.height or len(known) != 1:
        return None
    return spread([np.array([values for _, values in found.values()])])


def values_by_sample(
    rows: pl.DataFrame, metric: str, keys: tuple[str, str]
) -> dict[tuple[int, int], tuple[str, NDArray[np.float64]]]:
    """Return digest of the split and values [samples] of a metric by two columns, of the rows that have them."""
    if SAMPLES not in rows.columns or rows.schema[SAMPLES] != SAMPLES_TYPE:
        return {}
    listed = rows.select(*keys, SAMPLES).drop_nulls(SAMPLES).explode(SAMPLES).unnest(SAMPLES).filter(metric=metric)
    columns = (listed[name] for name in (*keys, "split", "values"))
    return {(a, b): (split, values.to_numpy().astype(np.float64)) for a, b, split, values in zip(*columns, strict=True)}
