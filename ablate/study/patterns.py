"""Regular expressions by which a number is read from what a command prints."""

from __future__ import annotations

import re

NUMBER_PLACEHOLDER = "{number}"
_NUMBER = (
    r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)(?![A-Za-z]))"
)
_NAME = r"(?:(?:val|train|test)_[^\s=(){}\[\]\\^$|*+?]*[^\s=(){}\[\]\\^$|*+?:,;.]|\w+)"  # such as val_mAP@0.5
_NAMED = re.compile(rf"({_NAME})=(.+)", re.DOTALL)
_SPLIT = re.compile(r"(?i)(?:(val|valid|validation|eval)|train|training)[^A-Za-z0-9]+(?=\w)")  # begins such a name
_BEGINS_WITH_NUMBER = re.compile(r"\s*(?:\{number\}|\((?!\?[aiLmsux]+\)))")


def compile_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern with one group, the number; `{number}` stands for a group of any number, also nan and inf.

    Raises ValueError if it is not a regular expression or has not one group.
    """
    whole = text.replace(f"({NUMBER_PLACEHOLDER})", NUMBER_PLACEHOLDER)
    try:
        found = re.compile(whole.replace(NUMBER_PLACEHOLDER, f"({_NUMBER})"))
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if found.groups != 1:
        rule = f"one group, in parentheses, is the number, or {NUMBER_PLACEHOLDER} stands for it"
        raise ValueError(f"has {found.groups} groups; {rule}")
    return found


def named_pattern(text: str) -> tuple[str, str]:
    """Return name and pattern of `NAME=PATTERN`; raise ValueError if it does not begin with a name.

    Where PATTERN begins with the number, the command prints the name too: `val_acc={number}` as a whole is the
    pattern. So it is without an equals sign behind the name, as in `val_acc: {number}`.
    """
    named = _NAMED.fullmatch(text)
    if named is not None and not _BEGINS_WITH_NUMBER.match(named[2]):
        return named[1], named[2]
    name = re.match(_NAME, text)
    if name is None:
        raise ValueError(f"begin with the name of the metric, as in 'val_acc={NUMBER_PLACEHOLDER}'")
    return name[0], text


def metric_name(printed: str) -> str:
    """Return the name that a study gives a metric which a program prints as `printed`: `val_acc` for `val/acc`."""
    if printed.startswith(("val_", "train_")):
        return printed
    split = _SPLIT.match(printed)
    rest = re.sub(r"[^\w@.%+-]+", "_", printed if split is None else printed[split.end() :]).strip("_")
    return f"{'val' if split is None or split[1] else 'train'}_{rest or 'objective'}"
