"""The power part of a plan: what the seeds asked for can show, and how many a margin needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from ablate.base.errors import RequestError
from ablate.core.objectives import on_test, on_validation, quality_objective
from ablate.results.comparison.design import columns
from ablate.results.comparison.power import ALPHA, PairedSpread, paired_spreads
from ablate.results.front.front import metric_at
from ablate.results.statistics.intervals import seeds_needed, smallest_effect
from ablate.results.trials.results import Results
from ablate.studies.locations import Locations
from ablate.studies.stored import read_study
from ablate.study import Study

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The paired spreads of an earlier study, by metric."""

    name: str
    spreads: Mapping[str, PairedSpread]


@dataclass(frozen=True, kw_only=True)
class PlannedPower:
    """What `seeds` per arm can show of one metric with 80% power, in its unit; None without a known spread.

    `smallest` is the smallest difference that is found, also in standard deviations of the paired differences; it is at
    the level of Holm's first step over the `tests` of the metric. `needed` seeds find an equal arm non-inferior at the
    `margin`, None above 1,000; `hours` is the time to train every arm on that many seeds, one after another, None if no
    trial was timed.
    """

    metric: str
    seeds: int
    tests: int
    smallest_in_sd: float
    spread: PairedSpread | None
    smallest: float | None
    margin: float | None
    needed: int | None
    hours: float | None

    def content(self) -> dict[str, Any]:
        """Return plain values."""
        found = asdict(self) | {"spread": None}
        if self.spread is not None:
            found["spread"] = {**asdict(self.spread), "upper": self.spread.upper}
        return found


def read_earlier(name: str, study: Study, locations: Locations) -> Earlier:
    """Return the paired spreads of study `name`; raise RequestError if it has none in a metric of `study`."""
    stored = read_study(name, locations)
    spreads = paired_spreads(Results.of(stored.study, stored.snapshot))
    asked = _metrics(study)
    if asked and all(_of_metric(spreads, metric) is None for metric in asked):
        known = ", ".join(spreads) or "none in any metric"
        raise RequestError(
            f"--from {name}: it has no two arms with two seeds in common that report {' or '.join(asked)}. It has:"
            f" {known}."
        )
    return Earlier(name=name, spreads=spreads)


def plan_power(study: Study, earlier: Earlier | None, hours: float | None) -> tuple[PlannedPower, ...]:
    """Return the power of a comparison, or of a search's confirmation, by metric; `hours` are of all trials."""
    seeds = _seeds(study)
    asked = study.compare or study.confirm
    margins: Mapping[str, float] = asked.margin if asked is not None else {}
    spreads = earlier.spreads if earlier is not None else {}
    tests = _tests(study)
    claimed = max(tests, 1) if study.compare is not None and study.compare.familywise else 1
    in_sd, found = smallest_effect(seeds, level=1 - ALPHA / max(tests, 1)), []
    for metric in _metrics(study):
        spread, margin = _of_metric(spreads, metric), _of_metric(margins, metric)
        needed = None
        if spread is not None and margin is not None:
            needed = seeds_needed(margin / spread.sd, level=1 - 2 * ALPHA / claimed) if spread.sd > 0 else 2
        planned = PlannedPower(
            metric=metric,
            seeds=seeds,
            tests=tests,
            smallest_in_sd=in_sd,
            spread=spread,
            smallest=None if spread is None or seeds < 2 else in_sd * spread.sd,
            margin=margin,
            needed=needed,
            hours=None if hours is None or needed is None else hours * needed / seeds,
        )
        found.append(planned)
    return tuple(found)


def _seeds(study: Study) -> int:
    if study.compare is not None:
        return study.replicates
    return study.confirm.replicates if study.confirm is not None else 0


def _tests(study: Study) -> int:
    """Return how many tests of a metric Holm's correction is over; 1 for a search, where no row is known yet."""
    if study.compare is None:
        return 1
    own = [row for row in study.rows if row.name != study.compare.baseline and not study.is_placebo(row.name)]
    cells = [(label, row) for label in columns(study).values() for row in own]
    return sum(any(row.datasets is None or each in row.datasets for each in labels) for labels, row in cells)


def _metrics(study: Study) -> tuple[str, ...]:
    """Return the compared metrics, or the one in which confirmed networks are compared; a search alone has none."""
    if study.compare is not None:
        return tuple(study.compare.metrics)
    if study.confirm is None:
        return ()
    return (metric_at(quality_objective(study.objectives).metric, "confirm"),)


def _of_metric(values: Mapping[str, T], metric: str) -> T | None:
    """Return the value of a metric, or of the same metric on the other split."""
    twin = on_test(metric) if metric.startswith("val_") else on_validation(metric)
    return values.get(metric, values.get(twin))
