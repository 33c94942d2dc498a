"""The front as one table for the page, the terminal and the CSV files."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from ablate.base.plain_text import finite, settings_text
from ablate.core.objectives import SIZE_COLUMNS, is_share, is_size, quality_objective, signed
from ablate.results.front.assessment import assessments
from ablate.results.front.front import candidates, column_of, front, metric_at
from ablate.results.statistics.crossed import sample_interval, sources_of
from ablate.results.statistics.intervals import metric_interval, outlying
from ablate.results.trials.frozen import users_answer
from ablate.results.trials.results import Results, once
from ablate.results.trials.sample_tables import spread_of
from ablate.study import VARIANT, Study
from ablate.study.sections import Objective

MOST_ROWS = 30  # of a table on a page
MOST_NAMED = 3  # settings in a network's name

Pair = tuple[int, float]


def model_settings(study: Study) -> list[str]:
    """Return the searched parameters that change the network."""
    return [name for name in study.space.names() if name != VARIANT and study.is_architecture(name)]


def other_settings(study: Study) -> list[str]:
    """Return the searched parameters that change the training."""
    return [name for name in study.space.names() if not study.is_architecture(name)]


def network(study: Study, row: dict[str, Any], without: Collection[str] = (), by: Collection[str] = ()) -> str:
    """Return the reader's name of a trial's network: its variant and its searched axes, otherwise its trial number.

    `without` are settings that the reader is told elsewhere (`shared_settings`). Of more than MOST_NAMED axes those of
    `by` (`differing`) follow the trial number.
    """
    named = [name for name in model_settings(study) if name not in without and row.get(name) is not None]
    number = f"trial {row['trial']}"
    parts = ["" if VARIANT in without else row.get("variant") or ""]
    if len(named) > MOST_NAMED:
        parts, named = [number, *parts], [name for name in named if name in by]
    return " · ".join(part for part in (*parts, settings_text(row, named)) if part) or number


def differing(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Return at most MOST_NAMED settings of `names`: those with the most values in `rows`, in the order of `names`."""
    values = {name: len({row.get(name) for row in rows}) for name in names}
    most = sorted(names, key=lambda name: -values[name])[:MOST_NAMED]
    return [name for name in names if name in most]


def best_so_far(study: Study, trials: pl.DataFrame, dataset: str) -> tuple[list[Pair], list[Pair]]:
    """Return number and quality of the complete search trials that keep the constraints, and of each new best one."""
    first = quality_objective(study.objectives)
    rows = candidates(trials, (first,), dataset=dataset, stage="search", constraints=study.constraints).sort("trial")
    kept: list[Pair] = list(zip(rows["trial"], column_of(rows, "search")(first.metric), strict=True))
    bests: list[Pair] = []
    for number, value in kept:
        if not bests or signed(first, value) < signed(first, bests[-1][1]):
            bests.append((number, value))
    return kept, bests


def shared_settings(study: Study, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the searched settings, the variant included, that two or more rows have in common."""
    names = [VARIANT, *model_settings(study), *other_settings(study)]
    found = {name: {row.get(name) for row in rows} for name in names}
    return {name: next(iter(values)) for name, values in found.items() if len(rows) > 1 and len(values) == 1}


def shared_text(study: Study, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return `All have: one-head · depth 2`, or an empty text if the rows differ in every searched setting."""
    shared = shared_settings(study, rows)
    parts = [shared.get(VARIANT) or "", settings_text(shared, [n for n in shared if n != VARIANT])]
    text = " · ".join(part for part in parts if part)
    return f"All have: {text}" if text else ""


def note_text(study: Study, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the reader of a front's table needs beside it: the settings in common, and what intervals are for."""
    name = quality_name(study)
    over = {row[f"{name}_over"] for row in rows if row[f"{name}_low"] is not None}
    counts = {row["replicates"] for row in rows}
    many = f", n = {counts.pop()}" if len(counts) == 1 else ""
    kinds = {"seeds": "on the same samples", "seeds and samples": "and other samples"}
    intervals = f"Intervals (95%{many}) are for other seeds {kinds[over.pop()]}" if len(over) == 1 else ""
    return ". ".join(filter(None, [shared_text(study, rows), intervals]))


def counted_rows(reports: pl.DataFrame) -> pl.DataFrame:
    """Return the report of each trial that counts, one row per replicate, by data set, trial and replicate."""
    return reports.filter("counts").sort("dataset", "trial", "replicate")


def replicate_values(last: pl.DataFrame, dataset: str, trial: int, metric: str) -> list[float]:
    """Return a metric of one trial by replicate (NaN where it is null); `last` are the reports that count."""
    if metric not in last.columns:
        return []
    rows = last.filter((pl.col("dataset") == dataset) & (pl.col("trial") == trial))
    return [math.nan if value is None else float(value) for value in rows[metric]]


def seed_values(last: pl.DataFrame, row: Mapping[str, Any], metric: str) -> list[float]:
    """Return a metric's value of each seed of a trial, or the row's value if no report has it."""
    value = row.get(metric)
    own = replicate_values(last, row["dataset"], row["trial"], metric)
    return own or [math.nan if value is None else float(value)]


def quality_name(study: Study) -> str:
    """Return the quality metric without its split: `accuracy` for `val_accuracy`."""
    return quality_objective(study.objectives).metric.removeprefix("val_")


def other_objectives(study: Study) -> list[Objective]:
    """Return the objectives beside the quality, costs that are known before training first."""
    quality = quality_objective(study.objectives)
    return sorted((each for each in study.objectives if each is not quality), key=lambda each: not is_size(each.metric))


def declared_metrics(study: Study) -> list[str]:
    """Return the metrics of a study: the quality, the other objectives, then what constraints bound."""
    objectives = [quality_objective(study.objectives), *other_objectives(study)]
    return list(dict.fromkeys([each.metric for each in objectives] + [each.metric for each in study.constraints]))


def objective_value(metric: str, row: Mapping[str, Any]) -> float:
    """Return an objective's metric in a row of `front_table`, NaN if it is not known."""
    value = row.get(metric_at(metric, row["stage"]))
    value = row.get(metric.removeprefix("val_")) if value is None else value
    return math.nan if value is None else float(value)


def row_losses(objectives: Iterable[Objective], row: Mapping[str, Any]) -> list[float]:
    """Return these objectives in a row of `front_table`, with the signs that make smaller values the better ones."""
    return [signed(each, objective_value(each.metric, row)) for each in objectives]


def is_logarithmic(objective: Objective) -> bool:
    """Return whether an objective has a logarithmic axis: if the file says so, and every size."""
    return objective.log or is_size(objective.metric)


def place_of(objective: Objective, row: Mapping[str, Any]) -> float | None:
    """Return where a row lies on the axis of an objective, in percent of a share; None if it has no place there."""
    value = objective_value(objective.metric, row)
    if not math.isfinite(value) or (is_logarithmic(objective) and value <= 0):
        return None
    return 100 * value if is_share(objective.metric) else value


def samples(row: Mapping[str, Any]) -> int | None:
    """Return the number of samples that a trial's quality is measured on, or None if it is not known."""
    return row.get("test_samples" if row["stage"] == "confirm" else "validation_samples")


@once
def front_table(results: Results) -> pl.DataFrame:
    """Return the front of every data set with one row per network, all its seeds pooled.

    Columns: dataset, trial, stage, source, variant, the searched parameters, params, params_body, flops, q, split
    (validation or test), the quality metric's mean, `_low`, `_high` (95% interval), `_over` (what varies in it),
    `_samples` (their number), `_se_seeds`, `_se_samples`, `_se_both` (standard errors of its sources), `_search` (its
    number in the search) and `replicates`, then `difference` to the best with `_low`, `_high`, `verdict`,
    `front_probability`, `outlying_seeds`, `yours` (whether these are the user's settings), and the columns of the other
    objectives.
    """
    study = results.study
    return network_table(results, front(results.pooled.trials, study.objectives, constraints=study.constraints))


def network_table(results: Results, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of `front_table` for these rows of the pooled trials."""
    study, trials = results.study, results.pooled.trials
    settings = [n for n in model_settings(study) + other_settings(study) if n in rows.columns]
    kept = ["dataset", "trial", "stage", "source", "variant", *settings, *SIZE_COLUMNS]
    others = declared_metrics(study)[1:]
    kept += [each for each in others if each in rows.columns and is_size(each) and each not in kept]
    last = counted_rows(results.pooled.reports)
    quality = quality_objective(study.objectives).metric
    searched = {
        (row["dataset"], row["trial"]): row.get(quality) for row in trials.filter(stage="search").iter_rows(named=True)
    }
    measured = [
        _measured(results, row, last, rows.height)
        | {f"{quality_name(study)}_search": searched.get((row["dataset"], row["source"]))}
        for row in rows.iter_rows(named=True)
    ]
    table = rows.select(kept).hstack(pl.DataFrame(measured, schema=_schema(quality_name(study))))
    named = dict.fromkeys(each for metric in others for each in (metric, metric_at(metric, "confirm")))
    return table.with_columns(rows[each] for each in named if each in rows.columns and each not in table.columns)


def _schema(name: str) -> dict[str, pl.DataType]:
    """Return the columns of `front_table` that are measured."""
    floats, texts = pl.Float64(), pl.String()
    return {
        "split": texts,
        **dict.fromkeys((name, f"{name}_low", f"{name}_high"), floats),
        f"{name}_over": texts,
        f"{name}_samples": pl.Int64(),
        **dict.fromkeys((f"{name}_se_seeds", f"{name}_se_samples", f"{name}_se_both", f"{name}_search"), floats),
        "replicates": pl.Int64(),
        **dict.fromkeys(("difference", "difference_low", "difference_high"), floats),
        "verdict": texts,
        "front_probability": floats,
        "outlying_seeds": texts,
        "yours": pl.Boolean(),
    }


def _measured(results: Results, row: Mapping[str, Any], counted: pl.DataFrame, rows: int) -> dict[str, Any]:
    """Return what is measured of one of `rows` rows of the pooled trials; `counted` are the reports that count.

    The interval of the quality is for other seeds and other samples where each sample's value was kept, otherwise for
    other seeds alone. What is not compared with the best is null.
    """
    study, dataset, number = results.study, row["dataset"], row["trial"]
    name, metric = quality_name(study), metric_at(quality_objective(study.objectives).metric, row["stage"])
    last = counted.filter(pl.col("dataset") == dataset, pl.col("trial") == number)
    values, found = seed_values(last, row, metric), spread_of(last, metric)
    interval = metric_interval(metric, values, samples=samples(row))
    if found is not None:
        interval = sample_interval(metric, found)
    far = [str(last["seed"][place]) for place in outlying(metric, values, samples=samples(row), rows=rows)]
    assessed, first = assessments(results).get(dataset), number if row["source"] is None else row["source"]
    difference = assessed and assessed.differences.get(number)
    return {
        "split": "test" if row["stage"] == "confirm" else "validation",
        name: interval.mean,
        f"{name}_low": finite(interval.low),
        f"{name}_high": finite(interval.high),
        f"{name}_over": sources_of(interval, found),
        f"{name}_samples": found.count if found else samples(row),
        **{f"{name}_se_{of}": found and math.sqrt(getattr(found, of)) for of in ("seeds", "samples", "both")},
        "replicates": interval.n,
        **{f"difference{end}": difference and getattr(difference, end[1:] or "mean") for end in ("", "_low", "_high")},
        "verdict": difference and difference.verdict,
        "front_probability": assessed and assessed.front.get(number),
        "outlying_seeds": ", ".join(far),
        "yours": bool((users_answer(results, dataset) or {}).get("trial") == first),
    }
