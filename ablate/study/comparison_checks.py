"""Faults of a designed comparison: unknown names, and settings that contradict it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from ablate.base.errors import Fault, did_you_mean
from ablate.core.config import leaves
from ablate.core.objectives import COST_METRICS, is_higher_better, is_share, on_test, on_validation, unknown_direction
from ablate.study.comparison_sections import Compare, Tune
from ablate.study.design import PLACEBO
from ablate.study.design import faults as design_faults
from ablate.study.ranges import is_range
from ablate.study.space import Range
from ablate.study.study import Study
from ablate.study.tuning_seeds import tuning_seeds
from ablate.study.values import is_same


def comparison_faults(study: Study) -> Iterator[Fault]:
    """Yield the faults of `compare`, `parts`, `tune`, `settings` and `only`."""
    yield from _unknown_names(
        "only", study.only or (), [*study.datasets, *(study.compare.columns if study.compare else ())]
    )
    for index, row in enumerate(study.settings):
        yield from _unknown_names(f"settings.{index}.datasets", row.datasets, study.datasets)
    if study.parts and study.variants:
        yield Fault(path="parts", rule="give `variants` or `parts`, not both: parts make the variants")
    yield from _part_faults(study)
    if study.sampler.name == "design" and study.compare is None:
        yield Fault(path="sampler.name", value="design", rule="this sampler walks a comparison: give `compare`")
    if study.tune is not None:
        yield from _tune_faults(study, study.tune)
    if study.compare is not None:
        yield from _compare_faults(study, study.compare)


def _part_faults(study: Study) -> Iterator[Fault]:
    """Yield the parts that have both settings and levels, or neither, and pairs that cannot be combined."""
    for name, part in study.parts.items():
        if bool(part.given()) == bool(part.levels):
            rule = "give the settings that remove the part, or `levels` that replace its form: one of the two"
            yield Fault(path=f"parts.{name}", rule=rule)
    combined = {pair for arm in study.arms for pair in itertools.combinations(arm, 2)}
    blamed: set[tuple[str, str]] = set()
    for (one, first), (two, second) in sorted(combined):
        here, there = (leaves(study.parts[n].settings_at(level)) for n, level in ((one, first), (two, second)))
        both = next((name for name in here if name in there and not is_same(here[name], there[name])), None)
        if both is not None and (one, two) not in blamed:
            blamed.add((one, two))
            rule = f"{one} and {two} set {both} to different values, so this design cannot combine them."
            hint = "Make them `levels` of one part, or compare with design: leave-one-out."
            yield Fault(path=f"parts.{two}", rule=rule, hint=hint)


def _design_faults(study: Study, compare: Compare) -> Iterator[Fault]:
    if "design" in compare.model_fields_set and not study.parts:
        yield Fault(path="compare.design", rule="a design combines `parts`: give them, not `variants`")
        return
    for design, rule in design_faults(study.factors, compare.design).items():
        yield Fault(path="compare.design", value=design, rule=rule)


def _twin_faults(study: Study, compare: Compare) -> Iterator[Fault]:
    if compare.twin is None:
        return
    removable = [factor.name for factor in study.factors if factor.removable]
    yield from _unknown_names("compare.twin.parts", compare.twin.parts or (), removable)
    if not study.parts:
        yield Fault(path="compare.twin", rule="a twin belongs to a part: give `parts`, not `variants`")
    elif not study.twins and not (compare.twin.parts and set(compare.twin.parts) - set(removable)):
        rule = "a twin is compared with a row `without-NAME`, and this design has none: add leave-one-out"
        yield Fault(path="compare.twin", rule=rule)
    setting = compare.twin.setting or study.kind.width_setting
    if not setting:
        rule = "name the whole number that narrows your network, as in twin: {setting: config.width}"
        yield Fault(path="compare.twin", rule=rule)
    elif compare.twin.setting is not None:
        known = [name for label in study.datasets for name in study.given_for(label)]
        yield from _unknown_names("compare.twin.setting", (setting,), known)


def _compare_faults(study: Study, compare: Compare) -> Iterator[Fault]:
    own = {"sampler": study.sampler.name == "design", "scheduler": study.scheduler.name == "none"}
    for section, fits in (own | {"confirm": study.confirm is None}).items():
        if not fits:
            yield Fault(path=section, rule="a comparison trains its whole design in full, once: leave this out")
    rows = [row.name for row in study.rows]
    if not rows:
        yield Fault(path="compare", rule="a comparison needs `variants` or `parts` to compare")
        return
    yield from _design_faults(study, compare)
    yield from _twin_faults(study, compare)
    for metric in compare.metrics if study.protocol == "paper" else ():
        if metric.startswith("test_"):
            rule = f"under `protocol: paper` validation is the test split: write val_{metric.removeprefix('test_')}"
            yield Fault(path="compare.metrics", value=metric, rule=rule)
    added = {*study.twins, *([PLACEBO] if compare.placebo else [])}
    yield from _unknown_names("compare.baseline", (compare.baseline,), [name for name in rows if name not in added])
    for column, labels in compare.columns.items():
        yield from _unknown_names(f"compare.columns.{column}", labels, study.datasets)
    yield from _margin_faults(study, compare)
    columns = list(compare.columns) or list(study.datasets)
    for metric, by_column in compare.published.items():
        path = f"compare.published.{metric}"
        yield from _unknown_names(path, (metric,), [*compare.metrics, "params", "q"])
        yield from _unknown_names(path, by_column, columns)
        for column, cells in by_column.items():
            yield from _unknown_names(f"{path}.{column}", cells, rows)
            for variant, figure in cells.items():
                if is_share(metric) and not 0 <= figure.value <= 1:
                    rule = f"an accuracy is a share, not percent: {figure.value / 100:g}?"
                    yield Fault(path=f"{path}.{column}.{variant}", value=figure.value, rule=rule)


def _tune_faults(study: Study, tune: Tune) -> Iterator[Fault]:
    given = tune.given()
    if study.compare is None:
        rule = "it tunes the rows of a comparison: give `compare`, or search these settings in their own section"
        yield Fault(path="tune", rule=rule)
    if not given:
        rule = (
            "give the range of at least one setting, as in training.learning_rate: {float: [0.0001, 0.01], log: true}"
        )
        yield Fault(path="tune", rule=rule)
    searched = {name for label in study.datasets for name in study.space_for(label).names()}
    for name, value in given.items():
        path = f"tune.{name}"
        if not is_range(value):
            yield Fault(path=path, value=value, rule="tuning needs a range; give a fixed value in its own section")
        elif name in searched:
            yield Fault(path=path, rule="this is searched in its own section, so it cannot be tuned too")
        for row in study.rows:
            if name in row.given():
                rule = f"row {row.name} fixes this setting, so it cannot be tuned equally in all rows"
                yield Fault(path=path, value=row.given()[name], rule=rule)
    try:
        yield from condition_faults(study.tuned.ranges, "tune.", "a condition in `tune` names another tuned setting")
    except ValueError as error:
        yield Fault(path="tune", rule=str(error))
    if study.compare is not None and study.compare.twin is not None:
        narrowed = (study.compare.twin.setting or study.kind.width_setting, "model.mlp")
        for name in (name for name in given if name in narrowed):
            yield Fault(path=f"tune.{name}", rule="a twin is narrowed by this setting, so it cannot be tuned too")
    for path, value in study.budget.limits_of_time().items():
        rule = "`tune` gives every row the same number of trials, which a time budget would cut short for some"
        yield Fault(path=path, value=value, rule=rule)
    if tuning_seeds(study) > study.replicates:
        rule = f"each seed of a row has one tuning seed, and a row has {study.replicates} (`replicates`): leave it out"
        yield Fault(path="tune.replicates", value=tune.replicates, rule=rule)
    if (metric := study.tuning_metric) is not None:
        yield from _choice_faults(study, metric)


def condition_faults(ranges: Mapping[str, Range], place: str, rule: str) -> Iterator[Fault]:
    """Yield the faults of `when`: it names another of `ranges`, as `rule` says, and values which that can have."""
    for own, spec in ranges.items():
        for name, allowed in spec.when.items():
            path = f"{place}{own}.when.{name}"
            if name not in ranges:
                yield Fault(path=path, rule=f"{rule}. {did_you_mean(name, ranges)}")
                continue
            for value in (value for value in allowed if not ranges[name].contains(value)):
                yield Fault(path=path, value=value, rule=f"{name} never has this value")


def _choice_faults(study: Study, metric: str) -> Iterator[Fault]:
    """Yield the fault of a metric by which no best values can be chosen."""
    if not metric.startswith("val_"):
        rule = "`tune` chooses the best values by the first metric, so that is one of the validation split"
        yield Fault(path="compare.metrics", value=metric, rule=rule)
    elif is_higher_better(metric, study.objectives) is None:
        rule = f"`tune` chooses the best values by this metric: declare {metric} in `objectives`, with its direction"
        yield Fault(path="compare.metrics", value=metric, rule=rule)


def _margin_faults(study: Study, compare: Compare) -> Iterator[Fault]:
    """Yield the faults of `margin` and `diverged`: unknown metrics, percent for shares, and no better direction."""
    tested = [on_test(metric) for metric in compare.metrics] if study.protocol == "held_out" else []
    seeded = [metric for metric in dict.fromkeys([*compare.metrics, *tested]) if metric not in COST_METRICS]
    for key, values in (("margin", compare.margin), ("diverged", compare.diverged)):
        path = f"compare.{key}"
        yield from _unknown_names(path, values, seeded)
        for metric, value in values.items():
            if is_share(metric) and not (0 <= value < 1 or (key == "diverged" and value == 1)):
                rule = f"an accuracy is a share, not percent: {value / 100:g}?"
                yield Fault(path=f"{path}.{metric}", value=value, rule=rule)
    for metric in compare.margin:
        if metric in seeded and is_higher_better(metric, study.objectives) is None:
            rule = f"{unknown_direction(metric)}: declare {on_validation(metric)} in `objectives`"
            yield Fault(path=f"compare.margin.{metric}", rule=rule)


def _unknown_names(path: str, names: Iterable[str], known: Iterable[str]) -> Iterator[Fault]:
    listed = list(dict.fromkeys(known))
    for name in names:
        if name not in listed:
            yield Fault(path=path, value=name, rule=f"this name is not known here. {did_you_mean(name, listed)}")
