"""The text of a command with its placeholders, and the words that a trial's values make of it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from ablate.base.errors import TrialError
from ablate.study.command_text import PIECE, split

_VALUE, _SWITCHES = re.compile(r"\{[^{}?]+\}"), re.compile(r"(?:\{[^{}?]+\?[^{}]*\})+")
_OPTION = re.compile(r"--[\w-]+")
_QUOTED = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*")""")
SCRIPT_SUFFIXES = (".py", ".sh", ".bash", ".R", ".jl", ".lua", ".pl", ".js")


def script_of(command: str) -> str | None:
    """Return the script that a command runs, `train.py` of `python -u train.py`; None where that cannot be told."""
    words = split(command)
    first = next((k for k, word in enumerate(words) if word.endswith(SCRIPT_SUFFIXES)), None)
    if first is None or first == 0 or "{" in words[first] or not {"-m", "-c"}.isdisjoint(words[:first]):
        return None
    if "=" in words[first] or (words[first - 1].startswith("--") and "=" not in words[first - 1]):
        return None  # the value of an option
    return words[first]


def words_of(command: str, values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command with each placeholder replaced; each value is one argument, or part of one.

    A word of switches alone that are all off is left out. A value that begins with `-` and follows an option becomes
    part of it, as in `--name=-x`: programs take it for another option otherwise. Raises TrialError for a value that
    does not fit its placeholder.
    """
    words: list[str] = []
    for word in split(command):
        text = _filled(word, values, str)
        if _VALUE.fullmatch(word) and text.startswith("-") and words and _OPTION.fullmatch(words[-1]):
            words[-1] += f"={text}"
        elif text or not _SWITCHES.fullmatch(word):
            words.append(text)
    return words


def line_of(command: str, values: Mapping[str, Any]) -> str:
    """Return a command for a shell with each placeholder replaced by its quoted value; otherwise as `words_of`.

    A placeholder that stands in quotes gets a value that cannot end them.
    """
    dashed = re.sub(
        r"(--[\w-]+)[ \t]+(?=\{(\w+)(?::[^{}]*)?\})",
        lambda found: f"{found[1]}=" if _text(values.get(found[2], "")).startswith("-") else found[0],
        command,
    )
    parts = _QUOTED.split(dashed)
    quotes = {"'": lambda text: text.replace("'", "'\\''"), '"': lambda text: re.sub(r'([\\$`"])', r"\\\1", text)}
    return "".join(_filled(part, values, quotes.get(part[:1], shlex.quote)) for part in parts)


def _filled(text: str, values: Mapping[str, Any], quote: Any) -> str:
    return "".join(_pieces(text, values, quote))


def _pieces(text: str, values: Mapping[str, Any], quote: Any) -> Iterator[str]:
    position = 0
    for found in PIECE.finditer(text):
        yield text[position : found.start()]
        position = found.end()
        if found["name"] is None:
            yield found[0][0]
        elif found["name"] not in values:
            raise TrialError(f"the command uses {{{found['name']}}}, and this trial's `config` gives no value of it")
        elif found["switch"] is not None:
            yield found["switch"] if _is_on(found["name"], values[found["name"]]) else ""
        else:
            yield quote(_formatted(found["name"], values[found["name"]], found["form"]))
    yield text[position:]


def _formatted(name: str, value: Any, form: str | None) -> str:
    if not form:
        return _text(value)
    try:
        return format(value, form)
    except (ValueError, TypeError) as error:
        raise TrialError(f"the command's {{{name}:{form}}} does not fit {name} = {value!r}: {error}") from None


def _is_on(name: str, value: Any) -> bool:
    if value is None or isinstance(value, bool | int):
        return bool(value)
    raise TrialError(f"the command's switch {{{name}?…}} needs true or false, and {name} is {value!r}")


def _text(value: object) -> str:
    """Return a value as an argument; argparse takes a negative number with an exponent for an option."""
    if isinstance(value, float) and value < 0:
        return format(Decimal(repr(value)), "f")
    return value if isinstance(value, str) else json.dumps(value)
