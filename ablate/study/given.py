"""Configurations that a user gives: values of searched settings, checked against the space of a data set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from ablate.base.errors import Fault, did_you_mean
from ablate.study.ranges import is_range
from ablate.study.space import Range
from ablate.study.study import Study
from ablate.study.values import is_same, texts_of


def given_faults(study: Study, dataset: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (setting, rule) for each value that cannot be tried on a data set; the setting is "" for the whole."""
    space = study.space_for(dataset)
    found = dict(_single_faults(study, dataset, given))
    yield from found.items()
    if found:
        return
    if not given:
        yield "", f"give at least one searched setting: {', '.join(space.names())}"
        return
    values = read_given(study, dataset, given)
    if space.contains(values):
        try:
            study.settings_of(dataset, values)
        except ValidationError as error:
            yield "", f"impossible: {str(error.errors()[0]['msg']).removeprefix('Value error, ')}"


def read_given(study: Study, dataset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as their ranges store them, such as 2 for 2.0; they must be free of `given_faults`."""
    ranges = study.space_for(dataset).ranges
    return {name: ranges[name].read(value) for name, value in given.items()}


def _single_faults(study: Study, dataset: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    ranges, fixed = study.space_for(dataset).ranges, study.fixed(dataset)
    for name, value in given.items():
        if name in fixed:
            yield name, f"is fixed to {fixed[name]} in the study file. Searched: {', '.join(ranges)}"
            continue
        if name not in ranges:
            yield name, f"is not searched on data set {dataset!r}. {did_you_mean(name, ranges)}"
            continue
        try:
            ranges[name].read(value)
        except ValueError as error:
            yield name, str(error)
            continue
        for other, allowed in ranges[name].when.items():
            *named, here = texts_of([*allowed, given.get(other)])
            rule = f"exists only where {other} is {', '.join(named)}"
            if other not in given:
                yield name, f"{rule}: give {other} too"
            elif not any(is_same(_read(ranges[other], given[other]), each) for each in allowed):
                yield name, f"{rule}, here it is {here}"


def _read(spec: Range, value: Any) -> Any:
    try:
        return spec.read(value)
    except ValueError:
        return value


def start_faults(study: Study) -> Iterator[Fault]:
    """Yield every fault of `start` and of the defaults of ranges."""
    ranges = [each for label in study.datasets for each in study.space_for(label).ranges.items()]
    ranges += [each for each in (study.tune.given() if study.tune is not None else {}).items() if is_range(each[1])]
    defaults = [(f"{name}.default", spec) for name, spec in ranges if spec.has_default]
    if study.compare is not None:
        rule = "a comparison trains its whole design: leave this out"
        paths = [*["start"][: len(study.start)], *(path for path, _ in defaults)]
        yield from (Fault(path=path, rule=rule) for path in paths)
        return
    for path, spec in defaults:
        try:
            spec.read(spec.default)
        except ValueError as error:
            yield Fault(path=path, value=spec.default, rule=str(error))
    yield from _entry_faults(study) if study.start else _together_faults(study)
    yield from _budget_faults(study)


def _together_faults(study: Study) -> Iterator[Fault]:
    """Yield why the defaults of a data set are impossible together."""
    for label in study.datasets:
        for values in study.start_of(label):
            for _, rule in given_faults(study, label, values):
                yield Fault(path=f"{next(iter(values))}.default", rule=f"the defaults together are {rule}")


def _entry_faults(study: Study) -> Iterator[Fault]:
    """Yield the faults of the entries of `start`, each with the defaults that it leaves out."""
    first: dict[str, int] = {}
    for index, each in enumerate(study.start):
        path = f"start.{index}"
        for label in study.datasets if each.datasets is None else each.datasets:
            if label not in study.datasets:
                rule = f"not a data set of this study. {did_you_mean(label, study.datasets)}"
                yield Fault(path=f"{path}.datasets", value=label, rule=rule)
                continue
            values = study.space_for(label).filled(each.values)
            faults = list(given_faults(study, label, values))
            for name, rule in faults:
                yield Fault(path=f"{path}.{name}".rstrip("."), value=values.get(name), rule=rule)
            text = f"{index if faults else _text(study, label, values)}"
            if first.setdefault(text, index) != index:
                yield Fault(path=path, rule=f"equal to start.{first[text]}: a configuration is trained once")


def _text(study: Study, label: str, values: Mapping[str, Any]) -> str:
    return label + json.dumps(read_given(study, label, values), sort_keys=True)


def _budget_faults(study: Study) -> Iterator[Fault]:
    counts = [len(study.start_of(label)) for label in study.datasets]
    asked = max(counts) if study.budget.scope == "per_dataset" else sum(counts)
    if asked > study.budget.trials:
        rule = f"{asked} trials begin with these configurations, and budget.trials is {study.budget.trials}"
        yield Fault(path="start" if study.start else "budget.trials", rule=rule)
