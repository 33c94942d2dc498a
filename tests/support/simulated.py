"""Small planted tables of trials and reports, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ablate.results.trials.tables import REPORT_COLUMNS, TRIAL_COLUMNS


@dataclass(frozen=True, kw_only=True)
class Row:
    """A trial: its stage, its variant, and further columns by name."""

    stage: str
    variant: str
    values: Mapping[str, Any] = field(default_factory=dict)


def trials_of(rows: Sequence[Row]) -> pl.DataFrame:
    """Return a trials table of data set `digits`; each trial took 2 seconds."""
    empty = dict.fromkeys(TRIAL_COLUMNS)
    listed = [
        {**empty, "dataset": "digits", "trial": number, "stage": row.stage, "variant": row.variant, "wall_seconds": 2.0}
        | dict(row.values)
        for number, row in enumerate(rows)
    ]
    return pl.DataFrame(listed, schema_overrides=TRIAL_COLUMNS, infer_schema_length=None)


def reports_of(trials: pl.DataFrame, seeds: Mapping[str, Sequence[int]]) -> pl.DataFrame:
    """Return the last report of each trial on the seeds of its stage."""
    empty = dict.fromkeys(REPORT_COLUMNS)
    listed = [
        {
            **empty,
            "dataset": "digits",
            "trial": row["trial"],
            "stage": row["stage"],
            "seed": seed,
            "final": True,
            "counts": True,
        }
        for row in trials.iter_rows(named=True)
        for seed in seeds.get(row["stage"], ())
    ]
    return pl.DataFrame(listed, schema=REPORT_COLUMNS)
