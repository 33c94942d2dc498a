"""What the tuning of each row measured: scores by value and seed, winners, curve, expected best of n tries."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ablate.base.plain_text import settings_text
from ablate.base.randomness import stream
from ablate.core.objectives import COMPLETE, Column, given_for, is_cost, is_maximized, may_stand, winner
from ablate.results.trials.results import Results, once
from ablate.study import VARIANT, Study

ROW = ["dataset", "variant", "configuration"]
RESAMPLES = 1000
BAND = (2.5, 97.5)  # percentiles of the band
CURVE_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(ROW, pl.String()),
    "values": pl.String(),
    "runs": pl.Int64(),
    **dict.fromkeys(("mean", "sd"), pl.Float64()),
    "wins": pl.Int64(),
}
TRIES_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(ROW, pl.String()),
    "tries": pl.Int64(),
    **dict.fromkeys(("expected", "low", "high"), pl.Float64()),
}
Scores = NDArray[np.float64]


def tuning_metric(study: Study) -> str:
    """Return the metric that tuning optimises: the first compared one, on validation."""
    assert study.tuning_metric is not None
    return study.tuning_metric


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
    metric, own = tuning_metric(study), tuning_trials_of(study, trials).filter(pl.col("state") == "COMPLETE")
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


def tuning_curve(study: Study, scores: pl.DataFrame) -> pl.DataFrame:
    """Return one row per row of the comparison and values that it tried: mean and standard deviation over seeds.

    `runs` are the seeds with a score; `wins` counts the seeds on which these values won. The tuned settings follow.
    """
    tuned = [name for name in study.tuned.names() if name in scores.columns]
    wins = tuning_winners(study, scores).group_by(*ROW, "values").agg(wins=pl.len().cast(pl.Int64()))
    score = pl.col("score")
    found = scores.group_by(*ROW, "values", *tuned, maintain_order=True).agg(
        runs=score.count().cast(pl.Int64()), mean=score.mean(), sd=score.std()
    )
    found = found.join(wins, on=[*ROW, "values"], how="left", maintain_order="left")
    return found.with_columns(pl.col("wins").fill_null(0)).select(*CURVE_COLUMNS, *tuned)


def expected_best(study: Study, scores: pl.DataFrame) -> pl.DataFrame:
    """Return for each row the best score that n of its tries are expected to find, n from 1 to the number tried.

    Dodge et al. 2019, "Show Your Work": the expected maximum of n draws from the empirical distribution of the scores;
    here of one tuning seed, then the mean over seeds. The band holds 95% of bootstrap samples of tries and seeds. A run
    without a score, or that breaks a constraint, counts as `compare.diverged` says, otherwise as the row's worst.
    """
    sign = 1.0 if is_maximized(study.tuning_objective) else -1.0
    lost = given_for(study.compared.diverged, tuning_metric(study))
    rows: list[dict[str, Any]] = []
    for part in scores.partition_by(ROW, maintain_order=True):
        table = sign * _by_seed(study, part)
        if not np.isnan(table).all():
            row = {name: part[name][0] for name in ROW}
            table = np.where(np.isnan(table), np.nanmin(table) if lost is None else sign * lost, table)
            random = stream(study.seed, row["dataset"], 0, "tune", "band", row["variant"], row["configuration"])
            for tries, expected, low, high in _bands(table, random):
                ends = sorted((sign * low, sign * high))
                rows.append(row | {"tries": tries, "expected": sign * expected, "low": ends[0], "high": ends[1]})
    return pl.DataFrame(rows, schema=TRIES_COLUMNS)


def choice_sd(study: Study, part: pl.DataFrame) -> float | None:
    """Return the standard deviation of `choice_variance` for the scores of a row; None where it is not known."""
    sign = 1.0 if is_maximized(study.tuning_objective) else -1.0
    variance = choice_variance(sign * _by_seed(study, part)) if part.height else math.nan
    return None if math.isnan(variance) else math.sqrt(max(variance, 0.0))


def choice_variance(scores: Scores) -> float:
    """Return the variance over seeds that comes from choosing other values on other seeds, for scores [seeds, tries].

    The value chosen on a seed (larger is better) is read from the mean of the other seeds, which did not choose it. The
    noise of those means is taken off, so the estimate has no bias and may be below 0. NaN below three seeds or two
    tries, or where a score is missing.
    """
    seeds, tries = scores.shape
    if seeds < 3 or tries < 2:
        return math.nan
    chosen = scores.argmax(axis=1)
    read = ((scores.sum(axis=0) - scores) / (seeds - 1))[np.arange(seeds), chosen]
    residual = scores - scores.mean(axis=0) - scores.mean(axis=1, keepdims=True) + scores.mean()
    noise = float((residual**2).sum()) / ((seeds - 1) * (tries - 1))
    shares = np.bincount(chosen) / seeds
    return float(read.var(ddof=1) - noise / (seeds - 1) * (1 - (shares**2).sum()) * seeds / (seeds - 1))


def _by_seed(study: Study, part: pl.DataFrame) -> Scores:
    """Return the scores of a row, [seeds, tries]; NaN where a run has none or breaks a constraint."""
    stands = may_stand([study.tuning_objective], study.constraints, [COMPLETE] * part.height, _column(study, part))
    kept = part.with_columns(score=pl.when(pl.Series(stands, dtype=pl.Boolean)).then("score"))
    wide = kept.pivot("values", index="seed", values="score", aggregate_function="first").drop("seed")
    return wide.cast(pl.Float64()).fill_null(math.nan).to_numpy()


def _column(study: Study, part: pl.DataFrame) -> Column:
    """Return the expression of a metric of `tuning_scores`, NaN where a run has none."""
    named = {tuning_metric(study): "score"}
    unknown = pl.Series([math.nan] * part.height)
    return lambda metric: (
        part.get_column(named.get(metric, metric), default=unknown).cast(pl.Float64()).fill_null(math.nan).to_list()
    )


def expected_maximum(scores: Scores) -> Scores:
    """Return the expected maximum of 1 to m draws with replacement from each row of `scores` [..., m], [..., m]."""
    m = scores.shape[-1]
    tries = np.arange(1, m + 1)[:, None]
    weights = (np.arange(1, m + 1) / m) ** tries - (np.arange(m) / m) ** tries
    return np.asarray(np.sort(scores, axis=-1) @ weights.T)


def _bands(scores: Scores, random: np.random.Generator) -> Iterator[tuple[int, float, float, float]]:
    """Yield n, the expected best of n tries and the ends of its band, for scores [seeds, tries]."""
    seeds, tries = scores.shape
    drawn = np.empty((RESAMPLES, tries))
    for sample in drawn:
        chosen = scores[random.integers(0, seeds, seeds)][:, random.integers(0, tries, tries)]
        sample[:] = expected_maximum(chosen).mean(axis=0)
    low, high = np.percentile(drawn, BAND, axis=0)
    expected = expected_maximum(scores).mean(axis=0)
    for place in range(tries):
        yield place + 1, float(expected[place]), float(low[place]), float(high[place])
