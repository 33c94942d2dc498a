"""`ablate wrap`: search the settings of a command without a study file."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from ablate.base.errors import RequestError, StudyFileError, each_once
from ablate.cli.foreign import range_of
from ablate.core.objectives import is_higher_better, unknown_direction
from ablate.functions.script_defaults import script_defaults
from ablate.study import parse_study
from ablate.study.command_text import placeholders
from ablate.study.patterns import compile_pattern, metric_name, named_pattern
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
    limits: Mapping[str, Any] | None = None,
    replicates: int | None = None,
    confirm: int | None = None,
    shell: bool = False,
) -> str:
    """Return the study file of a wrapped command; `limits` are those of its search (`limits_of`).

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
        direction="maximize" if higher else "minimize", epochs=epochs, limits=limits, replicates=replicates or 1,
        confirm=confirm, shell=shell,
    )  # fmt: skip
    if not parts:
        content["config"] = _with_script_defaults(command, config)
    elif limits:
        raise RequestError("--trials and --time limit a search; with --parts every row is trained: leave them out")
    else:
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
    limits: Mapping[str, Any] | None = None,
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
        "budget": dict(limits or {"trials": 24}),
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
        printed = re.match(r"[^\s=:({]+", text)
        own = metric_name(printed[0] if pattern == text and printed else name)
        bare = own.removeprefix("val_")
        own = next((each for each in (own, bare) if each.startswith(prefixes)), prefixes[0] + bare)
        raise RequestError(f"{option} {text!r}: a name begins with {known}, as in '{own}={pattern}'")
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
    """Return name and value or range of `name=value`, `name=low:high[:log]` or `name=a,b,c`, perhaps with `@value`."""
    match = _SETTING.fullmatch(text)
    if match is None:
        raise RequestError(f"{text!r}: write NAME=VALUE, NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C")
    name, value = match.groups()
    form = forms.get(name, "")
    given, mark, default = value.rpartition("@")
    if "," in (given or value):
        return name, _choices(text, given or value, form) | ({"default": _value(default, form)} if mark else {})
    if ":" not in value:
        return name, _value(value, form)
    parts = (given or value).split(":")
    numbers = [*parts[:2], *([default] if mark else [])]
    if len(parts) > 3 or parts[2:] not in ([], ["log"]) or not all(_NUMBER.fullmatch(part) for part in numbers):
        rule = "a range is NAME=LOW:HIGH or NAME=LOW:HIGH:log, of numbers, with @VALUE for your own. A text"
        raise RequestError(f"{text!r}: {rule} with a colon needs a study file (ablate new --command)")
    whole = all(_WHOLE.fullmatch(part) for part in parts[:2])
    low, high, *own = [int(n) if _WHOLE.fullmatch(n) and whole else float(n) for n in numbers]
    log = {"log": True} if parts[2:] else {}
    return name, {"int" if whole else "float": [low, high]} | log | ({"default": own[0]} if own else {})


def _choices(text: str, value: str, form: str) -> dict[str, Any]:
    parts = value.split(",")
    if "" in parts:
        raise RequestError(f"{text!r}: a value between commas is empty; leave the comma out")
    return {"choices": [_value(part, form) for part in parts]}


def _with_script_defaults(command: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with the script's own values as the defaults of ranges that have none, if all are known."""
    lacking = {name: spec for name, spec in config.items() if isinstance(spec, dict) and "default" not in spec}
    known = script_defaults(command)
    if not lacking.keys() & known.keys():
        return dict(config)
    fitting = {name: fit(spec, known[name].default) if name in known else None for name, spec in lacking.items()}
    faults = [
        f"{name} is {known[name].default} in the script, outside of what is searched"
        if name in known
        else f"the script tells no value of {name}"
        for name, found in fitting.items()
        if found is None
    ]
    if faults:
        how = "To try your settings first, write NAME=RANGE@VALUE"
        logging.getLogger("ablate").warning("%s. %s", "; ".join(faults), how)
        return dict(config)
    return {name: fitting.get(name) or spec for name, spec in config.items()}


def fit(spec: Mapping[str, Any], default: Any) -> dict[str, Any] | None:
    """Return a range with a default, in the form of its choices; None if it does not contain it."""
    try:
        read = range_of(spec)
    except ValidationError:  # refused with its reason when the study is read
        return None
    same = [each for each in spec.get("choices", ()) if isinstance(each, str) and read_scalar(each) == default]
    value = same[0] if same else default
    return {**spec, "default": read.read(value)} if read.contains(value) else None


def _value(text: str, form: str) -> Any:
    """Return a truth value, a number that is written as it was typed, or the text: 007, 1.10 and 1e3 are text.

    Every number is one if the command writes it in the form of a number, as in {lr:.2e}.
    """
    value = read_scalar(text)
    if form[-1:] in _NUMBER_FORMS and _NUMBER.fullmatch(text):
        return value
    return value if isinstance(value, bool | int | float) and json.dumps(value) == text else text
