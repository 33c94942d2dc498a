"""What the tuning of each row of a comparison measured, cost and found, and whether that was fair."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from ablate.base.plain_text import counted, settings_text
from ablate.core.objectives import Column, is_cost, winner
from ablate.results.trials.results import Results, once
from ablate.results.trials.study_warnings import StudyWarning
from ablate.study import VARIANT, Study
from ablate.study.space import Choices, FloatRange, IntRange, Range
from ablate.study.tuning_seeds import shared_tuning_text, tuning_seed_of, tuning_seeds_of

ROW = ["dataset", "variant", "configuration"]
NEAR_BORDER = 0.05  # share of a range, on its scale, within which an optimum counts as at the border
BORDER_SEEDS = 0.5  # share of the tuning seeds whose best value is there, from which on it is said
BUDGET_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(ROW, pl.String()),
    **dict.fromkeys(("trials", "runs", "complete", "failed", "unfinished", "epochs"), pl.Int64()),
    "seconds": pl.Float64(),
    **dict.fromkeys(("seeds", "untuned"), pl.Int64()),
    "score": pl.Float64(),
    **dict.fromkeys(("winners", "border"), pl.String()),
}


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


@once
def tuning_budget(results: Results) -> pl.DataFrame:
    """Return one row per data set, configuration and row of the comparison, in the order of their first trial.

    Both are tables of docs/tables.md. A run is a trial on one seed. `epochs` and `seconds` are sums over trials.
    `seeds` are the tuning seeds, `untuned` the seeds of the row for which no run is complete, `score` is the mean of
    the winning scores. `winners` lists the values
    that won as JSON, with the number of their tuning seeds, the most frequent first. `border` names the settings whose
    best value is within 5% of an end of their range on half of the tuning seeds or more.
    """
    study, trials = results.study, results.trials
    scores = tuning_scores(results)
    complete = _by_row(scores.filter(pl.col("score").is_not_null()))
    won = _by_row(tuning_winners(study, scores))
    rows = []
    finished = pl.col("state").is_in(["COMPLETE", "PRUNED", "FAIL"])
    tuning = tuning_trials_of(study, trials).with_columns(finished=finished)
    for part in tuning.partition_by(ROW, maintain_order=True):
        key = tuple(part[name][0] for name in ROW)
        best, done = won.get(key, scores.clear()), complete.get(key, scores.clear()).height
        seeds, ended = len(tuning_seeds_of(study, key[1])), part.filter(pl.col("finished"))["replicates"].sum()
        decided = [tuning_seed_of(study, key[1], seed) for seed in study.seeds_of(key[1])]
        rows.append(
            dict(zip(ROW, key, strict=True))
            | {
                "trials": part.height,
                "runs": part["values"].n_unique() * seeds,
                "complete": done,
                "failed": ended - done,
                "unfinished": part["values"].n_unique() * seeds - ended,
                "epochs": part["epochs"].sum(),
                "seconds": math.fsum(part["wall_seconds"].drop_nulls()),
                "seeds": seeds,
                "untuned": sum(seed not in best["seed"] for seed in decided),
                "score": best["score"].mean(),
                "winners": json.dumps(_counted(study, best)),
                "border": ", ".join(_at_border(study, best)),
            }
        )
    return pl.DataFrame(rows, schema=BUDGET_COLUMNS)


def _by_row(table: pl.DataFrame) -> dict[tuple[Any, ...], pl.DataFrame]:
    return table.partition_by(ROW, as_dict=True)


def _counted(study: Study, winners: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the values that won with the number of their seeds, the most frequent first."""
    names = [name for name in study.tuned.names() if name in winners.columns]
    found = winners.group_by(names, maintain_order=True).agg(pl.len().alias("seeds")) if names else winners.clear()
    return [dict(row) for row in found.sort("seeds", descending=True, maintain_order=True).iter_rows(named=True)]


def _at_border(study: Study, winners: pl.DataFrame) -> Iterator[str]:
    """Yield the settings whose best value is at a border of its range on BORDER_SEEDS of the seeds."""
    for name in (name for name in study.tuned.names() if name in winners.columns and winners.height):
        there = [at_border(study.tuned.ranges[name], value) for value in winners[name].to_list()]
        if sum(there) >= BORDER_SEEDS * winners.height:
            yield name


def at_border(spec: Range, value: Any) -> bool:
    """Return whether a value is within NEAR_BORDER of an end of a numeric range, on the range's scale."""
    if isinstance(spec, Choices) or not isinstance(value, int | float):
        return False
    assert isinstance(spec, FloatRange | IntRange)
    low, high, at = (math.log(x) if spec.log else float(x) for x in (*spec.bounds, value))
    return low < high and min(at - low, high - at) <= NEAR_BORDER * (high - low)


@once
def count_untuned(results: Results) -> Counter[tuple[str, str]]:
    """Return on how many seeds a (data set, row) is not trained, because no run on their tuning seed is complete.

    A seed of each configuration counts; a row whose tuning has not ended has none.
    """
    study = results.study
    if study.tune is None:
        return Counter()
    ended = tuning_budget(results).filter(pl.col("unfinished") == 0, pl.col("untuned") > 0)
    summed = ended.group_by("dataset", "variant").agg(pl.col("untuned").sum())
    return Counter({(dataset, variant): count for dataset, variant, count in summed.iter_rows()})


def tuning_warnings(results: Results) -> list[StudyWarning]:
    """Return what makes the tuning of a comparison unfair or its best values doubtful; none without `tune`."""
    study, reports = results.study, results.reports
    if study.tune is None:
        return []
    budget = tuning_budget(results)
    found = [*_unequal(budget), *_failed(budget), *_borders(budget), *_reused(reports), *_on_test(study, budget)]
    shared = shared_tuning_text(study)
    return found if shared is None else [StudyWarning(code="tuning-luck", text=shared), *found]


def _unequal(budget: pl.DataFrame) -> Iterator[StudyWarning]:
    for part in budget.partition_by("dataset", "configuration", maintain_order=True):
        if part["unfinished"].sum():
            continue
        spent = {_name(row): (row["complete"], row["epochs"]) for row in part.iter_rows(named=True)}
        least, most = min(spent, key=spent.__getitem__), max(spent, key=spent.__getitem__)
        if spent[least] != spent[most]:
            few, many = spent[least], spent[most]
            text = (
                f"On {part['dataset'][0]} the rows were not tuned equally: {least} has {few[0]} complete tuning runs "
                f"({few[1]:,} epochs), {most} has {many[0]} ({many[1]:,}). The row with more is favoured by luck alone."
            )
            yield StudyWarning(code="unequal-budget", text=text)


def _failed(budget: pl.DataFrame) -> Iterator[StudyWarning]:
    rows = [row for row in budget.iter_rows(named=True) if row["failed"]]
    if rows:
        total, asked = sum(row["failed"] for row in rows), budget["runs"].sum()
        listed = _listed([f"{row['dataset']} {_name(row)} {row['failed']}" for row in rows])
        text = f"{total} of {asked} tuning runs failed or diverged: {listed}. They cannot be a row's best."
        yield StudyWarning(code="failed-tuning", text=text)
    without = [row for row in budget.iter_rows(named=True) if row["untuned"] and not row["unfinished"]]
    if without:
        named = [f"{row['dataset']} {_name(row)} ({counted(row['untuned'], 'seed')})" for row in without]
        text = f"No tuning run is complete for {_listed(named)}, so these rows were not trained on them."
        yield StudyWarning(code="no-tuned-row", text=text)


def _borders(budget: pl.DataFrame) -> Iterator[StudyWarning]:
    rows = [row for row in budget.iter_rows(named=True) if row["border"]]
    names = dict.fromkeys(name for row in rows for name in row["border"].split(", "))
    for setting in names:
        own = [row for row in rows if setting in row["border"].split(", ")]
        listed = _listed([f"{row['dataset']} {_name(row)}" for row in own])
        text = (
            f"The best {setting} is at a border of its range for {listed}, on half of the tuning seeds or more: a "
            "wider range may hold a better value, and for these rows the comparison says less."
        )
        yield StudyWarning(code="border-optimum", text=text)


def _reused(reports: pl.DataFrame) -> Iterator[StudyWarning]:
    tuned, trained = (set(reports.filter(pl.col("stage") == stage)["seed"].to_list()) for stage in ("tune", "search"))
    if shared := sorted(tuned & trained):
        text = (
            f"Seeds {', '.join(map(str, shared))} were used for tuning and for the comparison: the best values were "
            "chosen on them, so their numbers look better than they are."
        )
        yield StudyWarning(code="seeds-reused", text=text)


def _on_test(study: Study, budget: pl.DataFrame) -> Iterator[StudyWarning]:
    if study.protocol == "paper" and budget.height:
        text = (
            "Under `protocol: paper` validation is the test split: the best values were chosen on the samples on which "
            "the rows are compared, so each row looks better than it is."
        )
        yield StudyWarning(code="tuned-on-test", text=text)


def _name(row: Mapping[str, Any]) -> str:
    return " ".join(part for part in (row["variant"], row["configuration"]) if part)


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
