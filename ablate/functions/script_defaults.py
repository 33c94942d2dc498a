"""The options of a command's script, read from its source: their defaults, choices and types; nothing is run."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.study.command_text import split

LARGEST = 1_000_000  # bytes of a script that is read
_WHOLE = re.compile(r"\{(\w+)(?:\?(--?[\w-]+)|:[^{}]*)?\}")  # a word that is one setting or one switch
_JOINED = re.compile(r"(--?[\w-]+)=\{(\w+)(?::[^{}]*)?\}")
_TYPES: dict[str, type] = {"int": int, "float": float, "str": str}


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An option of a script: the value that it has without the option, and its choices if it has a fixed list."""

    default: Any
    choices: tuple[Any, ...] = ()


def script_defaults(command: str) -> dict[str, Argument]:
    """Return the option of each setting of a command whose default its Python script gives to argparse or click.

    A setting belongs to the option before it (`--lr {lr}`, `--lr={lr}`), a switch to its own (`{ema?--ema}`), and a
    positional one to the argument of its name. An option with two defaults, or with one that is computed, has none.
    """
    words = split(command)
    script = _script(words)
    known = {} if script is None else dict(_arguments(script))
    options = {name: argument for name, argument in known.items() if argument is not None}
    found: dict[str, Argument] = {}
    for before, word in zip(["", *words], words, strict=False):
        whole, joined = _WHOLE.fullmatch(word), _JOINED.fullmatch(word)
        if whole is not None and whole[2] and whole[2] in options:
            found[whole[1]] = Argument(default=False)  # the command without it
        elif whole is not None and not whole[2]:
            option = before if before.startswith("-") else whole[1]
            found |= {whole[1]: options[option]} if option in options else {}
        elif joined is not None:
            found |= {joined[2]: options[joined[1]]} if joined[1] in options else {}
    return found


def _script(words: list[str]) -> ast.Module | None:
    """Return the source of the first Python file among the words, or of the module behind `-m`."""
    for before, word in zip(["", *words], words, strict=False):
        names = [word] if word.endswith(".py") else []
        if before == "-m":
            names = [f"{word.replace('.', '/')}{end}" for end in (".py", "/__main__.py")]
        for file in filter(Path.is_file, map(Path, names)):
            try:
                return ast.parse(file.read_bytes()) if file.stat().st_size <= LARGEST else None
            except (OSError, SyntaxError, ValueError):
                return None
    return None


def _arguments(script: ast.Module) -> Iterator[tuple[str, Argument | None]]:
    """Yield each option and positional argument; None for one whose default is not known, or not the only one."""
    constants = {
        target.id: node.value
        for node in script.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [node for node in ast.walk(script) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    given = {k.arg: k.value for c in calls if _called(c) == "set_defaults" for k in c.keywords}
    known: dict[str, Argument | None] = {}
    for call in (each for each in calls if _called(each) in ("add_argument", "option", "argument")):
        names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        words = {k.arg: k.value for k in call.keywords if k.arg is not None}
        long = next((name for name in names if name.startswith("--")), names[0] if names else "")
        dest = str(_read(words.get("dest"), {}) or long.lstrip("-").replace("-", "_"))
        found = _argument(words | ({"default": given[dest]} if dest in given else {}), constants)
        for name in names:
            known[name] = found if known.get(name, found) == found else None
    yield from known.items()


def _called(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr


def _argument(words: Mapping[str, ast.expr], constants: Mapping[str, ast.expr]) -> Argument | None:
    """Return an option by the keywords of its call, or None if it is a list or its default is none or not constant."""
    switch = str(_read(words.get("action"), {})).startswith("store_") or _read(words.get("is_flag"), {}) is True
    if switch:
        return Argument(default=False)
    kind = words.get("type")
    convert = _TYPES.get(kind.id) if isinstance(kind, ast.Name) else None
    default = _read(words.get("default"), constants)
    if not isinstance(default, bool | int | float | str) or _read(words.get("nargs"), {}) not in (None, "?"):
        return None
    try:
        typed = convert(default) if convert is not None and not isinstance(default, bool) else default
    except ValueError:
        return None
    if isinstance(typed, float) and not math.isfinite(typed):
        return None
    choices = _read(words.get("choices"), constants)
    return Argument(default=typed, choices=tuple(choices) if isinstance(choices, list | tuple) else ())


def _read(node: ast.expr | None, constants: Mapping[str, ast.expr]) -> Any:
    """Return the value of a literal, or of a module's constant that is one; otherwise None."""
    if isinstance(node, ast.Name):
        node = constants.get(node.id)
    try:
        return None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
