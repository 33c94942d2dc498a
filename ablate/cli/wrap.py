"""`ablate wrap`: search the settings of a command without a study file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from ablate.errors import RequestError

_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.+)")
_WHOLE = re.compile(r"[-+]?[0-9]+")


def study_text(
    command: str,
    settings: list[str],
    *,
    name: str,
    metric: str,
    maximize: bool,
    epochs: int,
    trials: int,
    replicates: int,
    shell: bool,
) -> str:
    """Return the study file of a wrapped command; raise RequestError for a setting or metric in another form."""
    config = dict(_setting(text) for text in settings)
    direction = "maximize" if maximize else "minimize"
    content = command_content(
        command, config, name=name, metric=metric, direction=direction, epochs=epochs, trials=trials,
        replicates=replicates, shell=shell,
    )  # fmt: skip
    return yaml.safe_dump(content, sort_keys=False)


def command_content(
    command: str,
    config: Mapping[str, Any],
    *,
    name: str,
    metric: str,
    direction: str,
    epochs: int = 1,
    trials: int = 24,
    replicates: int = 1,
    shell: bool = False,
) -> dict[str, Any]:
    """Return the keys of a study file that tunes a command; raise RequestError for a metric in another form."""
    return {
        "study": name,
        "trainable": {"command": command, "metric": metric} | ({"shell": True} if shell else {}),
        "config": dict(config),
        "epochs": epochs,
        "objectives": [{"metric": metric_name(metric), "direction": direction}],
        "replicates": replicates,
        "budget": {"trials": trials},
        "confirm": None,
    }


def metric_name(metric: str) -> str:
    """Return the name with which `NAME=(PATTERN)` begins; raise RequestError if there is none."""
    named = re.match(r"\w+", metric)
    if named is None:
        raise RequestError(f"--metric {metric!r}: begin with the name of the metric, as in 'val_acc=([0-9.]+)'")
    return named[0]


def _setting(text: str) -> tuple[str, Any]:
    """Return name and value or range of `name=value`, `name=low:high[:log]` or `name=a,b,c`."""
    match = _SETTING.fullmatch(text)
    if match is None:
        raise RequestError(f"{text!r}: write NAME=VALUE, NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C")
    name, value = match.groups()
    if "," in value:
        return name, {"choices": [_value(part) for part in value.split(",")]}
    parts = value.split(":")
    if len(parts) == 1:
        return name, _value(value)
    bounds = [_value(part) for part in parts[:2]]
    if len(parts) > 3 or parts[2:] not in ([], ["log"]) or not all(isinstance(b, int | float) for b in bounds):
        raise RequestError(f"{text!r}: a range is NAME=LOW:HIGH or NAME=LOW:HIGH:log, of numbers")
    whole = all(isinstance(bound, int) for bound in bounds)
    return name, {"int" if whole else "float": bounds} | ({"log": True} if parts[2:] else {})


def _value(text: str) -> Any:
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
