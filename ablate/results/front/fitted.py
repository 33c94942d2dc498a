"""The fit of error against size on each data set: the networks that it takes, and its row of fits.csv."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from ablate.base.plain_text import finite
from ablate.core.objectives import SIZE_METRICS, is_higher_better, is_share, quality_objective
from ablate.results.front.curve import Array, Curve, Network, ends, fit_networks
from ablate.results.front.front import confirmed, front, front_stage, metric_at, size_metric
from ablate.results.front.tables import counted_rows, samples, seed_values
from ablate.results.trials.frozen import confirmations
from ablate.results.trials.results import Results, once
from ablate.results.trials.sample_tables import values_by_sample
from ablate.study import Study

FEWEST = 4  # sizes for a curve
OPEN, LIKELY, STEEPER, SCATTERED = 0.2, 0.8, 1 / 3, 0.5  # probabilities from which something is said
WIDE = 0.08  # scatter that is said as a warning
BELOW, ABOVE = 2.0, 4.0  # how far below the smallest and above the largest size a curve is used
Samples = Mapping[tuple[int, int], tuple[str, Array]]  # (network, seed) -> digest of the split, values


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The fit of one data set: `metric` against `size`. Without a curve, `reason` says why.

    `chosen`: the networks are a front that was chosen by the same numbers. `count` is the number of their samples.
    """

    dataset: str
    metric: str
    size: str
    networks: tuple[Network, ...] = ()
    count: int | None = None
    chosen: bool = False
    barred: str = ""

    @property
    def reason(self) -> str:
        """Why there is no curve; empty if there is one."""
        sizes = sorted({each.size for each in self.networks})
        if self.barred or len(sizes) < FEWEST:
            return self.barred or f"under {FEWEST} sizes"
        return "" if sizes[-1] >= sizes[0] * math.sqrt(10) else "under half a decade"

    @cached_property
    def curve(self) -> Curve:
        """The curve, if there is no `reason` against it."""
        assert not self.reason
        return fit_networks(self.networks, self.count)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What the curve is to be read with: `steeper`, `scatter`."""
        if self.reason:
            return ()
        found = {
            "steeper": (self.curve.floor < 0).mean() > STEEPER,
            "scatter": (self.curve.scatter >= WIDE).mean() > SCATTERED,
        }
        return tuple(name for name, is_said in found.items() if is_said)

    @property
    def reach(self) -> tuple[float, float]:
        """The sizes between which the curve is used: those of the networks, unless it can be extrapolated."""
        beyond = (1.0, 1.0) if "steeper" in self.warnings else (BELOW, ABOVE)
        return self.curve.smallest / beyond[0], self.curve.largest * beyond[1]

    @property
    def noun(self) -> str:
        """What has the size, in words."""
        return "network" if self.size in SIZE_METRICS else "configuration"

    @property
    def seeds(self) -> tuple[int, int]:
        """The fewest and the most seeds of a network."""
        counts = [len(each.errors) for each in self.networks] or [0]
        return min(counts), max(counts)

    @property
    def over(self) -> tuple[str, ...]:
        """What varies in the intervals, beside the networks: `seeds`, `samples`."""
        known = {"seeds": self.seeds[1] > 1, "samples": all(each.samples is not None for each in self.networks)}
        return tuple(name for name, varies in known.items() if varies)

    @property
    def times(self) -> int:
        """How many times the size the slope is told for: 10, or 2 if the sizes span less than a decade."""
        return 10 if self.curve.largest >= 10 * self.curve.smallest else 2

    def interval(self, errors: tuple[float, float, float]) -> tuple[float, float, float]:
        """Return the metric at an error and at the ends of its interval, the lower end first."""
        middle, low, high = (max(1 - each, 0.0) if is_share(self.metric) else each for each in errors)
        return middle, min(low, high), max(low, high)

    def quality_ends(self, size: float) -> tuple[float, float, float]:
        """Return the metric of a network of a size with its 95% interval."""
        middle = ends(self.curve.error(size))[0]
        _, low, high = ends(self.curve.error(size, network=True))
        return self.interval((middle, low, high))


@once
def search_fits(results: Results) -> dict[str, Fit]:
    """Return the fit of every data set of a search: of all confirmed networks, or of the front if none is confirmed."""
    return {dataset: _of(results.pooled, results, dataset) for dataset in results.study.labels}


def _of(pooled: Results, results: Results, dataset: str) -> Fit:
    study, trials = results.study, pooled.trials.filter(pl.col("dataset") == dataset)
    stage, size = front_stage(trials, dataset), size_metric(study.objectives)
    quality = quality_objective(study.objectives).metric
    metric = metric_at(quality, stage)
    if confirmations(results, dataset).is_open:
        return Fit(dataset=dataset, metric=metric, size=size, barred="the confirmation is not finished")
    rows = confirmed(trials) if stage == "confirm" else front(trials, study.objectives, constraints=study.constraints)
    last = counted_rows(pooled.reports)
    listed = [(row["trial"], row.get(size), seed_values(last, row, metric)) for row in rows.iter_rows(named=True)]
    own = last.filter(pl.col("dataset") == dataset)
    counts = {samples(row) for row in rows.iter_rows(named=True)}
    count = counts.pop() if len(counts) == 1 else None
    fit = Fit(dataset=dataset, metric=metric, size=size, count=count, chosen=stage == "search")
    return fit_of(study, fit, listed, values_by_sample(own, metric, ("trial", "seed")))


def fit_of(
    study: Study,
    fit: Fit,
    listed: Sequence[tuple[int, float | None, Sequence[float]]],
    found: Samples,
) -> Fit:
    """Return `fit` with the networks `listed`: number, size and values by seed; `found` are their values by sample.

    Networks without a size, or with a seed without a finite value, are left out.
    """
    usable = {
        number: (float(size), np.array(values))
        for number, size, values in listed
        if size and values and np.isfinite(values).all()
    }
    barred = ""
    if not is_share(fit.metric) and is_higher_better(fit.metric, study.objectives) is not False:
        barred = "the metric is neither a share nor minimized"
    elif any((values < 0).any() for _, values in usable.values()):
        barred = "a value is below 0"
    elif not fit.count and usable and not any(_error(fit.metric, values).any() for _, values in usable.values()):
        barred = "no network has an error, and the number of samples is not known"
    by_sample = dict(_by_sample(found, {number: len(values) for number, (_, values) in usable.items()}))
    networks = tuple(
        Network(
            size=size,
            errors=_error(fit.metric, values),
            samples=_error(fit.metric, by_sample[number]) if number in by_sample else None,
        )
        for number, (size, values) in usable.items()
    )
    return replace(fit, networks=networks, barred=barred)


def _error(metric: str, values: Array) -> Array:
    return np.maximum(1 - values, 0.0) if is_share(metric) else values


def _by_sample(found: Samples, seeds: Mapping[int, int]) -> Iterator[tuple[int, Array]]:
    """Yield the mean over seeds of each network's values by sample, if all networks have them for the same samples."""
    own: dict[int, list[Array]] = {}
    splits = set()
    for (number, _), (split, values) in found.items():
        if number in seeds:
            own.setdefault(number, []).append(values)
            splits.add((split, len(values)))
    if len(splits) == 1 and next(iter(splits))[1] > 1 and {n: len(each) for n, each in own.items()} == seeds:
        yield from ((number, np.mean(each, axis=0)) for number, each in own.items())


def fits_table(fits: Collection[Fit]) -> pl.DataFrame:
    """Return one row per data set: the slope, the floor and the scatter with their intervals, or why there is none."""
    texts, counts = ("dataset", "metric", "size", "over", "warning", "reason"), ("sizes", "networks", "seeds", "times")
    kinds = dict.fromkeys(texts, pl.String()) | dict.fromkeys(counts, pl.Int64())
    schema = {name: kinds.get(name, pl.Float64()) for name in _COLUMNS}
    return pl.DataFrame([finite(dict.fromkeys(_COLUMNS) | _row(fit)) for fit in fits], schema=schema)


def _row(fit: Fit) -> dict[str, Any]:
    sizes = [each.size for each in fit.networks]
    row: dict[str, Any] = {"dataset": fit.dataset, "metric": fit.metric, "size": fit.size, "reason": fit.reason}
    row |= {"sizes": len(set(sizes)), "networks": len(sizes), "seeds": fit.seeds[0]}
    row |= {"smallest": min(sizes, default=None), "largest": max(sizes, default=None)}
    if fit.reason:
        return row
    curve = fit.curve
    within, floors = (curve.smallest, curve.largest), curve.floor > 0
    found = {
        "factor": ends(curve.change(*within, fit.times)),
        "exponent": ends(curve.slope(*within)),
        "floor": ends((curve.floor * np.exp(curve.level))[floors]) if floors.any() else (None,) * 3,
    }
    row |= {f"{name}{end}": v for name, each in found.items() for end, v in zip(_ENDS, each, strict=True)}
    row["scatter"], _, row["scatter_high"] = ends(curve.scatter)
    row |= {"p_floor": float(floors.mean()), "p_steeper": float((curve.floor < 0).mean())}
    return row | {"over": " and ".join(fit.over), "times": fit.times, "warning": ", ".join(fit.warnings)}


_ENDS = ("", "_low", "_high")
_COLUMNS = (
    *("dataset", "metric", "size", "sizes", "networks", "seeds", "smallest", "largest", "over", "times"),
    *("factor", "factor_low", "factor_high", "exponent", "exponent_low", "exponent_high"),
    *("p_floor", "floor", "floor_low", "floor_high", "p_steeper", "scatter", "scatter_high", "warning", "reason"),
)
