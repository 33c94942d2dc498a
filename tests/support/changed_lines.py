"""Counts the lines by which a script was changed, function by function."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

FUNCTIONS, REST = ("train", "test"), "rest"


@dataclass(frozen=True)
class Count:
    """Lines that are not blank: `written` ones are new or changed, `removed` ones have nothing in their place."""

    written: int
    removed: int


def count_sections(before: str, after: str) -> Mapping[str, Count]:
    """Return the counts of the functions `train` and `test`, and of the rest with its imports and classes."""
    old, new = _sections(before), _sections(after)
    return {part: count(old[part], new[part]) for part in old}


def count(before: list[str], after: list[str]) -> Count:
    """Return how many lines were written and removed."""
    written = removed = 0
    for kind, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            written, removed = written + (m - k), removed + max((j - i) - (m - k), 0)
    return Count(written, removed)


def _sections(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in (*FUNCTIONS, REST)}
    places = {
        line: node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    for number, line in enumerate(text.splitlines(), 1):
        part = places.get(number, REST)
        if part != REST and not found[part]:
            found[REST].append(f"<{part}>")  # where the function is
        if line.strip():
            found[part].append(line)
    return found
