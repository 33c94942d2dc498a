"""The front as one table for the page, the terminal and the CSV files."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from typing import Any

import polars as pl

from ablate.base.plain_text import finite, settings_text
from ablate.core.objectives import SIZE_COLUMNS, SIZE_METRICS, is_size, quality_objective
from ablate.results.fits.fits import FORMS, CurveFit
from ablate.results.front.assessment import Assessment, assessments
from ablate.results.front.front import front, metric_at
from ablate.results.rendering.numbers import DASH, compact, count, interval_text, printable, quantity, ratio
from ablate.results.statistics.intervals import Interval, metric_interval, outlying
from ablate.results.statistics.samples import Spread, sample_interval, sources_of
from ablate.results.trials.confirmation import users_answer
from ablate.results.trials.results import Results, once
from ablate.results.trials.sample_tables import spread_of
from ablate.study import VARIANT, Study

MOST_ROWS = 30  # of a table in a terminal and on a page
MOST_NAMED = 3  # settings in a network's name
SIZES = ("parameters", "flops", "q")  # headings, without capitals


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


def more_text(rows: int, file: str) -> str:
    """Return what follows a table that ends after MOST_ROWS of its `rows`; empty if it has all of them."""
    return f"… and {rows - MOST_ROWS:,} more: {file}" if rows > MOST_ROWS else ""


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


def counted_rows(reports: pl.DataFrame) -> pl.DataFrame:
    """Return the report of each trial that counts, one row per replicate, by data set, trial and replicate."""
    return reports.filter("counts").sort("dataset", "trial", "replicate") if reports.height else reports


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


def row_interval(study: Study, row: dict[str, Any], last: pl.DataFrame) -> tuple[Interval, Spread | None]:
    """Return the quality of one trial with its interval, or only its mean without reports.

    The interval is for other seeds and other samples where each sample's value was kept, which the spread says too;
    otherwise for other seeds alone.
    """
    metric = metric_at(quality_objective(study.objectives).metric, row["stage"])
    values = seed_values(last, row, metric)
    own = last.filter(pl.col("dataset") == row["dataset"], pl.col("trial") == row["trial"]) if last.height else last
    found = spread_of(own, metric)
    if found is not None:
        return sample_interval(metric, found), found
    return metric_interval(metric, values, samples=samples(row)), None


def samples(row: Mapping[str, Any]) -> int | None:
    """Return the number of samples that a trial's quality is measured on, or None if it is not known."""
    return row.get("test_samples" if row["stage"] == "confirm" else "validation_samples")


def outlying_seeds(study: Study, row: dict[str, Any], last: pl.DataFrame, rows: int) -> str:
    """Return the seeds of one trial that its others do not explain, such as `1000003`; `rows` trials are looked at."""
    metric = metric_at(quality_objective(study.objectives).metric, row["stage"])
    values = replicate_values(last, row["dataset"], row["trial"], metric)
    places = outlying(metric, values, samples=samples(row), rows=rows)
    if not places:
        return ""
    seeds = last.filter((pl.col("dataset") == row["dataset"]) & (pl.col("trial") == row["trial"]))["seed"].to_list()
    return ", ".join(str(seeds[place]) for place in places)


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
    assessed, last = assessments(results), counted_rows(results.pooled.reports)
    name = quality_name(study)
    measured = [row_interval(study, row, last) for row in rows.iter_rows(named=True)]
    intervals = [interval for interval, _ in measured]
    settings = [n for n in model_settings(study) + other_settings(study) if n in rows.columns]
    kept = ["dataset", "trial", "stage", "source", "variant", *settings, *SIZE_COLUMNS]
    kept += [name for name in own_costs(study) if name in rows.columns]
    quality = [
        pl.Series("split", ["test" if stage == "confirm" else "validation" for stage in rows["stage"]], pl.String()),
        pl.Series(name, [i.mean for i in intervals], pl.Float64()),
        pl.Series(f"{name}_low", [i.low for i in intervals], pl.Float64()).fill_nan(None),
        pl.Series(f"{name}_high", [i.high for i in intervals], pl.Float64()).fill_nan(None),
        *_sources(name, rows, measured),
        pl.Series(f"{name}_search", _searched(study, trials, rows), pl.Float64()),
        pl.Series("replicates", [i.n for i in intervals], pl.Int64()),
        *_assessed(rows, assessed),
        pl.Series(
            "outlying_seeds",
            [outlying_seeds(study, row, last, rows.height) for row in rows.iter_rows(named=True)],
            pl.String(),
        ),
        pl.Series("yours", [_is_users(results, row) for row in rows.iter_rows(named=True)], pl.Boolean()),
    ]
    table = rows.select(kept).with_columns(quality)
    others = [o.metric for o in study.objectives if o.metric != quality_objective(study.objectives).metric]
    named = dict.fromkeys(each for metric in others for each in (metric, metric_at(metric, "confirm")))
    return table.with_columns(rows[each] for each in named if each in rows.columns and each not in table.columns)


def _is_users(results: Results, row: Mapping[str, Any]) -> bool:
    """Return whether a row of the pooled trials has the user's settings."""
    first = row["trial"] if row["source"] is None else row["source"]
    return bool((users_answer(results, row["dataset"]) or {}).get("trial") == first)


def _sources(name: str, rows: pl.DataFrame, measured: Sequence[tuple[Interval, Spread | None]]) -> list[pl.Series]:
    """Return the columns that say what each interval is for: its sources and their standard errors."""
    spreads = [found for _, found in measured]
    counts = [found.count if found else samples(row) for found, row in zip(spreads, rows.to_dicts(), strict=True)]
    parts = {
        source: [found and math.sqrt(getattr(found, source)) for found in spreads]
        for source in ("seeds", "samples", "both")
    }
    return [
        pl.Series(f"{name}_over", [sources_of(*each) for each in measured], pl.String()),
        pl.Series(f"{name}_samples", counts, pl.Int64()),
        *(pl.Series(f"{name}_se_{source}", values, pl.Float64()) for source, values in parts.items()),
    ]


def _searched(study: Study, trials: pl.DataFrame, rows: pl.DataFrame) -> list[float | None]:
    """Return the search's number of each confirmed network; None for a row of the search itself."""
    metric = quality_objective(study.objectives).metric
    if metric not in trials.columns:
        return [None] * rows.height
    known = {(d, n): v for d, n, v in trials.filter(stage="search").select("dataset", "trial", metric).iter_rows()}
    return [known.get((row["dataset"], row["source"])) for row in rows.iter_rows(named=True)]


def _assessed(rows: pl.DataFrame, assessed: Mapping[str, Assessment]) -> list[pl.Series]:
    """Return the columns of the comparison with the best; null where a data set has no assessment."""
    places = list(rows.select("dataset", "trial").iter_rows())
    found = [assessed[d].differences.get(n) if d in assessed else None for d, n in places]
    chances = [assessed[d].front.get(n) if d in assessed else None for d, n in places]
    return [
        pl.Series("difference", [each and each.mean for each in found], pl.Float64()),
        pl.Series("difference_low", [each and each.low for each in found], pl.Float64()),
        pl.Series("difference_high", [each and each.high for each in found], pl.Float64()),
        pl.Series("verdict", [each and each.verdict for each in found], pl.String()),
        pl.Series("front_probability", chances, pl.Float64()),
    ]


def own_costs(study: Study) -> list[str]:
    """Return the costs of a user's `size` that the study declares, beside the sizes that every table has."""
    declared = [*(each.metric for each in study.objectives), *(each.metric for each in study.constraints)]
    return [name for name in dict.fromkeys(declared) if is_size(name) and name not in SIZE_METRICS]


def cost_cells(study: Study, row: Mapping[str, Any]) -> list[str]:
    """Return the cells of `own_costs`."""
    return [quantity(name, row.get(name)) for name in own_costs(study)]


def without_unknown_sizes(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of a front without the columns of sizes that no network's is known of."""
    columns = [heading.casefold() not in SIZES for heading in headings]
    kept = [known or any(row[i] != DASH for row in rows) for i, known in enumerate(columns)]
    return [*compress(headings, kept)], [[*compress(row, kept)] for row in rows]


def front_cells(
    study: Study, row: dict[str, Any], without: Collection[str] = (), by: Collection[str] = ()
) -> list[str]:
    """Return the cells of one row of `front_table` as text; `without` and `by` as in `network`."""
    name = quality_name(study)
    return [
        printable(f"{network(study, row, without, by)}{' (yours)' * row['yours']}"),
        count(row.get("params")),
        compact(row.get("flops")),
        ratio(row.get("q")),
        quantity(name, row[name]),
        interval_text(name, row[f"{name}_low"], row[f"{name}_high"], row["replicates"]),
        str(row["replicates"]),
        str(row["trial"]),
    ]


def fits_table(fits: dict[str, CurveFit], metric: str) -> pl.DataFrame:
    """Return one row per data set: the chosen form or the reason for none, its parameters and every AICc."""
    rows = [
        {
            "dataset": dataset,
            "error_of": metric,
            "label": fit.label,
            "reason": fit.reason,
            "sizes": fit.sizes,
            "networks": fit.networks,
            "points": fit.points,
            **{name: finite(getattr(fit, name)) for name in _FLOATS},
            **{f"aicc_{form.replace('-', '_')}": finite(fit.aicc.get(form)) for form in FORMS},
        }
        for dataset, fit in fits.items()
    ]
    return pl.DataFrame(rows, schema=_FIT_SCHEMA)


_FLOATS = ("smallest", "largest", "floor", "amplitude", "exponent", "exponent_low", "exponent_high", "misfit")
_FIT_SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(("dataset", "error_of", "label", "reason"), pl.String()),
    **dict.fromkeys(("sizes", "networks", "points"), pl.Int64()),
    **dict.fromkeys(_FLOATS, pl.Float64()),
    **dict.fromkeys((f"aicc_{form.replace('-', '_')}" for form in FORMS), pl.Float64()),
}
