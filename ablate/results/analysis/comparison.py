"""The cells of a designed comparison: means over configurations, intervals over seeds, differences paired by seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ablate.core.objectives import SIZE_COLUMNS, given_for, is_share, on_test
from ablate.core.trial import PLACEBO_SEED_BASE
from ablate.results.analysis.compared_samples import Places, SampleCells, Values
from ablate.results.analysis.intervals import metric_interval, t_interval
from ablate.results.analysis.pooling import NETWORK, pooled
from ablate.results.analysis.sample_tables import SAMPLES, values_by_sample
from ablate.results.analysis.samples import Spread, difference_interval, sample_interval, sources_of
from ablate.results.analysis.tuning_budget import count_untuned
from ablate.study import PLACEBO, VARIANT, Study
from ablate.study.sections import Compare

CONSTANTS = (*SIZE_COLUMNS, "wall_seconds")  # of the whole trial: the same for all its seeds, so without an interval
CELL_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(("metric", "column", "variant"), pl.String()),
    "published": pl.Float64(),
    "note": pl.String(),
    **dict.fromkeys(("ours", "low", "high"), pl.Float64()),
    "over": pl.String(),
    "samples": pl.Int64(),
    **dict.fromkeys(("n", "configurations", "planned", "failed", "diverged"), pl.Int64()),
    **dict.fromkeys(("difference", "params", "params_published"), pl.Float64()),
    **dict.fromkeys(("baseline_difference", "baseline_low", "baseline_high"), pl.Float64()),
    **dict.fromkeys(("baseline_samples_low", "baseline_samples_high"), pl.Float64()),
    "compared": pl.Int64(),
    "correlation": pl.Float64(),
    "remark": pl.String(),
    "trials": pl.String(),
    "scaled": pl.Boolean(),
}
SEED_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(("metric", "column", "variant"), pl.String()),
    "seed": pl.Int64(),
    "value": pl.Float64(),
    "scaled": pl.Boolean(),
}


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The trials of a design, one position each, with the last report of every seed.

    `table` is the trials table, `last` the rows of each trial's last report with their `place` and `of_complete`.
    `counted` is what a diverged seed counts as, by metric (`compare.diverged`).
    """

    table: pl.DataFrame
    last: pl.DataFrame
    seeds: tuple[int, ...]
    counted: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def complete(self) -> NDArray[np.bool_]:
        """Whether each trial is complete, [n]."""
        return (self.table["state"] == "COMPLETE").to_numpy()

    @cached_property
    def diverged(self) -> NDArray[np.bool_]:
        """Whether a seed of each trial diverged, [n]."""
        found = np.zeros(self.table.height, dtype=np.bool_)
        found[self.last.filter(pl.col("diverged"))["place"].to_numpy()] = True
        return found

    @cached_property
    def places(self) -> dict[tuple[str, str], dict[str, int]]:
        """The position of every configuration by (data set, variant)."""
        found: dict[tuple[str, str], dict[str, int]] = {}
        for dataset, variant, key, place in self.table.select("dataset", VARIANT, "configuration", "place").iter_rows():
            found.setdefault((dataset, variant), {})[key] = place
        return found

    def of(self, datasets: Iterable[str], variant: str) -> dict[str, dict[str, int]]:
        """Return the positions of a variant's configurations by data set."""
        return {dataset: self.places.get((dataset, variant), {}) for dataset in datasets}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A metric in the last report of every trial and seed, [n, seeds]: `known` where it exists, `lost` if diverged.

    The value of a lost seed is NaN, or what a diverged seed counts as.
    """

    values: Values
    known: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    runs: Runs
    metric: str

    @cached_property
    def samples(self) -> SampleCells:
        """The values of each test sample, as far as they were kept."""
        seeds = {seed: position for position, seed in enumerate(self.runs.seeds)}
        found = values_by_sample(self.runs.last, self.metric, ("place", "seed"))
        return SampleCells(found={(place, seeds[seed]): values for (place, seed), values in found.items()})

    def usable(self, places: Places) -> dict[str, dict[str, int]]:
        """Return the positions that have the metric; exclude data sets that have none."""
        found = {name: {k: p for k, p in own.items() if self.known[p].any()} for name, own in places.items()}
        return {name: own for name, own in found.items() if own}

    def seed_means(self, places: Places) -> Values:
        """Return each seed's mean over data sets of its means over configurations, [seeds]; NaN if it has no value."""
        flat = [place for own in places.values() for place in own.values()]
        if not flat:
            return np.full(self.values.shape[1], math.nan)
        means = [self.values[list(own.values())].mean(axis=0) for own in places.values()]
        return np.asarray(np.mean(means, axis=0))

    def shared_seeds(self, *groups: Places) -> NDArray[np.bool_]:
        """Return which seeds are common to all these trials, [seeds]."""
        flat = [place for places in groups for own in places.values() for place in own.values()]
        return np.asarray(self.known[flat].all(axis=0)) if flat else np.zeros(self.known.shape[1], dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A variant and the baseline by shared seed, [n] each, over the `compared` configurations that both have.

    `lost` says in which seeds the variant diverged. `spread` is that of the difference over seeds and samples, None if
    the samples' values were not kept. Data sets may take the place of the seeds (`pair_by_dataset`): `seeds` names them
    and `between` is their standard deviation.
    """

    own: Values
    baseline: Values
    lost: NDArray[np.bool_]
    seeds: tuple[int, ...] | tuple[str, ...]
    compared: int
    spread: Spread | None
    over: Literal["seeds", "data sets"] = "seeds"
    between: float | None = None

    def for_other_samples(self, metric: str) -> dict[str, float | None]:
        """Return the 95% interval of the difference for other seeds and other samples, as two columns."""
        if self.spread is None:
            return {"samples_low": None, "samples_high": None}
        found = difference_interval(self.spread, share=is_share(metric))
        return {"samples_low": found.low, "samples_high": found.high}

    @property
    def correlation(self) -> float | None:
        """Correlation of the two over seeds; None for fewer than three or without spread."""
        a, b = self.own, self.baseline
        spread = len(a) >= 3 and bool(np.isfinite(a).all() and np.isfinite(b).all()) and a.std() > 0 and b.std() > 0
        return float(np.corrcoef(a, b)[0, 1]) if spread else None


def columns(study: Study) -> dict[str, tuple[str, ...]]:
    """Return the columns of the comparison with the running data sets of each; a column without any is excluded."""
    asked = _compare(study).columns or {label: (label,) for label in study.datasets}
    running = {name: tuple(label for label in labels if label in study.labels) for name, labels in asked.items()}
    return {name: labels for name, labels in running.items() if labels}


def metrics(study: Study, reports: pl.DataFrame) -> tuple[str, ...]:
    """Return the compared metrics: the file's metrics, then those of the test split, `params` and `q`.

    A metric of the test split follows if the file has its validation metric and `reports` hold at least one value of
    it; `params` and `q` follow if figures of them are published.
    """
    compare = _compare(study)
    tested = [on_test(metric) for metric in compare.metrics if metric.startswith("val_")]
    known = [metric for metric in tested if metric in reports.columns and reports[metric].is_not_null().any()]
    sizes = [metric for metric in ("params", "q") if metric in compare.published]
    return tuple(dict.fromkeys([*compare.metrics, *known, *sizes]))


def cells(study: Study, trials: pl.DataFrame, reports: pl.DataFrame) -> pl.DataFrame:
    """Return one row per metric, column and variant, in the file's order (columns: docs/compare.md).

    `trials` and `reports` are tables of `analysis/tables.py`. `ours` is the mean over data sets of the means over
    complete configurations, its interval Student's t over seeds: data sets and configurations are fixed. Null means
    that there is no value. NaN means that a seed diverged; it is not silently excluded from the mean.
    """
    runs = collect(study, trials, reports)
    planned = {label: Counter(str(row[VARIANT]) for row in study.design(label)) for label in study.labels}
    untuned = count_untuned(study, trials, reports)
    rows = []
    for metric in metrics(study, reports):
        measured = None if metric in CONSTANTS else measure(runs, metric)
        for column, datasets in columns(study).items():
            for row in study.rows:
                size = _size(runs, "params", runs.of(datasets, row.name))
                cell = _known_before(study, metric, column, row.name) | {"params": size}
                cell["planned"] = sum(planned[label][row.name] for label in datasets)
                cell |= _counts(runs, datasets, row.name)
                if measured is None:
                    cell["ours"] = _size(runs, metric, runs.of(datasets, row.name))
                else:
                    cell |= _cell(study, runs, measured, metric, datasets, row.name)
                cell["remark"] = "; ".join(_remarks(study, cell, sum(untuned[label, row.name] for label in datasets)))
                rows.append(cell | {"difference": _minus(cell["ours"], cell["published"])})
    return pl.DataFrame(rows, schema=CELL_COLUMNS)


def seed_values(study: Study, trials: pl.DataFrame, reports: pl.DataFrame) -> pl.DataFrame:
    """Return every seed's value of every cell: metric, column, variant, seed, value, scaled."""
    runs = collect(study, trials, reports)
    rows: list[dict[str, Any]] = []
    for metric in (name for name in metrics(study, reports) if name not in CONSTANTS):
        measured = measure(runs, metric)
        for column, datasets in columns(study).items():
            for row in study.rows:
                places = measured.usable(runs.of(datasets, row.name))
                cell = {"metric": metric, "column": column, "variant": row.name, "scaled": study.scale != 1}
                values, there = measured.seed_means(places), measured.shared_seeds(places)
                found = zip(runs.seeds, values.tolist(), there.tolist(), strict=True)
                first = study.seeds_of(row.name)[0]
                rows += [cell | {"seed": first + seed, "value": value} for seed, value, known in found if known]
    return pl.DataFrame(rows, schema=SEED_COLUMNS)


def collect(study: Study, trials: pl.DataFrame, reports: pl.DataFrame) -> Runs:
    """Return the trials of the design: a configuration is the parameters without the variant, on its data set.

    Further seeds are pooled with the first ones, once their trial is complete or has diverged (`pooled`). The values
    that a later trial measured on the test split are part of their last report. The seeds of a placebo are its own, so
    that each is paired with the baseline's at its position.
    """
    trials, reports = pooled(trials, _flag_lost(study, reports))
    names = [name for name in study.space.names() if name != VARIANT and name in trials.columns]
    key = pl.struct(names).struct.json_encode() if names else pl.lit("")
    own = trials.filter(pl.col("stage") == "search", pl.col("source").is_null(), pl.col("dataset").is_in(study.labels))
    table = own.with_columns(key.alias("configuration")).sort("dataset", "trial")
    once = ["dataset", VARIANT, "configuration"]
    table = table.unique(once, keep="last", maintain_order=True).with_row_index("place")
    last = reports.filter(pl.col("epoch") == pl.col("epoch").max().over("dataset", "trial", "seed"))
    last = _with_test(last, trials)
    place = table.select("dataset", "trial", "place", VARIANT, of_complete=pl.col("state") == "COMPLETE")
    last = last.join(place, on=["dataset", "trial"])
    if _compare(study).placebo:
        shifted = pl.when(pl.col(VARIANT) == PLACEBO).then(pl.col("seed") - PLACEBO_SEED_BASE)
        last = last.with_columns(seed=shifted.otherwise("seed"))
    seeds = tuple(last["seed"].unique().sort().to_list())
    return Runs(table=table, last=last, seeds=seeds, counted=_compare(study).diverged)


def _flag_lost(study: Study, reports: pl.DataFrame) -> pl.DataFrame:
    """Return `reports` with a seed as diverged if it ends without a finite value of a metric of `compare.diverged`."""
    lost = [~pl.col(m).is_finite() for m in _compare(study).diverged if m in reports.columns]
    if not lost:
        return reports
    return reports.with_columns(pl.col("diverged") | (pl.col("final") & pl.any_horizontal(lost).fill_null(False)))


def _with_test(last: pl.DataFrame, trials: pl.DataFrame) -> pl.DataFrame:
    """Return the last reports of search trials, with `test_*` of each seed from the trials that evaluate them."""
    names = [name for name in last.columns if name.startswith("test_")]
    if not names:
        return last
    names += [name for name in last.columns if name == SAMPLES]
    evaluating = trials.filter(pl.col("stage") == "confirm").select("dataset", "trial", _network=NETWORK)
    read = last.filter(pl.col("final")).join(evaluating, on=["dataset", "trial"])
    read = read.select("dataset", pl.col("_network").alias("trial"), "seed", *names)
    own = last.filter(pl.col("stage") == "search").drop(names)
    return own.join(read, on=["dataset", "trial", "seed"], how="left", maintain_order="left")


def measure(runs: Runs, metric: str) -> Measured:
    """Return the last reported values of a metric for complete and for diverged trials.

    A seed that diverged has the value that the study file gives it (`compare.diverged`). Without one it is NaN, and so
    is every seed of a trial that was ended because one of them diverged.
    """
    values = np.full((runs.table.height, len(runs.seeds)), math.nan)
    known, gone = np.zeros(values.shape, dtype=np.bool_), np.zeros(values.shape, dtype=np.bool_)
    if metric not in runs.last.columns:
        return Measured(values=values, known=known, lost=gone, runs=runs, metric=metric)
    counted = given_for(runs.counted, metric)
    diverged_at = [] if counted is None else np.flatnonzero(runs.diverged).tolist()
    ended = pl.col("of_complete") | pl.col("place").is_in(diverged_at)
    rows = runs.last.filter(ended, pl.col("final"), pl.col(metric).is_not_null())
    at = rows["place"].to_numpy(), np.searchsorted(np.array(runs.seeds), rows["seed"].to_numpy())
    values[at], known[at] = rows[metric].to_numpy(), True
    values[~np.isfinite(values)] = math.nan
    gone[at] = True  # complete, or at its end: a value that is not finite is the seed's own
    diverged = runs.last.filter(pl.col("diverged"))
    gone[diverged["place"].to_numpy(), np.searchsorted(np.array(runs.seeds), diverged["seed"].to_numpy())] = True
    known[runs.diverged & ~runs.complete] = True
    lost = known & np.isnan(values)
    if counted is not None:
        values[lost & gone] = counted
    return Measured(values=values, known=known, lost=lost, runs=runs, metric=metric)


def _compare(study: Study) -> Compare:
    if study.compare is None:
        raise ValueError(f"study {study.name!r} compares nothing: its file has no `compare`")
    return study.compare


def _known_before(study: Study, metric: str, column: str, variant: str) -> dict[str, Any]:
    """Return the fields of a cell that follow from the study file alone."""
    published = _compare(study).published
    figure = published.get(metric, {}).get(column, {}).get(variant)
    params = published.get("params", {}).get(column, {}).get(variant)
    return {
        "metric": metric,
        "column": column,
        "variant": variant,
        "published": figure and figure.value,
        "note": figure.note if figure else "",
        "params_published": params and params.value,
        "scaled": study.scale != 1,
    }


def _counts(runs: Runs, datasets: Iterable[str], variant: str) -> dict[str, int | str]:
    places = [place for own in runs.of(datasets, variant).values() for place in own.values()]
    failed = int((runs.table["state"].gather(places) == "FAIL").sum())
    complete, diverged = int(runs.complete[places].sum()), int(runs.diverged[places].sum())
    named = " ".join(
        f"{dataset}/{trial}" for dataset, trial in runs.table[places].select("dataset", "trial").iter_rows()
    )
    return {"configurations": complete, "failed": failed, "diverged": diverged, "trials": named}


def _cell(
    study: Study, runs: Runs, measured: Measured, metric: str, datasets: tuple[str, ...], variant: str
) -> dict[str, Any]:
    """Return mean and interval of a cell, and its difference from the baseline over their common configurations."""
    places = measured.usable(runs.of(datasets, variant))
    seeds = measured.shared_seeds(places)
    spread = measured.samples.spread(places, seeds)
    interval = metric_interval(metric, measured.seed_means(places)[seeds].tolist())
    if spread is not None:
        interval = sample_interval(metric, spread)
    found: dict[str, Any] = {"over": sources_of(interval, spread), "samples": spread and spread.count}
    found |= {"n": interval.n, "ours": interval.mean if interval.n else None}
    found |= {"low": _finite(interval.low), "high": _finite(interval.high)}
    flat = [place for own in places.values() for place in own.values()]
    found["configurations"] = int(runs.complete[flat].sum())
    found["diverged"] = int(measured.lost[flat].any(axis=1).sum())
    baseline = _compare(study).baseline
    if variant == baseline:
        return found
    pair = pair_by_seed(runs, measured, places, measured.usable(runs.of(datasets, baseline)))
    apart = t_interval((pair.own - pair.baseline).tolist())
    return found | {
        "baseline_difference": apart.mean if apart.n else None,
        "baseline_low": _finite(apart.low),
        "baseline_high": _finite(apart.high),
        **{f"baseline_{name}": end for name, end in pair.for_other_samples(metric).items()},
        "compared": pair.compared,
        "correlation": pair.correlation,
    }


def pair_by_seed(runs: Runs, measured: Measured, places: Places, others: Places) -> Paired:
    """Return two variants by the seeds that both have, over the configurations that both have."""
    both = {name: own.keys() & others.get(name, {}).keys() for name, own in places.items()}
    first, second = (
        {name: {key: group[name][key] for key in sorted(keys)} for name, keys in both.items() if keys}
        for group in (places, others)
    )
    shared = measured.shared_seeds(first, second)
    flat = [place for own in first.values() for place in own.values()]
    return Paired(
        own=measured.seed_means(first)[shared],
        baseline=measured.seed_means(second)[shared],
        lost=np.asarray(measured.lost[flat].any(axis=0))[shared],
        seeds=tuple(seed for seed, there in zip(runs.seeds, shared, strict=True) if there),
        compared=len(flat),
        spread=measured.samples.spread(first, shared, minus=second),
    )


def _size(runs: Runs, name: str, places: Places) -> float | None:
    """Return the mean over data sets of the means over configurations of a column of the trials table."""
    column = runs.table[name]
    if name not in SIZE_COLUMNS:  # sizes are known as soon as a trial is measured, whatever its final state
        column = runs.table.select(pl.when(pl.col("state") == "COMPLETE").then(pl.col(name)))[name]
    found = [column.gather(list(own.values())).mean() for own in places.values() if own]
    known = [float(value) for value in found if isinstance(value, int | float)]
    return math.fsum(known) / len(known) if known else None


def _remarks(study: Study, cell: Mapping[str, Any], untuned: int) -> Iterator[str]:
    """Yield the remarks that a reader needs about the measured number; `untuned` seeds were not trained."""
    if untuned:
        planned = cell["planned"] * study.replicates
        yield f"not trained on {untuned} of {planned} seeds, for which no tuning run is complete"
    if cell["diverged"] and cell["metric"] not in CONSTANTS:
        counted = given_for(_compare(study).diverged, cell["metric"])
        as_what = "" if counted is None else f", each such seed counted as {counted:g}"
        yield f"diverged in {cell['diverged']} of {cell['planned']} configurations{as_what}"
    if _compare(study).placebo and cell["variant"] == PLACEBO:
        yield f"{_compare(study).baseline} again on other seeds: its differences are noise, without pairing"
    asked = _compare(study).columns.get(cell["column"], ())
    row = next(row for row in study.rows if row.name == cell["variant"])
    own = [label for label in asked if label in study.labels and (row.datasets is None or label in row.datasets)]
    if own and len(own) < len(asked):
        yield f"mean over {len(own)} of {len(asked)} data sets ({', '.join(own)})"
    if cell.get("compared") is not None and cell["compared"] < cell["configurations"]:
        yield f"compared over {cell['compared']} of {cell['planned']} configurations: those that both have complete"


def _minus(ours: float | None, published: float | None) -> float | None:
    return None if ours is None or published is None else ours - published


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
