"""The trials of a designed comparison by position, a metric of every trial and seed, and pairs of variants by seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ablate.core.objectives import given_for, is_share
from ablate.core.trial import PLACEBO_SEED_BASE
from ablate.results.statistics.crossed import Spread, difference_interval, spread
from ablate.results.trials.pooling import NETWORK, alike_over_seeds, pooled
from ablate.results.trials.results import Results, once
from ablate.results.trials.sample_tables import SAMPLES, values_by_sample
from ablate.results.trials.tables import REPORT_COLUMNS
from ablate.study import PLACEBO, VARIANT

Values = NDArray[np.float64]
Places = Mapping[str, Mapping[str, int]]  # data set, configuration -> place in Runs.table
EQUAL = 1e-12  # values whose spread is below this share of them are equal, but for rounding


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The trials of a design, one position each, with the report of every seed that counts.

    `table` is the trials table, `last` the rows of each trial's report that counts with their `place` and
    `of_complete`; `final` and `diverged` say what a seed's training ended with. `counted` is what a diverged seed
    counts as, by metric (`compare.diverged`).
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
    def alike(self) -> set[int]:
        """The positions of the trials that have equal numbers in all their seeds."""
        return alike_over_seeds(self.last.filter("of_complete"), "place")

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
    """A metric of every trial and seed, [n, seeds]: `known` where it exists, `lost` if diverged.

    The value of a lost seed is NaN, or what a diverged seed counts as.
    """

    values: Values
    known: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    runs: Runs
    metric: str

    @cached_property
    def samples(self) -> dict[tuple[int, int], tuple[str, Values]]:
        """The digest of the test samples and the value of each, [samples], by place and position of the seed."""
        seeds = {seed: position for position, seed in enumerate(self.runs.seeds)}
        found = values_by_sample(self.runs.last, self.metric, ("place", "seed"))
        return {(place, seeds[seed]): values for (place, seed), values in found.items()}

    def spread(self, places: Places, seeds: NDArray[np.bool_], *, minus: Places | None = None) -> Spread | None:
        """Return the spread over samples of a cell over these seeds, [seeds], or of its difference from another one.

        A cell is the mean over data sets of means over configurations. None if a trial lacks values, or if two trials
        of a data set were read on other samples.
        """
        parts = []
        for dataset, own in places.items():
            groups = [list(own.values())] + ([] if minus is None else [list(minus[dataset].values())])
            means = [self._by_sample(group, np.flatnonzero(seeds).tolist()) for group in groups]
            if any(mean is None for mean in means) or len({mean[0] for mean in means if mean is not None}) > 1:
                return None
            values = [mean[1] for mean in means if mean is not None]
            parts.append(values[0] if minus is None else values[0] - values[1])
        return spread(parts)

    def _by_sample(self, places: Sequence[int], seeds: Sequence[int]) -> tuple[str, Values] | None:
        """Return the digest of the samples and the mean over trials, [seeds, samples]."""
        known = [cell for place in places for seed in seeds if (cell := self.samples.get((place, seed))) is not None]
        if not known or len(known) < len(places) * len(seeds) or len({(split, len(v)) for split, v in known}) > 1:
            return None
        stacked = np.array([values for _, values in known], dtype=np.float64)
        return known[0][0], stacked.reshape(len(places), len(seeds), -1).mean(axis=0)

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

    def is_one_run(self, places: Sequence[int], seeds: NDArray[np.bool_]) -> bool:
        """Return whether each trial has equal numbers in all these seeds; shares of two seeds, or of 0 and 1, may."""
        values, share = self.values[places][:, seeds], is_share(self.metric)
        if values.shape[1] < 2 + share or (share and np.isin(values, (0.0, 1.0)).all()):
            return False
        return bool((np.ptp(values, axis=1) <= EQUAL * np.abs(values).max()).all())  # never of NaN

    def shared_seeds(self, *groups: Places) -> NDArray[np.bool_]:
        """Return which seeds are common to all these trials, [seeds]."""
        flat = [place for places in groups for own in places.values() for place in own.values()]
        return np.asarray(self.known[flat].all(axis=0)) if flat else np.zeros(self.known.shape[1], dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The two sides of a contrast by shared seed, [n] each, over the `compared` configurations that all its rows have.

    `lost` says in which seeds a row of the first side diverged. `spread` is that of the difference over seeds and
    samples, None if the samples' values were not kept. `alike`: all have equal numbers in all seeds, of this metric or
    of every other one, so there is one run.
    """

    own: Values
    baseline: Values
    lost: NDArray[np.bool_]
    seeds: tuple[int, ...]
    compared: int
    spread: Spread | None
    alike: bool = False

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


@once
def collect(results: Results) -> Runs:
    """Return the trials of the design: a configuration is the parameters without the variant, on its data set.

    Further seeds are pooled with the first ones, once their trial is complete or has diverged (`pooled`). The values
    that a later trial measured on the test split are part of their report. The seeds of a placebo are its own, so
    that each is paired with the baseline's at its position.
    """
    study, trials, reports = results.study, results.trials, results.reports
    ended = {name: pl.col(name).any().over("dataset", "trial", "replicate") for name in ("final", "diverged")}
    lost = [~pl.col(m).is_finite() for m in study.compared.diverged if m in reports.columns]
    if lost:  # a seed without a finite value of a metric of `compare.diverged` at its end has diverged
        lacks = pl.col("counts") & ended["final"] & pl.any_horizontal(lost).fill_null(False)
        reports = reports.with_columns(pl.col("diverged") | lacks)
    trials, reports = pooled(trials, reports)
    reports = reports.with_columns(**ended, _later=ended["diverged"] & ~pl.col("diverged"))
    names = [name for name in study.space.names() if name != VARIANT and name in trials.columns]
    key = pl.struct(names).struct.json_encode() if names else pl.lit("")
    own = trials.filter(pl.col("stage") == "search", pl.col("source").is_null(), pl.col("dataset").is_in(study.labels))
    table = own.with_columns(key.alias("configuration")).sort("dataset", "trial")
    once = ["dataset", VARIANT, "configuration"]
    table = table.unique(once, keep="last", maintain_order=True).with_row_index("place")
    last = _with_test(reports.filter("counts"), trials)
    metrics = [name for name in last.columns if name not in REPORT_COLUMNS and name != "_later"]
    last = last.with_columns(pl.when("_later").then(math.nan).otherwise(pl.col(m)).alias(m) for m in metrics)
    place = table.select("dataset", "trial", "place", VARIANT, of_complete=pl.col("state") == "COMPLETE")
    last = last.join(place, on=["dataset", "trial"])
    if study.compared.placebo:
        shifted = pl.when(pl.col(VARIANT) == PLACEBO).then(pl.col("seed") - PLACEBO_SEED_BASE)
        last = last.with_columns(seed=shifted.otherwise("seed"))
    seeds = tuple(last["seed"].unique().sort().to_list())
    return Runs(table=table, last=last, seeds=seeds, counted=study.compared.diverged)


def _with_test(last: pl.DataFrame, trials: pl.DataFrame) -> pl.DataFrame:
    """Return the reports of search trials, with `test_*` of each seed from the trials that evaluate them."""
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
    """Return the values of a metric that count, for complete and for diverged trials.

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


def pair(runs: Runs, measured: Measured, plus: Sequence[Places], minus: Sequence[Places]) -> Paired:
    """Return the sums of two groups of rows by the seeds that all rows have, over the configurations that all have."""
    groups = [*plus, *minus]
    shared = {name: sorted(set.intersection(*({*each.get(name, {})} for each in groups))) for name in groups[0]}
    kept = [{name: {key: each[name][key] for key in keys} for name, keys in shared.items() if keys} for each in groups]
    seeds = measured.shared_seeds(*kept)
    own, others = kept[: len(plus)], kept[len(plus) :]
    flat = [[place for places in each.values() for place in places.values()] for each in kept]
    places = list(itertools.chain.from_iterable(flat))
    return Paired(
        own=_summed(measured, own)[seeds],
        baseline=_summed(measured, others)[seeds],
        lost=np.asarray(measured.lost[list(itertools.chain.from_iterable(flat[: len(plus)]))].any(axis=0))[seeds],
        seeds=tuple(seed for seed, there in zip(runs.seeds, seeds, strict=True) if there),
        compared=len(flat[0]),
        spread=measured.spread(own[0], seeds, minus=others[0]) if len(groups) == 2 else None,
        alike=bool(places) and (runs.alike.issuperset(places) or measured.is_one_run(places, seeds)),
    )


def _summed(measured: Measured, groups: Sequence[Places]) -> Values:
    return np.asarray(np.sum([measured.seed_means(places) for places in groups], axis=0))
