"""The power part of a plan: what the seeds asked for can show, and how many a margin needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from ablate.base.errors import RequestError
from ablate.core.objectives import on_test, on_validation, quality_objective
from ablate.results.comparison.comparison import columns
from ablate.results.comparison.power import (
    ALPHA,
    QUESTIONS,
    PairedSpread,
    Question,
    paired_spreads,
    pairs_needed,
    smallest_margin,
)
from ablate.results.front.front import metric_at
from ablate.results.statistics.intervals import smallest_effect
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
class SeedsNeeded:
    """What a margin asks of a question at 80% power, if the true difference is 0.

    `widest_sd`: the largest sd(d) at which the seeds asked for are enough. `seeds`: those needed at the earlier study's
    sd(d); None without one, or above 10,000. `hours`: of all arms on that many seeds, one after another, if measured.
    """

    question: Question
    widest_sd: float
    seeds: int | None
    hours: float | None


@dataclass(frozen=True, kw_only=True)
class PlannedPower:
    """Power for one metric, with `seeds` per arm; differences in the metric's own unit, None without a known spread.

    `tests` are those of the metric's family: what is detectable is so at the level of Holm's first step,
    and with `compare.familywise` the seeds that a margin needs too.
    """

    metric: str
    seeds: int
    tests: int
    smallest_in_sd: float
    spread: PairedSpread | None
    smallest: float | None
    margin: float | None
    needed: tuple[SeedsNeeded, ...]

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
        questions = QUESTIONS if margin is not None and seeds > 1 else ()
        planned = PlannedPower(
            metric=metric,
            seeds=seeds,
            tests=tests,
            smallest_in_sd=in_sd,
            spread=spread,
            smallest=None if spread is None or seeds < 2 else in_sd * spread.sd,
            margin=margin,
            needed=tuple(_needed(question, seeds, spread, margin or 0.0, hours, claimed) for question in questions),
        )
        found.append(planned)
    return tuple(found)


def _needed(
    question: Question, seeds: int, spread: PairedSpread | None, margin: float, hours: float | None, tests: int
) -> SeedsNeeded:
    enough = None
    if spread is not None:
        enough = pairs_needed(question, margin / spread.sd, tests) if spread.sd > 0 else 2
    return SeedsNeeded(
        question=question,
        widest_sd=margin / smallest_margin(question, seeds, tests),
        seeds=enough,
        hours=None if hours is None or enough is None else hours * enough / seeds,
    )


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
