"""Plans a study before it runs: number of trials, size of every architecture, hours."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from ablate.base.waiting import LATE, after
from ablate.core.config import DatasetFacts, NoSize, Size, Timed, TrainableSettings
from ablate.core.registry import TRAINABLES
from ablate.core.trainable import PlannedTrials, Trainable, load_trainable
from ablate.driver.cautions import cautions
from ablate.driver.data_checks import refuse_unknown_metrics
from ablate.driver.own_sizes import (
    ADD_SIZE,
    OwnSizes,
    inside,
    measuring,
    require_told,
    thinned,
    told_sizes,
    unsized_notes,
)
from ablate.driver.planned_power import Earlier, PlannedPower, plan_power
from ablate.studies.stored import knowing
from ablate.study import MOST_TRIALS, VARIANT, Study
from ablate.study.checks import architectures
from ablate.study.space import Space
from ablate.study.tuning_seeds import tuning_seeds
from ablate.tuning.report_rules import lacking_metrics
from ablate.tuning.sampling.twins import TwinSizes
from ablate.tuning.state.planned import ENUMERATED, planned_trials, tuning_trials

LISTED = 60  # at most this many architectures are listed, evenly chosen from a larger space


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """One architecture on one data set; `q` is K*M/P (paper A, Eq. 12), or None.

    Of a function `size` is what its `size(config)` tells, or the parameters that running it up to its loop tells.
    """

    variant: str
    dataset: str
    settings: TrainableSettings
    size: Size
    q: float | None

    def columns(self) -> dict[str, Any]:
        """Return the row as `ablate plan` prints it."""
        return {
            "variant": self.variant,
            "dataset": self.dataset,
            **self.settings.summary(),
            **self.size,
            **({} if self.q is None else {"q": round(self.q, 2)}),
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Trials, sizes, power and, where measured, hours of one study; `earlier` gives the power its spread over seeds.

    `fault` says why a trial that was timed would fail.
    """

    study: Study
    rows: tuple[PlannedRow, ...]
    architectures: dict[str, int | None]
    trials: dict[str, int]
    confirmations: int
    seconds_per_trial: dict[str, float] | None
    cautions: tuple[str, ...]
    fault: str = ""
    earlier: Earlier | None = None
    tuning: dict[str, int] = field(default_factory=dict)
    seconds_per_tuning_trial: dict[str, float] | None = None

    @property
    def power(self) -> tuple[PlannedPower, ...]:
        """What the seeds can show, by metric; the hours are those of a comparison's rows, without their tuning."""
        return plan_power(self.study, self.earlier, self.row_hours() if self.study.compare is not None else None)

    def table(self) -> pl.DataFrame:
        """Return one row per listed architecture and data set."""
        rows = [row.columns() for row in self.rows]
        longest = max(rows, key=len, default={})
        return pl.DataFrame([{name: row.get(name) for name in longest} for row in rows])

    def hours(self) -> float | None:
        """Return the hours of all search and tuning trials at full length, run sequentially.

        Early stopping only shortens them.
        """
        rows, tuning = self.row_hours(), self.tuning_hours()
        return None if rows is None else rows + (tuning or 0.0)

    def money(self) -> float | None:
        """Return the price of `hours` on GPUs as fast as this machine, None without `budget.price`."""
        hours, price = self.hours(), self.study.budget.price
        return None if hours is None or price is None else hours * price

    def row_hours(self) -> float | None:
        """Return the hours of all search trials, or of all rows of a comparison, at full length."""
        return _hours(self.trials, self.seconds_per_trial)

    def tuning_hours(self) -> float | None:
        """Return the hours of all tuning trials, None if they are unknown or there are none."""
        return _hours(self.tuning, self.seconds_per_tuning_trial)

    @property
    def seeds_of_tuning(self) -> int:
        """Seeds of a tuning trial, 0 without `tune`."""
        return tuning_seeds(self.study) if self.study.tune is not None else 0

    def your_settings(self) -> dict[str, dict[str, Any]]:
        """Return the settings of trial 0 of each data set where `start` or defaults of ranges give it."""
        if self.study.compare is not None:
            return {}
        return {label: found[0] for label in self.study.labels if (found := self.study.start_of(label))}

    def _design(self) -> dict[str, Any]:
        """Return the networks of a comparison of parts, and its factors."""
        study = self.study
        return {
            "networks": [row.name for row in study.rows],
            "factors": {factor.name: [level or "removed" for level in factor.levels] for factor in study.factors},
        }

    def as_values(self) -> dict[str, Any]:
        """Return the plan as plain values (docs/json.md)."""
        return {
            "study": self.study.name,
            "trials": {name: count if count < MOST_TRIALS else None for name, count in self.trials.items()},
            "tuning_trials": self.tuning,
            "tuning_runs": {label: count * self.seeds_of_tuning for label, count in self.tuning.items()},
            "your_settings": self.your_settings(),
            "architectures": self.architectures,
            "confirmations_at_most": self.confirmations,
            "seconds_per_trial": self.seconds_per_trial,
            "seconds_per_tuning_trial": self.seconds_per_tuning_trial,
            "hours_one_after_another": self.hours(),
            "money_one_after_another": self.money(),
            "gpu_hours_at_most": self.study.budget.most_hours,
            "power": [part.content() for part in self.power],
            "cautions": list(self.cautions),
            "fault": self.fault or None,
            **({"design": self._design()} if self.study.parts else {}),
            "rows": [row.columns() for row in self.rows],
        }


def make_plan(
    study: Study, *, data_dir: Path | None, measure_time: bool, earlier: Earlier | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Plan:  # fmt: skip
    """Size every architecture of `study`, and optionally time a trial: see `Trainable.estimate_seconds`.

    `tell` is told what takes long. Raises RequestError if settings do not fit the trainable, DataError if
    `image_folder` has no folder to scan.
    """
    trainable = load_trainable(study.trainable)
    facts = {label: trainable.find_facts(study.datasets[label], data_dir) for label in study.labels}
    for label in study.labels:
        trainable.check(study.given_for(label), confirms=study.opens_test or study.closes_on_test)
        refuse_unknown_metrics(study, label, trainable.metrics(study.datasets[label], facts[label]))
    study = knowing(study, told_sizes(study, trainable, facts))
    require_told(study)
    with after(LATE, lambda: tell("Sizing the architectures …")):
        sizing = {label: _Sizing.of(study, label, facts[label], trainable) for label in study.labels}
        by_dataset = {label: list(sizing[label].rows()) for label in study.labels}
    rows = [row for label in study.labels for row in by_dataset[label]]
    timed, of_tuning = dict[str, Timed](), None
    if measure_time:
        with after(LATE, lambda: tell("Timing a trial …")):
            timed = _timed(study, by_dataset, facts, data_dir, study.replicates)
            if study.tune is not None:
                of_tuning = _seconds(_timed(study, by_dataset, facts, data_dir, tuning_seeds(study)))
    return Plan(
        study=study,
        rows=tuple(rows),
        architectures={label: sizing[label].architectures() for label in study.labels},
        trials=planned_trials(study),
        confirmations=study.confirm.replicates if study.confirm else 0,
        seconds_per_trial=_seconds(timed),
        cautions=(
            *cautions(study, facts, data_dir),
            *unsized_notes(study, trainable, facts, [row.settings for row in rows]),
            *(note for label in study.labels for note in sizing[label].notes()),
            *dict.fromkeys(study.said_of(label, each.note) for label, each in timed.items() if each.note),
        ),
        fault=next(
            (study.said_of(label, found) for label, each in timed.items() if (found := _fault(study, each))), ""
        ),
        earlier=earlier,
        tuning=tuning_trials(study),
        seconds_per_tuning_trial=of_tuning,
    )


def _fault(study: Study, timed: Timed) -> str:
    lacking = "" if timed.reported is None else lacking_metrics(study, timed.reported, study.counted)
    return timed.fault or (lacking and f"a trial would fail: {lacking}")


def _hours(trials: Mapping[str, int], seconds: Mapping[str, float] | None) -> float | None:
    if seconds is None or max(trials.values(), default=0) >= MOST_TRIALS:
        return None
    return sum(trials[name] * each for name, each in seconds.items()) / 3600


@dataclass(frozen=True, kw_only=True)
class _Sizing:
    """What sizes the networks of one data set; `own` runs a user's function whose `size` tells nothing."""

    study: Study
    dataset: str
    facts: DatasetFacts
    trainable: Trainable
    twins: TwinSizes
    axes: Space
    own: OwnSizes | None

    @staticmethod
    def of(study: Study, dataset: str, facts: DatasetFacts, trainable: Trainable) -> _Sizing:
        twins = TwinSizes(study=study, dataset=dataset, measure=measuring(study, trainable), facts=lambda: facts)
        own, axes = None, architectures(study, study.space_for(dataset))
        if study.trainable not in TRAINABLES.names():
            own = OwnSizes(twins=twins, trainable=trainable)
            axes = axes if study.counted else own.architectures(axes)
        return _Sizing(study=study, dataset=dataset, facts=facts, trainable=trainable, twins=twins, axes=axes, own=own)

    def rows(self) -> Iterator[PlannedRow]:
        """Yield a row for each architecture that the plan lists."""
        study, task = self.study, self.study.task(self.dataset)
        is_search = study.compare is None
        listed = list(itertools.islice(_thin(self.axes).grid(), ENUMERATED)) if is_search else self._design()
        listed = listed[:: -(-len(listed) // LISTED)]
        space, whole = study.space_for(self.dataset), study.trainable in TRAINABLES.names()
        settings = [self.twins.settings_of(values if whole else inside(space, values)) for values in listed]
        sizes = measuring(study, self.trainable)(settings, self.facts)
        for values, each, size in zip(listed, settings, sizes, strict=True):
            unsized = isinstance(size, NoSize)
            size = {} if isinstance(size, NoSize) else size
            params = None if size or unsized or self.own is None else self.own.params(values)
            yield PlannedRow(
                variant=_row_name(values),
                dataset=self.dataset,
                settings=each,
                size=size if params is None else {"params": params},
                q=self.facts.overdetermination(size, task, study.protocol) if size else None,
            )

    def architectures(self) -> int | None:
        """Return the number of architectures, or None if there are too many to count or their sizes are unknown."""
        own = None if self.study.counted else self.own
        unknown = own is not None and (own.stopped or not (own.knows_sizes or self.study.rows))
        return None if unknown else self.axes.cardinality()

    def notes(self) -> tuple[str, ...]:
        """Return why sizes are unknown, a line each."""
        if self.own is None:
            return ()
        study, builds = self.study, self.own.knows_sizes or self.own.notes
        asks = builds and not study.counted and study.compare is None and study.campaign is None
        add = [ADD_SIZE.format(name=study.trainable)] if asks else []
        return tuple(study.said_of(self.dataset, note) for note in (*self.own.notes, *add))

    def _design(self) -> list[dict[str, Any]]:
        """Return each architecture of a comparison once, with all variants of one configuration together."""
        found = {}
        names = self.axes.names()
        for parameters in self.study.design(self.dataset):
            values = {name: value for name, value in parameters.items() if name in names}
            found[json.dumps(values)] = values
        return list(found.values())


def _thin(space: Space) -> Space:
    """Return `space`, reduced to lowest, middle and highest value of each numeric range if it is too large to list."""
    count = space.cardinality()
    if count is not None and count <= LISTED:
        return space
    return Space(ranges={name: thinned(spec) for name, spec in space.ranges.items()})


def _row_name(values: dict[str, Any]) -> str:
    axes = [f"{name.partition('.')[2]}={value}" for name, value in values.items() if name != VARIANT]
    row = [str(values[VARIANT])] if VARIANT in values else []
    return " ".join(row + axes) or "default"


def _timed(
    study: Study,
    rows: Mapping[str, Sequence[PlannedRow]],
    facts: Mapping[str, DatasetFacts],
    data_dir: Path | None,
    replicates: int,
) -> dict[str, Timed]:
    """Return the mean time of a trial on `replicates` seeds by data set."""
    found = {}
    for label, listed in rows.items():
        planned = PlannedTrials(
            dataset=label,
            task=study.task(label),
            facts=facts[label],
            data_dir=data_dir,
            replicates=replicates,
            protocol=study.protocol,
        )
        sized = [(row.settings, row.size) for row in listed]
        found[label] = load_trainable(study.trainable).estimate_seconds(sized, planned)
    return found


def _seconds(timed: Mapping[str, Timed]) -> dict[str, float] | None:
    """Return the seconds by data set, None if those of one are unknown."""
    found = {label: each.seconds for label, each in timed.items() if each.seconds is not None}
    return found if found and len(found) == len(timed) else None


def limit_rows(plan: Plan, rows: int) -> Plan:
    """Return `plan` with at most `rows` rows per data set, evenly chosen, for a terminal."""
    kept: list[PlannedRow] = []
    for dataset in plan.study.labels:
        of_set = [row for row in plan.rows if row.dataset == dataset]
        stride = -(-len(of_set) // rows)
        kept.extend(of_set[::stride])
    return replace(plan, rows=tuple(kept))
