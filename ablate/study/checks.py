"""Faults of a study that types cannot detect: names, ranges, conditions, impossible combinations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from pydantic import ValidationError

from ablate.base.errors import Fault, RegistryError, RequestError, did_you_mean
from ablate.core import registry
from ablate.core.objectives import COST_METRICS, UNTESTED, is_cost, is_share, on_test, quality_objective
from ablate.study.command_text import OFFERED, placeholders, refuse_shell_signs, split
from ablate.study.comparison_checks import comparison_faults, condition_faults
from ablate.study.design import REMOVED
from ablate.study.given import start_faults
from ablate.study.ranges import is_range
from ablate.study.sections import METRIC_RULE, command_of, is_named
from ablate.study.space import Space
from ablate.study.study import VARIANT, Study

COMBINATIONS_TRIED = 300


def faults_of(study: Study) -> list[Fault]:
    """Return every fault of meaning in `study`; impossible combinations are checked only if there is no other fault."""
    try:
        space = study.space
    except ValueError as error:
        return [*_name_faults(study), Fault(path="model", rule=str(error))]
    plain = [*_name_faults(study), *_objective_faults(study), *_row_faults(study, space), *comparison_faults(study)]
    plain += [*_determinism_faults(study), *_budget_faults(study), *start_faults(study)]
    plain += [*_campaign_faults(study), *_command_faults(study)]
    for label in study.datasets:
        plain.extend(_range_faults(study, study.space_for(label)))
    alike = {repr((study.fixed(label), study.space_for(label))): label for label in study.datasets}
    return plain or [fault for label in alike.values() for fault in _combination_faults(study, label)]


def _name_faults(study: Study) -> Iterator[Fault]:
    named = [("sampler.name", study.sampler.name, registry.SAMPLERS)]
    named += [("scheduler.name", study.scheduler.name, registry.SCHEDULERS)]
    if study.trainable == registry.FAMILY:
        named += [(f"datasets.{label}.task", task.task, registry.TASKS) for label, task in study.datasets.items()]
    for path, name, table in named:
        try:
            table.check(name)
        except RegistryError as error:
            yield Fault(path=path, value=name, rule=str(error))


def _objective_faults(study: Study) -> Iterator[Fault]:
    metrics = [objective.metric for objective in study.objectives]
    for index, metric in enumerate(metrics):
        if metric in metrics[:index]:
            yield Fault(path=f"objectives.{index}.metric", value=metric, rule="an objective occurs only once")
    for index, objective in enumerate(study.objectives):
        if objective.log and objective.reference is not None and objective.reference <= 0:
            rule = "the reference of a log axis must be > 0"
            yield Fault(path=f"objectives.{index}.reference", value=objective.reference, rule=rule)
        if objective.read == "best" and is_cost(objective.metric):
            rule = f"{objective.metric} is of the whole trial, so no report is the best: leave `read` out"
            yield Fault(path=f"objectives.{index}.read", value="best", rule=rule)
    for name in ("reduction", "min_epochs"):
        if study.scheduler.name == "forecast" and name in study.scheduler.model_fields_set:
            rule = "the scheduler forecast has no such setting"
            yield Fault(
                path=f"scheduler.{name}", value=getattr(study.scheduler, name), rule=rule, hint="Add name: asha."
            )
    if registry.trainable_kind(study.trainable) != registry.OWN_FUNCTION:
        declared = {f"objectives.{index}.metric": metric for index, metric in enumerate(metrics)}
        declared |= {f"constraints.{index}.metric": bound.metric for index, bound in enumerate(study.constraints)}
        wrong = {path: metric for path, metric in declared.items() if not is_named(metric)}
        yield from (Fault(path=path, value=metric, rule=METRIC_RULE) for path, metric in wrong.items())
    if study.confirm is not None:
        yield from _margin_faults(study, "confirm.margin", study.confirm.margin)


def _command_faults(study: Study) -> Iterator[Fault]:
    """Yield the faults of a command: its text, names of `config` that differ from its placeholders, unread metrics."""
    command = command_of(study.trainable)
    if command is None:
        return
    try:
        split(command.command)
        used = placeholders(command.command)
        if not command.shell:
            refuse_shell_signs(command.command)
    except RequestError as error:
        yield Fault(path="trainable.command", rule=str(error))
        return
    given = {name for label in study.datasets for name in study.given_for(label)}
    for name in sorted(given):
        kind, _, setting = name.partition(".")
        if kind == "replace":
            yield Fault(path=name, rule="a command has no modules to replace; use the command's switches")
        elif setting in OFFERED:
            yield Fault(path=name, rule=f"{{{setting}}} in a command is given by ablate; choose another name")
        elif kind == "config" and setting not in used:
            yield Fault(path=name, rule=f"the command does not use {{{setting}}}.", hint=did_you_mean(setting, used))
    names = [name.removeprefix("config.") for name in given if name.startswith("config.")]
    for name in sorted(used.keys() - {*names, *OFFERED}):
        rule = f"the command uses {{{name}}}, which `config` does not give."
        yield Fault(path="trainable.command", rule=rule, hint=did_you_mean(name, {*names, *OFFERED}))
    if (study.opens_test or study.closes_on_test) and not any(name.startswith("test_") for name in command.metrics):
        rule = (
            "the study reads a metric of the test split: add one whose name starts with test_ to the command's"
            f" `metrics`, or leave that split out ({UNTESTED})"
        )
        yield Fault(path="trainable.metrics", rule=rule)
    for label in study.labels:
        yield from unknown_metrics(study, label, tuple(command.metrics))


def unknown_metrics(study: Study, label: str, metrics: Sequence[str]) -> Iterator[Fault]:
    """Yield the objectives, constraints and compared metrics that are not among `metrics`, which trials report.

    A confirmation needs them on the test split too, where `metrics` has names of that split.
    """
    known = [*COST_METRICS, *metrics]
    names_tests = any(name.startswith("test_") for name in metrics)
    tested = () if names_tests else [on_test(name) for name in known]
    asked = [(f"objectives.{index}.metric", each.metric) for index, each in enumerate(study.objectives)]
    asked += [(f"constraints.{index}", each.metric) for index, each in enumerate(study.constraints)]
    compared = study.compare.metrics if study.compare is not None else ()
    asked += [("compare.metrics", metric) for metric in compared]
    for path, metric in asked:
        if metric not in known and not (metric in compared and metric in tested):
            unsaid = "objectives" not in study.model_fields_set and path.startswith("objectives")
            rule = f"data set {label!r} has no metric {metric!r}{', the default of `objectives`' * unsaid}."
            yield Fault(path=path, rule=rule, hint=did_you_mean(metric, known))
    for metric in study.tested_metrics if names_tests and study.confirm is not None else ():
        if metric not in known:
            rule = f"a confirmation reads objectives and constraints on the test split; no metric is {metric!r}"
            yield Fault(path="confirm", rule=f"data set {label!r}: {rule}.", hint=did_you_mean(metric, known))


def _margin_faults(study: Study, place: str, margin: Mapping[str, float]) -> Iterator[Fault]:
    """Yield the faults of a margin: another metric than the quality that networks are compared by, percent."""
    quality = quality_objective(study.objectives).metric
    for metric, value in margin.items():
        path = f"{place}.{metric}"
        if is_cost(quality):
            yield Fault(path=path, value=value, rule="all objectives are costs, so there is no quality to lose")
        elif metric != quality:
            rule = f"networks are compared by the first objective that is not a cost: {quality}"
            yield Fault(path=path, value=value, rule=f"{rule}. {did_you_mean(metric, [quality])}")
        elif is_share(metric) and value >= 1:
            yield Fault(path=path, value=value, rule=f"an accuracy is a share, not percent: {value / 100:g}?")


def _budget_faults(study: Study) -> Iterator[Fault]:
    """Yield the fault of `budget`: money without a price."""
    if study.budget.money is not None and study.budget.price is None:
        rule = "money needs `budget.price`, the price of one GPU hour"
        yield Fault(path="budget.money", value=study.budget.money, rule=rule)


def _determinism_faults(study: Study) -> Iterator[Fault]:
    """Yield the faults of `deterministic`: a use of training time, or a comparison, which is repeatable without it."""
    if study.deterministic is None:
        return
    rule = "a deterministic study cannot depend on how long training takes"
    for path, value in study.budget.limits_of_time().items():
        hint = "Give budget.trials instead, or leave `deterministic` out."
        yield Fault(path=path, value=value, rule=f"{rule}.", hint=hint)
    metrics = [(f"objectives.{i}.metric", o.metric) for i, o in enumerate(study.objectives)]
    metrics += [(f"constraints.{i}", c.metric) for i, c in enumerate(study.constraints)]
    for path, metric in metrics:
        if metric == "wall_seconds":
            hint = "Take flops instead, or leave `deterministic` out."
            yield Fault(path=path, value=metric, rule=f"{rule}.", hint=hint)
    if study.compare is not None:
        rule = "a comparison trains a fixed list: it is the same at any concurrency without this key"
        yield Fault(path="deterministic", value=study.deterministic, rule=rule)


def _campaign_faults(study: Study) -> Iterator[Fault]:
    """Yield the faults of `campaign`: sections that it excludes, ranges, and a quality that it cannot judge."""
    campaign = study.campaign
    if campaign is None:
        return
    rule = "a campaign judges one change at a time, by runs of one seed that are trained in full: leave this out"
    excluded = ("compare", "tune", "confirm", "start", "constraints", "deterministic")
    given = {name: getattr(study, name) for name in excluded}
    given |= {"replicates": study.replicates > 1, "scheduler.name": study.scheduler.name != "none"}
    given |= {"protocol": study.protocol == "paper"}
    yield from (Fault(path=path, rule=rule) for path, value in given.items() if value)
    for label in study.datasets:
        ranges = [name for name in study.space_for(label).names() if name != VARIANT]
        yield from (Fault(path=name, rule=f"{rule}. Give a value") for name in ranges)
    if len(study.labels) > 1:
        yield Fault(path="datasets", rule="a campaign has one data set")
    if len(study.objectives) > 1 and not campaign.cheaper:
        rule = "a campaign has one objective, or `campaign.cheaper` for the costs of the others"
        yield Fault(path="objectives", rule=rule)
    quality = quality_objective(study.objectives).metric
    if is_cost(quality):
        yield Fault(path="objectives.0.metric", value=quality, rule="a campaign judges a quality, not a cost")
    yield from _margin_faults(study, "campaign.margin", campaign.margin)
    if (campaign.cheaper or campaign.gate == "not-worse") and not campaign.margin:
        yield Fault(path="campaign.margin", rule=f"say how much of {quality} a candidate may lose")
    for metric in campaign.diverged.keys() - {quality}:
        rule = f"the campaign judges {quality}"
        yield Fault(path=f"campaign.diverged.{metric}", value=campaign.diverged[metric], rule=rule)
    if campaign.evaluate is not None and not study.trainable.startswith(registry.COMMAND_PREFIX):
        rule = "a command alone writes files that another one measures: leave this out"
        yield Fault(path="campaign.evaluate", value=campaign.evaluate, rule=rule)
    if campaign.length is not None and "expect" in campaign.model_fields_set:
        yield Fault(path="campaign.expect", value=campaign.expect, rule="give `expect` or `length`")


def _range_faults(study: Study, space: Space) -> Iterator[Fault]:
    yield from condition_faults(space.ranges, "", "a condition names a searched parameter")
    for own, spec in space.ranges.items():
        if study.sampler.name in ("grid", "design") and spec.grid() is None:
            yield Fault(path=own, rule=f"sampler {study.sampler.name} needs a finite range: give a step")


def _row_faults(study: Study, space: Space) -> Iterator[Fault]:
    searched = set(space.names())
    names = [row.name for row in study.rows]
    for index, row in enumerate(study.rows):
        path = _place(study, index)
        if row.name in names[:index]:
            yield _repeated(study, path, row.name)
        for label in row.datasets or ():
            if label not in study.datasets:
                rule = f"not a data set of this study. {did_you_mean(label, study.datasets)}"
                yield Fault(path=f"{path}.datasets", value=label, rule=rule)
        for name, value in row.given().items():
            if is_range(value):
                yield Fault(path=f"{path}.{name}", rule="a row fixes values, it has no ranges")
            elif name in searched:
                yield Fault(path=f"{path}.{name}", value=value, rule="this is searched, so a row cannot fix it")
    for label in study.datasets:
        if names and not any(row.datasets is None or label in row.datasets for row in study.rows):
            yield Fault(path=f"datasets.{label}", rule="no variant runs on this data set")


def _repeated(study: Study, path: str, name: str) -> Fault:
    if study.parts:
        return Fault(path=path, rule=f"two networks of the comparison would be called {name}: rename a part or a level")
    return Fault(path=f"{path}.name", value=name, rule="a variant's name occurs only once")


def _combination_faults(study: Study, dataset: str) -> Iterator[Fault]:
    """Try combinations of a data set's finite architecture axes (see `_tried`); report one per reason."""
    seen, names = set[str](), [row.name for row in study.rows]
    for values in _tried(architectures(study, study.space_for(dataset))):
        try:
            study.settings_of(dataset, values)
        except ValueError as error:
            for reason in _reasons(error):
                if reason not in seen:
                    seen.add(reason)
                    row = names.index(values[VARIANT]) if VARIANT in values else None
                    path = "model" if row is None else _place(study, row)
                    yield Fault(path=path, rule=f"impossible: {reason}.", hint=_way(study, row, values))


def _tried(space: Space) -> Iterator[dict[str, Any]]:
    """Yield every combination of a space of up to COMBINATIONS_TRIED, and that many of a larger one.

    These are drawn as a Latin hypercube: each value of a setting occurs as often as its others. The search refuses the
    impossible combinations that are not among them.
    """
    found = list(itertools.islice(space.grid(), COMBINATIONS_TRIED + 1))
    if len(found) > COMBINATIONS_TRIED:
        draw, columns = Random(0), []
        for spec in space.ranges.values():
            values = spec.grid() or ()
            column = draw.sample(values, min(len(values), COMBINATIONS_TRIED)) * COMBINATIONS_TRIED
            columns.append(draw.sample(column[:COMBINATIONS_TRIED], COMBINATIONS_TRIED))
        found = [space.active(dict(zip(space.ranges, row, strict=True))) for row in zip(*columns, strict=True)]
    yield from found


def architectures(study: Study, space: Space) -> Space:
    """Return the finite axes of `space` that change the network, and the variants."""
    finite = {name: r for name, r in space.ranges.items() if study.decides_size(name) and r.grid() is not None}
    return Space(ranges={name: spec for name, spec in finite.items() if spec.when.keys() <= finite.keys()})


def _reasons(error: ValueError) -> list[str]:
    if not isinstance(error, ValidationError):  # of `nested`
        return [str(error)]
    found = []
    for item in error.errors():
        place = ".".join(map(str, item["loc"][1:]))  # without the section
        text = str(item["msg"]).removeprefix("Value error, ")
        found.extend(text.split("; ") if not place else [f"{place}: {text}"])
    return found


def _place(study: Study, row: int) -> str:
    """Return the place of row number `row` in the file; of a combination of parts that of the last one."""
    own = len(study.arms) if study.parts else len(study.variants)
    if row >= own:
        return "compare.twin" if row < own + len(study.twins) else "compare.placebo"
    if not study.parts:
        return f"variants.{row}"
    if not study.arms[row]:
        return "parts"
    name, level = study.arms[row][-1]
    return f"parts.{name}" if level == REMOVED else f"parts.{name}.levels.{level}"


def _way(study: Study, row: int | None, values: Mapping[str, Any]) -> str:
    """Return what to write in place of an impossible combination, or an empty text."""
    if row is not None and row < len(study.arms) and len(study.arms[row]) > 1:  # parts that each alone are possible
        return f"The design has this network as {values[VARIANT]}; leave-one-out combines no parts."
    if set(values) <= {VARIANT}:
        return ""
    return (
        "Search the parts apart with `when:`, as in "
        "heads: {choices: [1, 4], when: {model.similarity: [separate, shared]}}."
    )
