"""What the intervals of a front are for, in words: other seeds and samples, or seeds on these samples only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from ablate.core.objectives import is_share
from ablate.results.front.tables import quality_name
from ablate.results.statistics.samples import SAMPLES_TOO
from ablate.study import Study


def sources_text(study: Study, row: Mapping[str, Any]) -> str:
    """Return what the interval of a network's number is for, with the standard errors of its sources."""
    name = quality_name(study)
    if row[f"{name}_low"] is None:
        return ""
    if row[f"{name}_over"] != SAMPLES_TOO:
        return f"The interval is for other seeds, on {_these(study, row)} only."
    seeds, samples, both = (_size(name, row[f"{name}_se_{source}"]) for source in ("seeds", "samples", "both"))
    unit = " points" if is_share(name) else ""
    return (
        f"The interval is for other seeds and other samples of the same kind. Standard errors: {samples}{unit} from "
        f"{_these(study, row)}, {seeds} from {row['replicates']} seeds, {both} from single seeds on single samples."
    )


def intervals_text(study: Study, front: pl.DataFrame) -> str:
    """Return what the intervals of the table of a front are for; empty if it has none."""
    name = quality_name(study)
    rows = [row for row in front.iter_rows(named=True) if row[f"{name}_low"] is not None]
    if not rows:
        return ""
    unequal = len({row["replicates"] for row in rows if row["verdict"]}) > 1
    adjusted = ". Differences to the best are adjusted for the seeds that a network lacks" if unequal else ""
    if any(row[f"{name}_over"] != SAMPLES_TOO for row in rows):
        return f"Intervals are for other seeds, on {_these(study, rows[0])} only{adjusted}"
    return (
        "Intervals of means are for other seeds and other samples of the same kind; differences to the best and "
        f"verdicts are for other seeds, on {_these(study, rows[0])} only{adjusted}"
    )


def _these(study: Study, row: Mapping[str, Any]) -> str:
    count = row[f"{quality_name(study)}_samples"]
    number = f"{count:,} " if count else ""
    return f"these {number}{row['split']} sample{'s' * (count != 1)}"


def _size(name: str, value: float) -> str:
    return f"{100 * value:.2f}" if is_share(name) else f"{value:.2g}"
