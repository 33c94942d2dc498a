"""What pydantic finds wrong in a study file, as faults with their lines and hints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ablate.base.errors import FAULTS_SHOWN, Fault, RegistryError, did_you_mean
from ablate.core.registry import FAMILY, TASKS, task_settings
from ablate.study.ranges import RANGE_KEYS, RANGE_OPTIONS
from ablate.study.sections import Command
from ablate.study.space import Range
from ablate.study.study import Study, kind_of_file, study_type
from ablate.study.yaml_text import Path, dotted

_TAGS = ("value", *RANGE_KEYS)
_DEEPEST = 100  # maximum number of dots in a path that are examined


def shape_faults(error: ValidationError, lines: Mapping[Path, int], data: Any) -> list[Fault]:
    """Return the faults that pydantic found, by line: one for each range; only displayed faults have hints."""
    by_place: dict[Path, list[Any]] = {}
    names = type_of(data).section_names
    for item in items(error):
        by_place.setdefault(range_above(item["loc"], names) or (*item["loc"], item["type"]), []).append(item)
    places = _places(lines)
    found = []
    for group in by_place.values():
        path = tuple(part for part in group[0]["loc"] if part not in _TAGS or (*group[0]["loc"],) in lines)
        path = tuple(part for part in path if not (isinstance(part, str) and part.endswith("]")))
        found.append((_place(dotted(path), places), path, group))
    found.sort(key=lambda each: (each[0] or 0, dotted(each[1])))
    faults = [
        _shape_fault(group, path, line, data if number < FAULTS_SHOWN else None)
        for number, (line, path, group) in enumerate(found)
    ]
    return [fault for number, fault in enumerate(faults) if fault not in faults[max(number - FAULTS_SHOWN, 0) : number]]


def items(error: ValidationError) -> list[Any]:
    """Return what pydantic found, but for lists that are too short because their entries are wrong."""
    items = error.errors(include_url=False)
    above = {item["loc"][:end] for item in items for end in range(len(item["loc"]))}
    return [item for item in items if item["type"] != "too_short" or item["loc"] not in above]


def _shape_fault(group: Sequence[Any], path: Path, line: int | None, data: Any) -> Fault:
    """Return the fault of one place; `data` is the file's content, or None for no hint."""
    item = group[0]
    rule, hint = str(item["msg"]).removeprefix("Value error, "), ""
    value: object = item["input"]
    if item["type"] == "extra_forbidden":
        if data and path[0] == "datasets" and len(path) == 3:
            return _not_of_the_task(path, value, line, data)
        rule, hint = "this key is not known.", did_you_mean(str(path[-1]), known_keys(path[:-1], data)) if data else ""
        value = None
    elif item["type"] == "missing":
        rule, value = "this key is required", None
    elif item["type"] == "literal_error":
        expected = re.findall(r"'([^']*)'", str(item.get("ctx", {}).get("expected", "")))
        rule, hint = "this value is not known.", did_you_mean(str(value), expected) if data else ""
    elif item["loc"][-1] == "[key]" and item["type"] in ("string_type", "string_pattern_mismatch"):
        rule = "a name is a text of letters, digits and '_', with no digit first"
    elif isinstance(value, dict | list):
        value = None
    if len(group) > 1:
        rule += f" (and {len(group) - 1:,} more faults of this range)"
    return Fault(path=dotted(path), value=value, rule=rule, hint=hint, line=line)


def type_of(data: Any) -> type[Study]:
    return study_type(kind_of_file(data))


def range_above(loc: Path, section_names: Sequence[str]) -> Path | None:
    """Return the place of the range that contains `loc`, or None."""
    sections = [index for index, part in enumerate(loc) if part in section_names]
    inside = [index for index, part in enumerate(loc) if part in RANGE_KEYS and sections and index > sections[0]]
    return loc[: inside[0]] if inside else None


def _task_of(label: object, data: Any) -> Any:
    """Return the name of the task of the data set `label`."""
    sets = data["datasets"] if isinstance(data["datasets"], dict) else {}
    named = [entry.get("task", label) for key, entry in sets.items() if str(key) == label and isinstance(entry, dict)]
    return named[0] if named else label


def _not_of_the_task(path: Path, value: object, line: int | None, data: Any) -> Fault:
    """Return the fault of a setting of a data set that its task does not have, or that the task is not known."""
    task = _task_of(path[1], data)
    try:
        if data.get("trainable", FAMILY) == FAMILY:
            TASKS.check(str(task))
    except RegistryError as error:
        return Fault(path=dotted((*path[:2], "task")), value=task, rule=str(error), line=line)
    hint = did_you_mean(str(path[-1]), known_keys(path[:-1], data))
    if any(path[-1] in task_settings(name).model_fields for name in TASKS.names()):
        return Fault(
            path=dotted(path), value=value, rule=f"task {task} does not have this setting.", hint=hint, line=line
        )
    return Fault(path=dotted(path), rule="this key is not known.", hint=hint, line=line)


def known_keys(path: Path, data: Any) -> list[str]:
    if path[:1] == ("datasets",) and len(path) > 1:
        model: Any = task_settings(_task_of(path[1], data))
        for part in path[2:]:
            model = model.model_fields[part].annotation
        return list(model.model_fields)
    kind = type_of(data)
    section: type[BaseModel] = kind
    inside = [part for part in path if isinstance(part, str)]
    sections: dict[str, type[BaseModel]] = {**_models_in(kind), "trainable": Command, **_models_in(Command)}
    for part in inside:
        section = sections.get(part, section)
    if inside and inside[-1] not in sections and inside[0] in kind.section_names:
        return [*RANGE_KEYS, *RANGE_OPTIONS, "default"]
    return list(section.model_fields)


def _models_in(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the models of the fields of a model, and those inside them, by name; ranges are none."""
    found: dict[str, type[BaseModel]] = {}
    for name, field in model.model_fields.items():
        for kind in _types_in(field.annotation):
            found |= {name: kind, **_models_in(kind)}
    return found


def _types_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and not issubclass(annotation, Range):
        yield annotation
    for inner in get_args(annotation):
        yield from _types_in(inner)


def _places(lines: Mapping[Path, int]) -> dict[str, int]:
    """Return the line of every dotted path, the first where several are alike."""
    return {dotted(path): line for path, line in reversed([*lines.items()])}


def _place(dotted: str, places: Mapping[str, int]) -> int | None:
    """Return the line of a path, or of its nearest ancestor in the file."""
    for _ in range(_DEEPEST):
        if dotted in places:
            return places[dotted]
        dotted = dotted.rpartition(".")[0]
    return None


def placed(faults: Sequence[Fault], lines: Mapping[Path, int]) -> list[Fault]:
    """Return each fault once, with its line, in the order of the file."""
    places = _places(lines)
    found = [fault if fault.line is not None else replace(fault, line=_place(fault.path, places)) for fault in faults]
    once = {fault.render(""): fault for fault in found}
    return sorted(once.values(), key=lambda fault: (fault.line or 0, fault.path))
