"""The study of a study file: data sets, axes, objectives, budget; validated and frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from typing import Any, ClassVar, Self

from pydantic import ModelWrapValidatorHandler, PrivateAttr, model_validator

from ablate.core.config import TaskConfig, TrainableSettings
from ablate.core.objectives import SIZE_METRICS, is_higher_better, on_test, on_validation
from ablate.core.registry import COMMAND_PREFIX, FAMILY, TRAINABLES, trainable_settings
from ablate.core.trial import PLACEBO_SEED_BASE, BestReport
from ablate.study.comparison_sections import Compare, Level, Part, Tune, Variant
from ablate.study.design import PLACEBO, REMOVED, TWIN, Arm, Factor, arm_name, arms, merge_settings, without
from ablate.study.keys import OWN_DATA, StudyKeys
from ablate.study.ranges import is_range, narrowed, nested
from ablate.study.sections import DatasetSettings, Name, Objective, command_of, trainable_name, with_sections
from ablate.study.space import Choices, Range, Space, order_by_condition

VARIANT = "variant"


class Study(StudyKeys):
    """A study file, validated and frozen. `ablate.study.checks.faults_of` finds the faults that types cannot."""

    row_type: ClassVar[type[Variant]] = Variant

    _told: tuple[str, ...] = PrivateAttr(default=())
    _read: frozenset[str] | None = PrivateAttr(default=None)
    _at_once: bool = PrivateAttr(default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_trainable(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Study:
        """Validate with the sections of the trainable."""
        if cls is not Study:
            return handler(data)
        return study_type(kind_of_file(data)).model_validate(data)

    @property
    def kind(self) -> type[TrainableSettings]:
        """Return the type of the settings of a trial."""
        return trainable_settings(self.trainable)

    @property
    def name(self) -> str:
        """Return the study's name, with its scale if it is scaled: scaled trials are not part of the full study."""
        return self.study if self.scale == 1 else f"{self.study}-scale-{self.scale:g}"

    @property
    def counted(self) -> tuple[str, ...]:
        """Return the metrics that are known before training: sizes of the built-in family, else those of `knowing`."""
        return SIZE_METRICS if self.trainable in TRAINABLES.names() else self._told

    @property
    def noun(self) -> str:
        """Return what a trial trains, in words: `network` where its parameters are counted, else `configuration`."""
        return "network" if "params" in self.counted else "configuration"

    def knowing(self, metrics: Iterable[str], settings: Iterable[str], *, builds: bool) -> Self:
        """Return the study with the metrics that its function's `size(config)` tells, and the settings it reads.

        `builds` says whether `size` builds a network each time.
        """
        found = self.model_copy()
        found._told = tuple(metrics)
        found._read, found._at_once = (frozenset(settings), not builds) if found._told else (None, False)
        return found

    @property
    def counted_at_once(self) -> bool:
        """Whether the size of a configuration takes microseconds, so that a thousand may be asked for."""
        return self._at_once or self.kind.counted_at_once

    def decides_size(self, name: str) -> bool:
        """Return whether a setting may change what is known before training."""
        return self.is_architecture(name) if self._read is None or name == VARIANT else name in self._read

    @property
    def best_report(self) -> BestReport | None:
        """Return the first objective with `read: best`; None if the last report of a trial counts."""
        found = (BestReport(metric=o.metric, direction=o.direction) for o in self.objectives if o.read == "best")
        return next(found, None)

    @property
    def opens_test(self) -> bool:
        """Return whether the test split is opened when the search of a data set has ended.

        A confirmation evaluates the retrained front on it, a comparison under `held_out` every network that it trained;
        of your own code only if a metric of the test split is compared, because others may have none.
        """
        if self.compare is None or self.protocol == "paper":
            return self.confirm is not None
        return self.trainable == FAMILY or any(metric.startswith("test_") for metric in self.compare.metrics)

    @property
    def closes_on_test(self) -> bool:
        """Return whether the closing of a campaign opens the test split."""
        return self.campaign is not None and self.campaign.close.test

    @property
    def tested_metrics(self) -> tuple[str, ...]:
        """Return the metrics of the test split that are read when it is opened; none if it never is."""
        if not self.opens_test:
            return ()
        asked = [each.metric for each in self.objectives] + [each.metric for each in self.constraints]
        found = [on_test(metric) for metric in asked] if self.compare is None else self.compare.metrics
        return tuple(dict.fromkeys(name for name in found if name.startswith("test_")))

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels of the data sets that run, in the file's order; `only` may name columns too."""
        if self.only is None:
            return tuple(self.datasets)
        columns = self.compare.columns if self.compare is not None else {}
        asked = {label for name in self.only for label in columns.get(name, (name,))} | set(self.only)
        return tuple(label for label in self.datasets if label in asked)

    def said_of(self, label: str, text: str) -> str:
        """Return `text` with the data set's label before it, which is left out where the study names no data set."""
        return text if self.labels == (OWN_DATA,) else f"{label}: {text}"

    @cached_property
    def rows(self) -> tuple[Variant, ...]:
        """Return the table of variants, as written or derived from `parts`."""
        own = tuple(self._row(arm) for arm in self.arms) if self.parts else self.variants
        twins = [self.row_type(name=name) for name in self.twins]
        again = self.compare.baseline if self.compare is not None and self.compare.placebo else None
        placebo = [row.model_copy(update={"name": PLACEBO}) for row in own if row.name == again][:1]
        return (*own, *twins, *placebo)

    @cached_property
    def twins(self) -> dict[str, str]:
        """Return the row without a part by the name of its twin, whose size is found with the trainable."""
        if self.compare is None or self.compare.twin is None:
            return {}
        asked = self.compare.twin.parts
        names = [f.name for f in self.factors if f.removable and (asked is None or f.name in asked)]
        reduced = [arm_name(self.factors, without([name])) for name in names if without([name]) in self.arms]
        return {f"{TWIN}{name}": name for name in reduced}

    def seeds_of(self, variant: str | None) -> tuple[int, ...]:
        """Return the seeds of a search trial; those of a placebo are its own."""
        first = PLACEBO_SEED_BASE if self.is_placebo(variant) else 0
        return tuple(range(first, first + self.replicates))

    @property
    def compared(self) -> Compare:
        """The comparison of a study that has one; raise ValueError otherwise."""
        if self.compare is None:
            raise ValueError(f"study {self.name!r} compares nothing: its file has no `compare`")
        return self.compare

    def is_placebo(self, variant: str | None) -> bool:
        """Return whether a row is the baseline on other seeds."""
        return self.compare is not None and self.compare.placebo and variant == PLACEBO

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """Return the parts as factors of a design."""
        return tuple(Factor(name=name, levels=tuple(part.levels) or (REMOVED,)) for name, part in self.parts.items())

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """Return the arms of `parts` in the order of their rows; a search has those of leave-one-out."""
        return arms(self.factors, ("leave-one-out",) if self.compare is None else self.compare.design)

    def _row(self, arm: Arm) -> Variant:
        sections: dict[str, Any] = {}
        for name, level in arm:
            sections = merge_settings(sections, self.parts[name].settings_at(level))
        return self.row_type.model_validate({"name": arm_name(self.factors, arm), **sections})

    @cached_property
    def space(self) -> Space:
        """Return every range of any data set, the variant first; raise ValueError on circular conditions."""
        found: dict[str, Range] = {}
        for label in self.datasets:
            found = {**self.space_for(label).ranges} | found
        if self.rows:
            found[VARIANT] = _table(self.rows)
        return Space(ranges=order_by_condition(found))

    def is_architecture(self, name: str) -> bool:
        """Return whether a setting changes the network: the variant, and what the trainable says."""
        return name == VARIANT or self.kind.is_architecture(name)

    def given_for(self, dataset: str) -> tuple[str, ...]:
        """Return the names of the settings that the file fixes, searches or sets in a row, for a data set."""
        of_rows = (name for row in self.rows for name in row.given())
        return tuple(
            dict.fromkeys([*self._settings(dataset), *of_rows, *(self.tune.given() if self.tune is not None else ())])
        )

    def fixed(self, dataset: str) -> dict[str, Any]:
        """Return the fixed settings of a data set, by dotted name."""
        return {name: value for name, value in self._settings(dataset).items() if not is_range(value)}

    def space_for(self, dataset: str) -> Space:
        """Return the space of one data set: its own ranges, and only the variants that run on it."""
        found = {name: value for name, value in self._settings(dataset).items() if is_range(value)}
        rows = [row for row in self.rows if row.datasets is None or dataset in row.datasets]
        return Space(ranges=order_by_condition(({VARIANT: _table(rows)} if rows else {}) | found))

    @cached_property
    def tuned(self) -> Space:
        """Return the ranges of `tune`, empty without it; raise ValueError on circular conditions."""
        given = {} if self.tune is None else self.tune.given()
        return Space(ranges=order_by_condition({name: value for name, value in given.items() if is_range(value)}))

    @property
    def tuning_metric(self) -> str | None:
        """Return the metric by which the best values are chosen: the first compared one, on validation; else None."""
        return on_validation(self.compare.metrics[0]) if self.tune is not None and self.compare is not None else None

    @property
    def tuning_objective(self) -> Objective:
        """Return `tuning_metric`, which a study with `tune` has, with its direction."""
        assert self.tuning_metric is not None
        higher = is_higher_better(self.tuning_metric, self.objectives)
        return Objective(metric=self.tuning_metric, direction="maximize" if higher else "minimize")

    def start_of(self, dataset: str) -> tuple[dict[str, Any], ...]:
        """Return the configurations that are tried first on a data set, as its ranges have them.

        They are those of `start`, filled with the defaults of ranges, or the defaults alone.
        """
        space = self.space_for(dataset)
        own = [each.values for each in self.start if each.datasets is None or dataset in each.datasets]
        return tuple(filter(None, map(space.filled, own or [{}])))

    def settings_of(self, dataset: str, parameters: Mapping[str, Any]) -> TrainableSettings:
        """Return the complete settings of one trial, with the study's scale applied.

        Raises ValueError (pydantic's ValidationError) if the combination is impossible.
        """
        chosen = self.fixed(dataset)
        for row in self.rows:
            if row.name == parameters.get(VARIANT):
                chosen.update(row.given())
        chosen.update({name: value for name, value in parameters.items() if name != VARIANT})
        found = self.kind.model_validate(nested(chosen))
        return found if self.scale == 1 else found.scaled(self.scale)

    def task(self, dataset: str) -> TaskConfig:
        """Return a data set as its trials see it, with the study's scale applied."""
        task = self.datasets[dataset]
        if self.scale == 1:
            return task
        limit = task.train_limit
        shrunk = None if limit is None else max(round(self.scale * limit), 1)
        return task.model_copy(update={"share": task.share * self.scale, "train_limit": shrunk})

    def design(self, dataset: str) -> tuple[dict[str, Any], ...]:
        """Return the parameters of every trial of a finite space, all variants of one configuration together.

        A scaled study keeps an evenly chosen share of the configurations. Raises ValueError for an infinite space.
        """
        by_configuration: dict[str, list[dict[str, Any]]] = {}
        for parameters in self.space_for(dataset).grid():
            others = {name: value for name, value in parameters.items() if name != VARIANT}
            by_configuration.setdefault(json.dumps(others), []).append(parameters)
        found = list(by_configuration.values())
        kept = max(round(self.scale * len(found)), 1)
        return tuple(parameters for i in range(kept) for parameters in found[i * len(found) // kept])

    def fingerprint(self) -> str:
        """Return a hash of all that makes trials comparable: everything but budget, confirmation and comparison.

        The seeds of a comparison are excluded too, because its cells are paired by seed and more may follow. Settings
        that the file omits are not part of the hash, so that the default of a new setting changes no fingerprint.
        """
        others: dict[str, Any] = dict.fromkeys(("budget", "confirm", "compare", "only", "unit"), True)
        others["campaign"] = {"runs", "effort"}  # of candidates to come; how soon one is given up costs no error
        if self.compare is not None:  # what makes its rows is added below
            others |= {"replicates": True, "tune": {"replicates"}}
        comparable = self.model_dump(mode="json", exclude=others, exclude_unset=True)
        if self.compare is not None and (rows := self.compare.of_rows()):
            comparable["compare"] = rows
        if self.tuning_metric is not None:  # by another one, rows would be trained with other values
            comparable["tuning_metric"] = self.tuning_metric
        return hashlib.sha256(json.dumps(comparable, sort_keys=True).encode()).hexdigest()

    def untested(self) -> Study:
        """Return the study without the patterns of metrics of the test split, which a search does not read."""
        command = command_of(self.trainable)
        if command is None or self.compare is not None:
            return self
        kept = {name: pattern for name, pattern in command.metrics.items() if not name.startswith("test_")}
        return self.model_copy(update={"trainable": trainable_name(command.model_copy(update={"metrics": kept}))})

    def widens(self, before: Study) -> bool:
        """Return whether this search differs from `before` in wider ranges, so that the trials of both are comparable.

        A grid has an order over its ranges, which would change. What was tried first stays first.
        """
        if self.compare is not None or self.sampler.name == "grid" or before.fingerprint() == self.fingerprint():
            return False
        if before.fingerprint() != narrowed(self, before).fingerprint():
            return False
        return all(before.start_of(label) in ((), self.start_of(label)) for label in before.datasets)

    def _settings(self, dataset: str) -> dict[str, Any]:
        """Return every setting of a data set, values and ranges; specific settings override general ones."""
        found = self.given()
        for row in self.settings:
            if dataset in row.datasets:
                found.update(row.given())
        return found


def _table(rows: Iterable[Variant]) -> Choices:
    """Return the range of the rows' names; a repeated name, which is a fault, counts once."""
    return Choices(choices=tuple(dict.fromkeys(row.name for row in rows)))


def kind_of_file(data: Any) -> str:
    """Return the name of a trainable of the kind that a study file is of, whatever else is in it."""
    named = data.get("trainable", FAMILY) if isinstance(data, dict) else FAMILY
    return COMMAND_PREFIX if isinstance(named, dict) else str(named)


@cache
def study_type(trainable: str) -> type[Study]:
    """Return the type of the study files of a trainable: a Study with the sections of its settings.

    `Study.model_validate` returns an instance of it.
    """
    kind = trainable_settings(trainable)
    row, own, level = with_sections(Variant, kind), with_sections(DatasetSettings, kind), with_sections(Level, kind)
    part = with_sections(Part, kind, levels=dict[Name, level])  # type: ignore[valid-type]
    tune = with_sections(Tune, kind)
    fields = {"settings": tuple[own, ...], "variants": tuple[row, ...], "parts": dict[Name, part], "tune": tune | None}  # type: ignore[valid-type]
    made = with_sections(Study, kind, **fields)
    made.row_type = row
    return made
