"""What the tuning of each row measured: scores by value and seed, and the winners."""

from __future__ import annotations

import json
import math

import polars as pl

from ablate.base.plain_text import settings_text
from ablate.core.objectives import Column, is_cost, winner
from ablate.results.trials.results import Results, once
from ablate.study import VARIANT, Study

ROW = ["dataset", "variant", "configuration"]


def tuning_trials_of(study: Study, trials: pl.DataFrame) -> pl.DataFrame:
    """Return the tuning trials of the data sets that run, with `configuration` in words and tuned `values` as JSON."""
    own = trials.filter(pl.col("stage") == "tune", pl.col("dataset").is_in(study.labels))
    searched = [name for name in study.space.names() if name != VARIANT and name in own.columns]
    tuned = [name for name in study.tuned.names() if name in own.columns]
    rows = own.rows(named=True)
    texts = {
        "configuration": [settings_text(row, searched) for row in rows],
        "values": [json.dumps({name: row[name] for name in tuned if row[name] is not None}) for row in rows],
    }
    return own.with_columns(pl.Series(name, text, pl.String()) for name, text in texts.items())


@once
def tuning_scores(results: Results) -> pl.DataFrame:
    """Return one row per seed of each complete tuning trial, by number: the row, its values, `seed` and `score`.

    `score` is the seed's tuning metric, null if it is not finite. The metrics of constraints follow.
    """
    study, trials, reports = results.study, results.trials, results.reports
    metric, own = study.tuning_objective.metric, tuning_trials_of(study, trials).filter(pl.col("state") == "COMPLETE")
    tuned = [name for name in study.tuned.names() if name in own.columns]
    score = pl.col(metric) if metric in reports.columns else pl.lit(None, pl.Float64())
    bounded = dict.fromkeys(each.metric for each in study.constraints if each.metric != metric)
    costs = [name for name in bounded if is_cost(name) and name in own.columns]
    measured = [name for name in bounded if not is_cost(name) and name in reports.columns]
    counted = reports.filter("counts").select("dataset", "trial", "seed", *measured, score=score.cast(pl.Float64()))
    counted = counted.with_columns(score=pl.when(pl.col("score").is_finite()).then("score"))
    found = own.select(*ROW, "values", *tuned, *costs, "trial").join(
        counted, on=["dataset", "trial"], maintain_order="left_right"
    )
    return found.sort("trial", maintain_order=True)


def tuning_winners(study: Study, scores: pl.DataFrame) -> pl.DataFrame:
    """Return the `winner` of `tuning_scores` for each row of the comparison and tuning seed, where one has a score."""
    kept = []
    for part in scores.with_row_index("place").partition_by(*ROW, "seed", maintain_order=True):
        best = winner(study.tuning_objective, study.constraints, _column(study, part))
        kept += [] if best is None else [int(part["place"][best])]
    return scores[kept] if kept else scores.clear()


def _column(study: Study, part: pl.DataFrame) -> Column:
    """Return the expression of a metric of `tuning_scores`, NaN where a run has none."""
    named = {study.tuning_objective.metric: "score"}
    unknown = pl.Series([math.nan] * part.height)
    return lambda metric: (
        part.get_column(named.get(metric, metric), default=unknown).cast(pl.Float64()).fill_null(math.nan).to_list()
    )
