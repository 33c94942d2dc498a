"""YAML 1.2 as study files use it: reading with the line of every path, and writing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import yaml
from yaml.composer import Composer

from ablate.base.errors import Fault, StudyFileError
from ablate.base.redaction import error_text

TWICE = "this key occurs twice"
LONGEST_NUMBER = 100  # digits
Path = tuple[str | int, ...]


class _Yaml12(Composer, yaml.CSafeLoader):
    """PyYAML with the scalars of YAML 1.2: `1e-3` is a number, `no` is text.

    libyaml finds the words, five times as fast; it would also compose them, and overflow the stack of a deep nesting.
    """

    def __init__(self, text: str) -> None:
        Composer.__init__(self)
        try:
            yaml.CSafeLoader.__init__(self, text)
        except UnicodeEncodeError:
            raise yaml.YAMLError("this text holds half of a character (a lone surrogate)") from None


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
_Yaml12.yaml_implicit_resolvers = {}
for _name, _pattern in _SCALARS.items():
    _Yaml12.add_implicit_resolver(_TAG + _name, _pattern, None)


def _construct_int(loader: _Yaml12, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    if len(text) > LONGEST_NUMBER:
        raise yaml.constructor.ConstructorError(None, None, "this number has too many digits", node.start_mark)
    return int(text)


def _construct_float(loader: _Yaml12, node: yaml.ScalarNode) -> float:
    return _float(str(loader.construct_scalar(node)))


def _float(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


_Yaml12.add_constructor(_TAG + "int", _construct_int)
_Yaml12.add_constructor(_TAG + "float", _construct_float)


class _Writer(yaml.SafeDumper):
    """Quotes text that `_Yaml12` would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def check_simple_key(self) -> bool:
        return True  # PyYAML reads `{? long key : 1}`, its other form, as a mapping of a mapping

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if text.isprintable() else '"'  # other styles read a break of another kind as "\n"
        return self.represent_scalar(_TAG + "str", text, style=style)


_Writer.yaml_implicit_resolvers = _Yaml12.yaml_implicit_resolvers
_Writer.add_representer(str, _Writer.represent_text)


def write_yaml(data: Mapping[str, Any]) -> str:
    """Return `data` as YAML; `read_yaml` is the inverse."""
    return yaml.dump(data, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)


def flow_yaml(name: str, value: Any) -> str:
    """Return a key and its value as YAML on one line."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": math.inf}
    return str(yaml.dump({name: value}, Dumper=_Writer, default_flow_style=True, **options)).rstrip("\n")[1:-1]


def read_scalar(text: str) -> Any:
    """Return the number, truth value, null or text that one word means in a study file, quoted or not."""
    kind = next((kind for kind, pattern in _SCALARS.items() if text and pattern.match(text)), "str")
    quoted = text[:1] in ("'", '"')
    try:
        loader = _Yaml12(text if quoted else "")
        node = loader.get_single_node() if quoted else yaml.ScalarNode(_TAG + kind, text)
        value = loader.construct_document(node) if isinstance(node, yaml.ScalarNode) else text
    except yaml.YAMLError:
        return text
    return text if isinstance(value, float) and not math.isfinite(value) else value


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Return `name=value` for each setting, as `ablate enqueue` reads it; a text is quoted if it reads as a number."""
    return [
        f"{name}={value if isinstance(value, str) and read_scalar(value) == value else json.dumps(value)}"
        for name, value in values.items()
    ]


def read_yaml(text: str, file: str, found: list[Fault] | None = None) -> tuple[dict[str, Any], dict[Path, int]]:
    """Return the mapping in `text` and the line of every path; raise StudyFileError naming `file`.

    Where keys that occur twice are the only faults, these are added to `found`; the last one counts.
    """
    loader: _Yaml12 | None = None
    try:
        loader = _Yaml12(text)  # already refuses control characters
        node = loader.get_single_node()
        if node is None:
            refuse(file, "the file is empty; it needs at least `study:` and `datasets:`")
        lines: dict[Path, int] = {}
        faults = list(_walk(node, (), lines, set()))
        if faults and (found is None or any(fault.rule != TWICE for fault in faults)):
            raise StudyFileError(file, faults)
        if found is not None:
            found += faults
        data = loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or error_text(error)
        line = mark.line + 1 if mark else None
        raise StudyFileError(file, [Fault(path="YAML", rule=str(problem), line=line)]) from None
    except RecursionError:
        refuse(file, "nested too deeply")
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(data, dict):
        refuse(file, "a study file is a mapping; it needs at least `study:` and `datasets:`")
    return data, lines


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], above: set[int]) -> Iterator[Fault]:
    """Record the line of every path; yield constructs that YAML allows and study files do not use."""
    line = lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in above or len(lines) > 100_000:
        yield Fault(path=dotted(path), rule="too large, or an alias of itself", line=line)
        return
    yield from _node_faults(node, path)
    above = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                yield Fault(path=dotted(path), rule="a key is one word of text", line=line)
                continue
            below = (*path, str(key.value))
            lines[below] = line
            yield from _node_faults(key, below)
            if key.value == "<<":
                yield Fault(path=dotted(below), rule="YAML 1.2 has no merge key: write the settings out", line=line)
            if key.value in seen:
                yield Fault(path=dotted(below), rule=TWICE, line=line)
            seen.add(key.value)
            yield from _walk(value, below, lines, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _walk(value, (*path, index), lines, above)


def _node_faults(node: yaml.Node, path: Path) -> Iterator[Fault]:
    """Yield a tag that is not one of JSON's types or does not fit its value, and a number that is too large."""
    place, line = dotted(path), node.start_mark.line + 1
    kind = node.tag.removeprefix(_TAG)
    if kind not in (("str", *_SCALARS) if isinstance(node, yaml.ScalarNode) else ("seq", "map")):
        yield Fault(path=place, rule=f"the tag {node.tag[:80]!r} does not fit; leave it out", line=line)
    elif kind in _SCALARS and not _SCALARS[kind].match(node.value):
        yield Fault(path=place, value=node.value, rule=f"this is not of the type that its tag names, {kind}", line=line)
    elif kind == "float" and node.value[-1].isdecimal() and math.isinf(_float(node.value)):
        rule = "this is too large for a number; quote it if it is text"
        yield Fault(path=place, value=node.value, rule=rule, line=line)


def dotted(path: Path) -> str:
    """Return a path in the notation of messages."""
    return ".".join(map(str, path)) or "study file"


def refuse(file: str, rule: str) -> NoReturn:
    """Raise StudyFileError for the file as a whole."""
    raise StudyFileError(file, [Fault(path="study file", rule=rule)])
