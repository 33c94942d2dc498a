"""Write the parts of docs/reference that are made from the code: `python docs/generated.py`.

The command line is from Typer, the study file from its JSON Schema, the Python interface from the source. Each function
returns Markdown, which stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from generated_python import python, python_parts, python_records
from typer.main import get_command

from ablate.base import errors
from ablate.cli.app import app
from ablate.core.config import TaskConfig
from ablate.core.registry import TASKS
from ablate.core.registry import task_settings as settings_of
from ablate.study.schema import described_schema, json_schema

JSON_SCHEMA = json.loads((Path(__file__).parent / "json_schema.json").read_text())
MARKER = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)


def filled(text: str) -> str:
    """Return a page with each generated part made anew; raise KeyError for a name that is not known."""
    return MARKER.sub(lambda found: f"{found[1]}\n{PAGES[found[2]]().strip()}\n\n{found[3]}", text)


def running_commands() -> str:
    """Return one section for each command that runs a study: usage, description, example, arguments and options."""
    return "\n".join(text for text, runs in _all_commands() if runs)


def other_commands() -> str:
    """Return the same for all other commands."""
    return "\n".join(text for text, runs in _all_commands() if not runs)


def _all_commands() -> Iterator[tuple[str, bool]]:
    top = get_command(app)
    return _commands(top, top.make_context("ablate", [], resilient_parsing=True))


def _commands(group: Any, context: Any) -> Iterator[tuple[str, bool]]:
    for name, command in group.commands.items():
        inner = command.make_context(name, [], parent=context, resilient_parsing=True)
        if hasattr(command, "commands"):
            yield from _commands(command, inner)
        else:
            yield _command(command, inner), any("--executor" in each.opts for each in command.params)


def _command(command: Any, context: Any) -> str:
    example = command.epilog.removeprefix("Example: ")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"## `{context.command_path}`", "", _plain(command.help), "", "```console", f"$ {example}", "```", ""]
    lines += [f"Usage: `{usage}`", "", "| argument or option | what it sets |", "|---|---|"]
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        names, text = record if record else (parameter.make_metavar(context), getattr(parameter, "help", "") or "")
        lines.append(f"| {_code(names)} | {_plain(text)} |")
    return "\n".join([*lines, ""])


def study_file() -> str:
    """Return one section for each mapping of a study file: its keys, their types, defaults and meaning."""
    schema = json.loads(json_schema())
    parts = {n: part for n, part in schema["$defs"].items() if "properties" in part}
    for value in schema["properties"].values():
        if not value.get("description") and "$ref" in value:
            value["description"] = parts[value["$ref"].rpartition("/")[2]].get("description", "")
    top = schema | {"description": "The keys at the top of the file."}
    return "\n".join(_section(name, part) for name, part in {"study file": top, **parts}.items())


def task_settings() -> str:
    """Return one section for each kind of task: the settings that the entry of its data set may have."""
    tasks: dict[type[TaskConfig], list[str]] = {}
    for name in TASKS.names():
        tasks.setdefault(settings_of(name), []).append(name)
    parts = []
    for model, names in tasks.items():
        schema = described_schema(model)
        named = ", ".join(f"`{name}`" for name in names)
        about = {"description": f"{schema['description']} Tasks: {named}."}
        parts.append(_section(model.__name__, schema | about))
        parts += [_section(inner, part) for inner, part in schema.get("$defs", {}).items()]
    return "\n".join(parts)


def _section(name: str, part: dict[str, Any]) -> str:
    lines = [f"## {name}", "", part.get("description", ""), "", "| key | value | default | what it sets |"]
    lines += ["|---|---|---|---|"]
    required = part.get("required", [])
    for key, value in part["properties"].items():
        default = "required" if key in required else _default(value)
        lines.append(f"| `{key}` | {_kind(value)} | {default} | {_plain(value.get('description', ''))} |")
    return "\n".join([*lines, ""])


def _default(value: dict[str, Any]) -> str:
    if value.get("default") is None:
        return ""
    text = json.dumps(value["default"])
    return _code(text) if len(text) <= 40 and text != "{}" else ""


def _kind(value: dict[str, Any]) -> str:
    """Return what a JSON Schema allows, in words, with links to the sections of other mappings."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in value:
            kinds = dict.fromkeys(_kind(each) for each in value[key] if each.get("type") != "null")
            return " or ".join(kinds)
    if isinstance(value.get("type"), list):
        return " or ".join(_kind(value | {"type": kind}) for kind in value["type"])
    if "enum" in value or "const" in value:
        return ", ".join(_code(str(each)) for each in value.get("enum", [value.get("const")]))
    if value.get("type") == "array":
        items = value.get("prefixItems") or [value.get("items", {})]
        return "list of " + " and ".join(dict.fromkeys(_kind(each) for each in items))
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"mapping of name to {_kind(inner)}" if isinstance(inner, dict) and inner else "mapping"
    words = {
        "null": "null",
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "`true` or `false`",
    }
    return words.get(value.get("type", ""), "any value") + _bounds(value)


def _bounds(value: dict[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {value[key]:,}" for key, sign in signs.items() if key in value]
    return f" {', '.join(found)}" if found else ""


def json_output() -> str:
    """Return one section for each object that a command prints with `--json`: its keys, their types and meaning."""
    parts = []
    for name, part in JSON_SCHEMA["$defs"].items():
        lines = [f"## {name}", "", part.get("description", ""), ""]
        if part.get("properties"):
            kinds = {key: (_kind(value), value.get("description", "")) for key, value in part["properties"].items()}
            rows = [f"| `{key}` | {kind} | {text.replace('|', '')} |" for key, (kind, text) in kinds.items()]
            lines += ["| key | value | what it holds |", "|---|---|---|", *rows]
        else:
            lines.append(f"Value: {_kind(part)}.")
        parts.append("\n".join([*lines, ""]))
    return "\n".join(parts)


def exit_codes() -> str:
    """Return the error tree as a table: name, exit code, meaning."""
    lines = ["| error | exit code | meaning |", "|---|---:|---|"]
    for error in _tree(errors.AblateError):
        meaning = (error.__doc__ or "").split("\n")[0]
        lines.append(f"| `{error.__name__}` | {error.exit_code} | {_plain(meaning)} |")
    return "\n".join(lines)


def _tree(error: type[errors.AblateError]) -> Iterator[type[errors.AblateError]]:
    yield error
    for inner in error.__subclasses__():
        if inner.__module__ == errors.__name__:
            yield from _tree(inner)


def _plain(text: str) -> str:
    """Return `text` on one line, safe in a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("[", "\\[").replace("<", "&lt;").replace("*", "\\*")


def _code(text: str) -> str:
    return f"`{' '.join(text.split())}`".replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "running_commands": running_commands,
    "other_commands": other_commands,
    "study_file": study_file,
    "task_settings": task_settings,
    "exit_codes": exit_codes,
    "json_output": json_output,
    "python": python,
    "python_records": python_records,
    "python_parts": python_parts,
}

if __name__ == "__main__":
    for page in Path(__file__).parent.rglob("*.md"):
        page.write_text(filled(page.read_text()))
