"""`ablate wrap`: search the settings of a command without a study file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ablate.base.errors import RequestError, StudyFileError, each_once
from ablate.core.objectives import is_higher_better, unknown_direction
from ablate.functions.command_words import placeholders
from ablate.study import parse_study
from ablate.study.patterns import compile_pattern, named_pattern
from ablate.study.yaml_text import read_scalar, write_yaml

PART_SEEDS = 3  # of a comparison, without --replicates

_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.+)")
_WHOLE = re.compile(r"[-+]?[0-9]+")
_NUMBER_FORMS = tuple("bcdeEfFgGnoxX%")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def study_text(
    command: str,
    settings: Sequence[str],
    *,
    name: str,
    metrics: Sequence[str],
    tests: Sequence[str] = (),
    epoch: str | None = None,
    parts: Sequence[str] = (),
    maximize: bool | None = None,
    epochs: int = 1,
    trials: int = 24,
    replicates: int | None = None,
    confirm: int | None = None,
    shell: bool = False,
) -> str:
    """Return the study file of a wrapped command.

    Raises RequestError for settings, metrics and parts in another form, and StudyFileError for what no study can be.
    """
    forms = placeholders(command)
    config = each_once(_setting(text, forms) for text in settings)
    searched = named("--metric", metrics[0])[0]
    higher = is_higher_better(searched, ()) if maximize is None else maximize
    if higher is None:
        raise RequestError(f"{unknown_direction(searched)}: type --maximize or --minimize")
    content = command_content(
        command, config, name=name, metrics=metrics, tests=tests, epoch=epoch,
        direction="maximize" if higher else "minimize", epochs=epochs, trials=trials, replicates=replicates or 1,
        confirm=confirm, shell=shell,
    )  # fmt: skip
    if parts:
        removed = each_once(_part(text, forms) for text in parts)
        content["config"] = {part: True for part, value in removed.items() if value is False} | config
        content["parts"] = {part: {"config": {part: value}} for part, value in removed.items()}
        content["replicates"] = replicates or PART_SEEDS
        names = [named("--metric", text)[0] for text in metrics] + [named("--test-metric", text)[0] for text in tests]
        content["compare"] = {"baseline": "complete", "metrics": names}
        del content["budget"], content["confirm"]
    text = write_yaml(content)
    check_text(text, "ablate wrap")
    return text


def check_text(text: str, asked_by: str) -> None:
    """Raise StudyFileError, in the name of the command that was typed, if `text` is no study file."""
    try:
        parse_study(text, asked_by)
    except StudyFileError as error:
        raise StudyFileError(asked_by, [replace(fault, line=None) for fault in error.faults]) from None


def command_content(
    command: str,
    config: Mapping[str, Any],
    *,
    name: str,
    metrics: Sequence[str],
    direction: str,
    tests: Sequence[str] = (),
    epoch: str | None = None,
    epochs: int = 1,
    trials: int = 24,
    replicates: int = 1,
    confirm: int | None = None,
    shell: bool = False,
) -> dict[str, Any]:
    """Return the keys of a study file that tunes a command; raise RequestError for a metric in another form."""
    read = [named("--metric", text) for text in metrics] + [named("--test-metric", text) for text in tests]
    if confirm is not None and not tests:
        raise RequestError("--confirm reads a metric of the test split: name it by --test-metric 'test_…=PATTERN'")
    trainable: dict[str, Any] = {"command": command}
    patterns = each_once(read)
    trainable |= {"metric": metrics[0]} if len(read) == 1 else {"metrics": patterns}
    trainable |= ({"epoch": epoch} if epoch is not None else {}) | ({"shell": True} if shell else {})
    return {
        "study": name,
        "trainable": trainable,
        "config": dict(config),
        "epochs": epochs,
        "objectives": [{"metric": read[0][0], "direction": direction}],
        "replicates": replicates,
        "budget": {"trials": trials},
        "confirm": None if confirm is None else {"replicates": confirm},
    }


def named(option: str, text: str) -> tuple[str, str]:
    """Return name and pattern of `NAME=PATTERN`; raise RequestError if it is not that."""
    prefixes = ("test_",) if option == "--test-metric" else ("val_", "train_")
    try:
        name, pattern = named_pattern(text)
        compile_pattern(pattern)
    except ValueError as error:
        raise RequestError(f"{option} {text!r}: {error}") from None
    if not name.startswith(prefixes):
        known = " or ".join(f"{prefix}…" for prefix in prefixes)
        raise RequestError(f"{option} {text!r}: a name begins with {known}, as in '{prefixes[0]}{name}={pattern}'")
    return name, pattern


def _part(text: str, forms: Mapping[str, str]) -> tuple[str, Any]:
    """Return name and value without the part of `NAME`, a switch, or `NAME=VALUE`."""
    match = _SETTING.fullmatch(text)
    if match is not None:
        return match[1], _value(match[2], forms.get(match[1], ""))
    if not text.isidentifier():
        raise RequestError(f"--parts {text!r}: write NAME of a switch {{NAME?--option}}, or NAME=VALUE without it")
    return text, False


def _setting(text: str, forms: Mapping[str, str]) -> tuple[str, Any]:
    """Return name and value or range of `name=value`, `name=low:high[:log]` or `name=a,b,c`."""
    match = _SETTING.fullmatch(text)
    if match is None:
        raise RequestError(f"{text!r}: write NAME=VALUE, NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C")
    name, value = match.groups()
    form = forms.get(name, "")
    if "," in value:
        parts = value.split(",")
        if "" in parts:
            raise RequestError(f"{text!r}: a value between commas is empty; leave the comma out")
        return name, {"choices": [_value(part, form) for part in parts]}
    parts = value.split(":")
    if len(parts) == 1:
        return name, _value(value, form)
    if len(parts) > 3 or parts[2:] not in ([], ["log"]) or not all(_NUMBER.fullmatch(part) for part in parts[:2]):
        rule = "a range is NAME=LOW:HIGH or NAME=LOW:HIGH:log, of numbers. A text with a colon needs a study file"
        raise RequestError(f"{text!r}: {rule} (ablate new --command)")
    whole = all(_WHOLE.fullmatch(part) for part in parts[:2])
    bounds = [int(part) if whole else float(part) for part in parts[:2]]
    return name, {"int" if whole else "float": bounds} | ({"log": True} if parts[2:] else {})


def _value(text: str, form: str) -> Any:
    """Return a truth value, a number that is written as it was typed, or the text: 007, 1.10 and 1e3 are text.

    Every number is one if the command writes it in the form of a number, as in {lr:.2e}.
    """
    value = read_scalar(text)
    if form[-1:] in _NUMBER_FORMS and _NUMBER.fullmatch(text):
        return value
    return value if isinstance(value, bool | int | float) and json.dumps(value) == text else text
