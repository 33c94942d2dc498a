"""What decides the inconclusive verdicts of a comparison: more seeds and their hours, or a wider margin."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from ablate.results.comparison.verdicts import INCONCLUSIVE
from ablate.results.statistics.looks import share_of
from ablate.results.trials.results import Results


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """The inconclusive ones of `rows` verdicts of a metric, and what would decide them.

    `collapsed` of them have collapsed seeds, so they vary too much for any number of seeds; what follows is of the
    others. `seeds`: replicates at which a row without a difference is found non-inferior with 80% power, for the row
    that needs most; None above 1,000. `hours`: of the further training, one trial after another, as long as the trials
    took so far; None without `seeds`. `margin`: the smallest one at which all would be non-inferior now; None if all
    have collapsed seeds or equal differences. `share`: of the error, which the next look has.
    """

    undecided: int
    rows: int
    collapsed: int
    seeds: int | None
    hours: float | None
    margin: float | None
    share: float


def next_step(results: Results, table: pl.DataFrame) -> NextStep | None:
    """Return what decides the inconclusive rows of a metric's verdicts; None if none is inconclusive.

    `table` are rows of `verdicts`.
    """
    tested = table.filter(pl.col("verdict").is_not_null(), pl.col("p").is_not_null())
    rows = tested.filter(pl.col("verdict") == INCONCLUSIVE)
    if not rows.height:
        return None
    steady = rows.filter(pl.col("collapsed").fill_null(0) == 0)
    needed = steady["seeds_needed"].to_list()
    seeds = max(*needed, results.study.replicates + 1) if needed and None not in needed else None
    spent = results.trials.filter(pl.col("stage") != "confirm")["wall_seconds"].sum() / 3600
    return NextStep(
        undecided=rows.height,
        rows=tested.height,
        collapsed=rows.height - steady.height,
        seeds=seeds,
        hours=None if seeds is None else spent * (seeds / results.study.replicates - 1),
        margin=max(steady["margin_now"].drop_nulls().to_list(), default=None),
        share=share_of(rows["look"][0] + 1),
    )
