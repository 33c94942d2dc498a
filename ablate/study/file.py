"""From a YAML file to a Study: every fault at once, each with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import BaseModel, ValidationError

from ablate.config import ModelConfig, Schedule, TrainConfig
from ablate.errors import FAULTS_SHOWN, Fault, StudyFileError, did_you_mean
from ablate.registry import OWN_TASK, task_settings
from ablate.study.checks import faults_of
from ablate.study.ranges import RANGE_KEYS, Choices, FloatRange, IntRange
from ablate.study.sections import (
    Budget,
    Compare,
    Confirm,
    Constraint,
    DatasetSettings,
    Figure,
    Objective,
    Part,
    SamplerConfig,
    SchedulerConfig,
    Variant,
)
from ablate.study.study import Study

SIZE_LIMIT_BYTES = 250_000
LONGEST_NUMBER = 100  # digits
IN_FLIGHT = 8  # trials of a data set, where a study is asked to be deterministic and its file does not say how many
_Path = tuple[str | int, ...]
_TAGS = ("value", *RANGE_KEYS)
_DEEPEST = 100  # dots of a path that are looked at
_SURROGATE = re.compile("[\ud800-\udfff]")


class _Yaml12(yaml.SafeLoader):
    """PyYAML with the scalars of YAML 1.2: `1e-3` is a number, `no` is text."""


_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": re.compile(r"(?:~|null|Null|NULL|)\Z"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "int": re.compile(r"[-+]?[0-9][0-9_]*\Z"),
    "float": re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
    ),
}
_FIRST = {
    "null": ["~", "n", "N", ""],
    "bool": list("tTfF"),
    "int": list("-+0123456789"),
    "float": list("-+.0123456789"),
}
_Yaml12.yaml_implicit_resolvers = {}
for _name, _pattern in _SCALARS.items():
    _Yaml12.add_implicit_resolver(_TAG + _name, _pattern, _FIRST[_name])


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    if len(text) > LONGEST_NUMBER:
        raise yaml.constructor.ConstructorError(None, None, "this number has too many digits", node.start_mark)
    return int(text)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Yaml12.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Yaml12.add_constructor("tag:yaml.org,2002:float", _construct_float)


def load_study(
    path: Path, *, scale: float | None = None, only: Sequence[str] | None = None, deterministic: bool = False
) -> Study:
    """Return the study in `path`; raise StudyFileError listing every fault with line, path, value and rule."""
    return parse_study(study_text(path, scale=scale, only=only, deterministic=deterministic), str(path))


def study_text(
    path: Path, *, scale: float | None = None, only: Sequence[str] | None = None, deterministic: bool = False
) -> str:
    """Return the text of `path` with `scale`, `only`, `deterministic` behind it, so that the text alone is the study.

    Raises StudyFileError where the file cannot be read or has its own `scale` or `only`; its own `deterministic`, how
    many trials it lets fly, is kept.
    """
    text = _read(path)
    added = {"scale": scale, "only": None if only is None else list(only)}
    given: dict[str, Any] = {key: value for key, value in added.items() if value is not None}
    there = [key for key in given if _says(text, key)]
    if there:
        _refuse(str(path), f"says `{there[0]}:` itself; leave the option out, or take the key out of the file")
    if deterministic and not _says(text, "deterministic"):
        given["deterministic"] = IN_FLIGHT
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in given.items()]
    return text if not lines else text.rstrip("\n") + "\n" + "".join(lines)


def _says(text: str, key: str) -> bool:
    return re.search(rf"^{key}\s*:", text, re.MULTILINE) is not None


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > SIZE_LIMIT_BYTES:
            _refuse(str(path), f"a study file has at most {SIZE_LIMIT_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        _refuse(str(path), "no such file." + _near(path))
    except (OSError, UnicodeDecodeError) as error:
        _refuse(str(path), f"cannot be read: {error}")


def parse_study(text: str, file: str = "study", *, known_good: bool = False) -> Study:
    """Return the study written in `text`; raise StudyFileError naming `file` in every fault.

    `known_good` leaves out the search for faults of meaning, for a text that passed it before.
    """
    data, lines = _parse(text, file)
    try:
        study = Study.model_validate(data)
    except ValidationError as error:
        raise StudyFileError(file, _unique(_shape_faults(error, lines, data))) from None
    faults = [] if known_good else faults_of(study)
    if faults:
        places = _places(lines)
        raise StudyFileError(file, _unique([replace(f, line=_place(f.path, places)) for f in faults]))
    return study


def difference(old: str, new: str) -> list[str]:
    """Return what changed between two study files' texts, a line `path: old -> new` for each setting."""
    before, after = (dict(_leaves(_parse(text, "study")[0], ())) for text in (old, new))
    names = sorted(before.keys() | after.keys())
    missing = "(not set)"
    return [
        f"{name}: {before.get(name, missing)} -> {after.get(name, missing)}"
        for name in names
        if before.get(name, missing) != after.get(name, missing)
    ]


def json_schema() -> str:
    """Return the JSON Schema of study files, for editors to complete and check with."""
    schema = Study.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "ablate study file"
    return json.dumps(schema, indent=1) + "\n"


def _parse(text: str, file: str) -> tuple[Any, dict[_Path, int]]:
    loader: _Yaml12 | None = None
    try:
        loader = _Yaml12(text)  # refuses control characters already here
        node = loader.get_single_node()
        if node is None:
            _refuse(file, "the file is empty; it needs at least `study:` and `datasets:`")
        lines: dict[_Path, int] = {}
        faults = list(_walk(node, (), lines, set()))
        if faults:
            raise StudyFileError(file, faults)
        data = loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        line = mark.line + 1 if mark else None
        raise StudyFileError(file, [Fault(path="YAML", value=None, rule=str(problem), line=line)]) from None
    except RecursionError:
        _refuse(file, "nested too deeply")
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(data, dict):
        _refuse(file, "a study file is a mapping; it needs at least `study:` and `datasets:`")
    return data, lines


def _walk(node: yaml.Node, path: _Path, lines: dict[_Path, int], above: set[int]) -> Iterator[Fault]:
    """Record the line of every path; yield what YAML allows and no study file needs."""
    line = lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in above or len(lines) > 100_000:
        yield Fault(path=_dotted(path), value=None, rule="too large, or an alias of itself", line=line)
        return
    yield from _node_faults(node, path)
    above = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                yield Fault(path=_dotted(path), value=None, rule="a key is one word of text", line=line)
                continue
            below = (*path, str(key.value))
            lines[below] = line
            yield from _node_faults(key, below)
            if key.value in seen:
                yield Fault(path=_dotted(below), value=None, rule="this key stands twice", line=line)
            seen.add(key.value)
            yield from _walk(value, below, lines, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _walk(value, (*path, index), lines, above)


def _node_faults(node: yaml.Node, path: _Path) -> Iterator[Fault]:
    """Yield a tag that is none of JSON's types or does not fit its value, and text that is not Unicode."""
    place, line = _dotted(path), node.start_mark.line + 1
    kind = node.tag.removeprefix(_TAG)
    if kind not in (("str", *_SCALARS) if isinstance(node, yaml.ScalarNode) else ("seq", "map")):
        yield Fault(path=place, value=None, rule=f"the tag {node.tag[:80]!r} does not fit; leave it out", line=line)
    elif kind in _SCALARS and not _SCALARS[kind].match(node.value):
        yield Fault(path=place, value=node.value, rule=f"this is not of the type that its tag names, {kind}", line=line)
    elif isinstance(node, yaml.ScalarNode) and _SURROGATE.search(node.value):
        rule = "this text holds half of a character (a lone surrogate)"
        yield Fault(path=place, value=node.value, rule=rule, line=line)


def _shape_faults(error: ValidationError, lines: Mapping[_Path, int], data: Any) -> list[Fault]:
    """Return the faults that pydantic found, by line: one for each range; hints for those that are shown."""
    items = error.errors(include_url=False)
    above = {item["loc"][:end] for item in items for end in range(len(item["loc"]))}
    by_place: dict[_Path, list[Any]] = {}
    for item in items:
        if item["type"] != "too_short" or item["loc"] not in above:
            by_place.setdefault(_range_above(item["loc"]) or (*item["loc"], item["type"]), []).append(item)
    places = _places(lines)
    found = []
    for group in by_place.values():
        path = tuple(part for part in group[0]["loc"] if part not in _TAGS or (*group[0]["loc"],) in lines)
        path = tuple(part for part in path if not (isinstance(part, str) and part.endswith("]")))
        found.append((_place(_dotted(path), places), path, group))
    found.sort(key=lambda each: (each[0] or 0, _dotted(each[1])))
    return [
        _shape_fault(group, path, line, data if number < FAULTS_SHOWN else None)
        for number, (line, path, group) in enumerate(found)
    ]


def _shape_fault(group: Sequence[Any], path: _Path, line: int | None, data: Any) -> Fault:
    """Return the fault of one place; `data` is the file's content, or None where no hint is wanted."""
    item = group[0]
    rule, hint = str(item["msg"]).removeprefix("Value error, "), ""
    value: object = item["input"]
    if item["type"] == "extra_forbidden":
        rule, hint = "this key is not known.", did_you_mean(str(path[-1]), _known_keys(path[:-1], data)) if data else ""
        if data and path[0] == "datasets" and len(path) == 3 and path[-1] in task_settings(OWN_TASK).model_fields:
            rule = f"task {_task_of(path[1], data)} does not have this setting."
        else:
            value = None
    elif item["type"] == "missing":
        rule, value = "this key is required", None
    elif item["type"] == "literal_error":
        expected = re.findall(r"'([^']*)'", str(item.get("ctx", {}).get("expected", "")))
        rule, hint = "this value is not known.", did_you_mean(str(value), expected) if data else ""
    elif isinstance(value, dict | list):
        value = None
    if len(group) > 1:
        rule += f" (and {len(group) - 1:,} more faults of this range)"
    return Fault(path=_dotted(path), value=value, rule=rule, hint=hint, line=line)


def _range_above(loc: _Path) -> _Path | None:
    """Return the place of the range that `loc` lies in, if it does."""
    sections = [index for index, part in enumerate(loc) if part in ("model", "training")]
    inside = [index for index, part in enumerate(loc) if part in RANGE_KEYS and sections and index > sections[0]]
    return loc[: inside[0]] if inside else None


def _task_of(label: object, data: Any) -> Any:
    """Return the name of the task of the data set `label`."""
    sets = data["datasets"] if isinstance(data["datasets"], dict) else {}
    named = [entry.get("task", label) for key, entry in sets.items() if str(key) == label and isinstance(entry, dict)]
    return named[0] if named else label


def _known_keys(path: _Path, data: Any) -> list[str]:
    if path[:1] == ("datasets",) and len(path) > 1:
        return _fields_at(task_settings(_task_of(path[1], data)), path[2:])
    section: type[BaseModel] = Study
    inside = [part for part in path if isinstance(part, str)]
    sections: dict[str, type[BaseModel]] = {
        "model": ModelConfig,
        "training": TrainConfig,
        "schedule": Schedule,
        "objectives": Objective,
        "sampler": SamplerConfig,
        "scheduler": SchedulerConfig,
        "budget": Budget,
        "confirm": Confirm,
        "constraints": Constraint,
        "variants": Variant,
        "settings": DatasetSettings,
        "parts": Part,
        "published": Figure,
        "compare": Compare,
    }
    for part in inside:
        section = sections.get(part, section)
    ranges = {"choices": Choices, "float": FloatRange, "int": IntRange}
    if inside and inside[-1] not in sections and inside[0] in ("model", "training"):
        return sorted({*ranges, "log", "step", "when"})
    return list(section.model_fields)


def _fields_at(model: Any, path: _Path) -> list[str]:
    """Return the fields of `model`, or of the model at `path` inside it."""
    for part in path:
        model = model.model_fields[part].annotation
    return list(model.model_fields)


def _places(lines: Mapping[_Path, int]) -> dict[str, int]:
    """Return the line of every dotted path."""
    places: dict[str, int] = {}
    for path, line in lines.items():
        places.setdefault(_dotted(path), line)
    return places


def _place(dotted: str, places: Mapping[str, int]) -> int | None:
    """Return the line of a path, or of the nearest part above it that stands in the file."""
    for _ in range(_DEEPEST):
        if dotted in places:
            return places[dotted]
        dotted = dotted.rpartition(".")[0]
    return None


def _leaves(value: Any, path: _Path) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    else:
        yield _dotted(path), json.dumps(value, default=str)


def _dotted(path: _Path) -> str:
    return ".".join(map(str, path)) or "study file"


def _unique(faults: Sequence[Fault]) -> list[Fault]:
    by_text = {fault.render(""): fault for fault in faults}
    return sorted(by_text.values(), key=lambda fault: (fault.line or 0, fault.path))


def _near(path: Path) -> str:
    folder = path.parent
    names = [p.name for p in folder.glob("*.y*ml")] if folder.is_dir() else []
    return f" {did_you_mean(path.name, names)}" if names else ""


def _refuse(file: str, rule: str) -> NoReturn:
    raise StudyFileError(file, [Fault(path="study file", value=None, rule=rule)])
