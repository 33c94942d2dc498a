"""Rules for text that others wrote (names, errors, events of a user's code), and settings in words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NAME_RULE = "a name has 1 to 63 letters a to z, digits, '-' or '_', and starts with a letter or digit"
LONGEST_NAME = 200  # bytes of a metric's name
LONGEST_TEXT = 20_000  # characters of an error, a traceback or an event's text that a ledger keeps

# The control characters of ASCII and Latin-1 except tab and newline, characters that change the direction of writing,
# line and paragraph separators, and surrogates, which cannot be encoded.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}(-scale-[0-9.e-]+)?")  # the ending is that of a scaled study
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    r"""Return `text` with every character that could control a terminal escaped, such as `\x1b`."""
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def counted(number: float, noun: str) -> str:
    """Return `1 trial`, `1,000 trials`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def at_most(texts: Sequence[str], most: int, where: str = "") -> list[str]:
    """Return the first `most` of `texts`, and if there are others, how many and where to find them."""
    more = f"and {len(texts) - most:,} more{where and f': {where}'}"
    return [*texts] if len(texts) <= most else [*texts[:most], more]


def one_printable_line(text: str) -> str:
    r"""Return `text` by `printable`, with its tabs and newlines escaped too."""
    return printable(text).replace("\t", r"\t").replace("\n", r"\n")


def storable(text: str, limit: int = LONGEST_TEXT) -> str:
    """Return `text` in a form that every database stores; beyond `limit` characters its middle is cut out."""
    clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if len(clean) <= limit:
        return clean
    mark = f"\n… {len(clean) - limit:,} characters left out …\n"
    start = (limit - len(mark)) // 2
    return clean[:start] + mark + clean[len(clean) - (limit - len(mark) - start) :]


def spreadsheet_cell(text: str) -> str:
    """Return `text` as a CSV cell that no spreadsheet reads as a formula; a number is unchanged."""
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def short_name(parameter: str) -> str:
    """Return the last part of a dotted name, in words."""
    return parameter.rsplit(".", 1)[-1].replace("_", " ")


def setting(name: str, value: Any) -> str:
    """Return one setting as `width 48`; numbers in three digits."""
    if value == "none" or (name.endswith(".mlp") and value == 0):
        return f"no {short_name(name)}"
    if isinstance(value, bool):
        return f"{short_name(name)} {'yes' if value else 'no'}"
    return f"{short_name(name)} {value:.3g}" if isinstance(value, float) else f"{short_name(name)} {value}"


def settings_text(values: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the settings of `names` that `values` has, separated by dots."""
    return " · ".join(setting(name, values[name]) for name in names if values.get(name) is not None)


def finite(value: Any) -> Any:
    """Return plain values as JSON has them: NaN and infinity become None, and a tuple a list, at any depth."""
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()


def is_name(value: object) -> bool:
    """Return whether a value can be the name of a study: then it is a folder's name too."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def metric_name_fault(name: str) -> str:
    """Return why a text cannot be a metric's name, or an empty text."""
    if name.strip() and one_printable_line(name) == name and len(name.encode(errors="replace")) <= LONGEST_NAME:
        return ""
    return f"a metric's name is printable text of at most {LONGEST_NAME} bytes"
