"""`ablate new --from`: tells the formats apart, and reads a sweep of W&B and an Optuna study."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.base.errors import RequestError
from ablate.cli.foreign import Foreign, Setting, escaped
from ablate.cli.foreign_hydra import of_hydra
from ablate.cli.foreign_katib import of_katib
from ablate.study.file import read_text
from ablate.study.yaml_text import read_yaml

KNOWN = "a W&B sweep (method, parameters), a Katib Experiment, a file with hydra.sweeper, or sqlite:///FILE of Optuna"
SPREAD = 3  # standard deviations on each side of the mean that stand for a normal distribution, as in Katib
_KEYS = {"value", "values", "distribution", "probabilities", "min", "max", "q", "mu", "sigma", "a", "b"}
_DISTRIBUTION = re.compile(
    r"(?P<q>q_)?(?P<int>int_)?(?P<inv>inv_)?(?P<log>log_)?(?P<form>uniform|normal|beta)(?P<values>_values)?"
)
_BEFORE = {"args": "--", "args_no_hyphens": "", "args_append_hydra": "+", "args_override_hydra": "++"}


def read_source(source: str) -> Foreign:
    """Return what `source`, a file or the URL of an Optuna storage, says; raise RequestError if it is none of KNOWN."""
    if "://" in source:
        return _of_optuna(source)
    data, _ = read_yaml(read_text(Path(source)), source)
    if data.get("kind") == "Experiment":
        return of_katib(data)
    if "hydra" in data:
        return of_hydra(data)
    if isinstance(data.get("parameters"), dict):
        return _of_wandb(data)
    raise RequestError(f"{source}: cannot be read. Known: {KNOWN}.")


def _of_wandb(data: dict[str, Any]) -> Foreign:
    """Read a sweep configuration of W&B."""
    found = Foreign(tool="W&B sweep")
    tree = _wandb_settings(found, data.pop("parameters"))
    found.sample("method", found.take(data, "", "method", str, "none given"))
    metrics = [("metric", data.pop("metric", None))]
    metrics += [(f"metrics.{i}", each) for i, each in enumerate(found.take(data, "", "metrics", list, []))]
    for place, given in metrics:
        metric = found.take({place: given}, "", place, dict, {})
        if name := found.take(metric, place, "name", str):
            found.objectives.append((name, found.take(metric, place, "goal", str, "minimize")))
        if "target" in metric:
            found.leave(f"{place}.target", metric.pop("target"), "no value ends a search: `ablate stop` does")
        found.leave_all(place, metric)
    found.trials = found.take(data, "", "run_cap", int)
    program, words = found.take(data, "", "program", str), found.take(data, "", "command", list)
    if words is not None or program is not None:
        words = ["${env}", "${interpreter}", "${program}", "${args}"] if words is None else words
        found.run(_wandb_words(found, list(map(str, words)), program, tree))
    if early := found.take(data, "", "early_terminate", dict):
        _wandb_early(found, early)
    found.leave_all("", data)
    return found


def _wandb_early(found: Foreign, early: dict[str, Any]) -> None:
    """Take Hyperband's first band: `min_iter`, or `max_iter` divided by `eta`, `s` times, while it is 1 or more."""
    place = "early_terminate"
    if early.get("type") == "hyperband":
        early.pop("type")
        eta = max(found.take(early, place, "eta", float, 3), 1.01)
        longest, steps = found.take(early, place, "max_iter", int), found.take(early, place, "s", float, 100)
        first = found.take(early, place, "min_iter", int, 1)
        if longest is not None:
            bands = [int(longest / eta**i) for i in range(1, min(int(steps), 100) + 1) if longest / eta**i >= 1]
            first = min(bands, default=1)
            found.epochs = found.epochs or max(longest, 1)
        found.stop_early(first, eta, "for hyperband: its first band and its eta")
    found.leave_all(place, early)


def _wandb_settings(found: Foreign, given: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Add the settings at any depth; return the placeholder of each by name, in the source's nesting."""
    tree: dict[str, Any] = {}
    for key, spec in given.items():
        name = f"{above}{key}"
        is_nested = isinstance(spec, dict) and isinstance(spec.get("parameters"), dict)
        inner = _wandb_settings(found, spec["parameters"], f"{name}.") if is_nested else None
        tree[str(key)] = found.add(_wandb_setting(name, spec)) if inner is None else inner
        if isinstance(spec, dict):
            known = {"parameters"} if is_nested else _KEYS
            found.leave_all(f"parameters.{name}", {k: v for k, v in spec.items() if k not in known})
    return tree


def _wandb_setting(name: str, given: Any) -> Setting:
    unknown = Setting(name=name, kind="unknown", given=given)
    if not isinstance(given, dict):
        return unknown
    values = [given["value"]] if "value" in given else given.get("values")
    if isinstance(values, list) and (values or "value" in given):
        words = any(value is None or isinstance(value, bool) for value in values)
        passed = "W&B passes True, False and None, ablate true, false and null" if words else ""
        weights = f"weights {json.dumps(given['probabilities'])} are left out" if "probabilities" in given else ""
        kind: Any = "fixed" if "value" in given else "choices"
        return Setting(name=name, kind=kind, choices=tuple(values), given=given, notes=(passed, weights))
    whole = all(isinstance(given.get(key), int) for key in ("min", "max"))
    form = _DISTRIBUTION.fullmatch(str(given.get("distribution", "int_uniform" if whole else "uniform")))
    try:
        return unknown if form is None or given.get("q", 1) <= 0 else _wandb_numbers(name, given, form)
    except (TypeError, ArithmeticError):
        return unknown


def _wandb_numbers(name: str, given: Mapping[str, Any], form: re.Match[str]) -> Setting:
    """Return the range of a distribution. W&B rounds to multiples of q, so the bounds are such multiples too."""
    log, notes = form["log"] is not None, ""
    if form["form"] == "uniform":
        low, high = 1 * given.get("min"), 1 * given.get("max")  # type: ignore[operator]
    elif form["form"] == "normal":
        mean, spread = given.get("mu", 0), SPREAD * given.get("sigma", 1)
        low, high = _decimal(mean - spread), _decimal(mean + spread)
        notes = f"drawn evenly within {SPREAD} standard deviations of the mean"
    else:
        low, high, notes = 0, 1, "drawn evenly, not by a beta distribution"
    if log and form["values"] is None:
        notes = notes or "the bounds were exponents of e"
        low, high = (math.exp(min(max(each, -700), 700)) for each in ((-high, -low) if form["inv"] else (low, high)))
    if form["q"] is None:
        kind: Any = "int" if form["int"] else "float"
        return Setting(name=name, kind=kind, low=low, high=high, log=log, given=given, notes=(notes,))
    step = given.get("q", 1)
    low, high = (_decimal(round(each / step) * step) for each in (low, high))
    low = max(low, step) if log else low
    whole = float(step).is_integer()
    return Setting(
        name=name, kind="int" if whole else "float", low=low, high=high, log=log, step=step, given=given, notes=(notes,)
    )


def _decimal(value: float) -> float:
    """Return a number without the last digits, which are of rounding: 3 * 0.1 is 0.3."""
    return value if isinstance(value, int) else float(f"{value:.12g}")


def _wandb_words(found: Foreign, words: Sequence[str], program: str | None, tree: Mapping[str, Any]) -> list[str]:
    """Return the words of a sweep's command with ablate's placeholders; other macros are to be filled in."""
    texts = {name: f"{{{own}}}" if isinstance(own, str) else _json_of(found, own) for name, own in tree.items()}
    values = [(escaped(name), text, tree[name]) for name, text in texts.items()]
    lines: list[str] = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        macro = word[2:-1] if re.fullmatch(r"\$\{\w+\}", word) else ""
        if macro == "env":
            lines += ["env"] * ("=" in after or after.startswith("-"))
        elif macro == "interpreter":
            lines.append("python")
        elif macro == "program" and program is not None:
            lines.append(escaped(program))
        elif macro in _BEFORE:
            lines += [f"{_BEFORE[macro]}{name}={text}" for name, text, _ in values]
        elif macro == "args_no_equals":
            lines += [part for name, text, _ in values for part in (f"--{name}", text)]
        elif macro == "args_no_boolean_flags":
            for name, text, own in values:
                kinds = [] if isinstance(own, dict) else map(type, found.values_of(own))
                lines.append(f"{{{own}?--{name}}}" if bool in kinds else f"--{name}={text}")
        elif macro in ("args_json", "args_json_file"):
            lines.append(_json_of(found, tree))
            if macro == "args_json_file":
                found.fill("trainable.command", "W&B passes the name of a file with this text")
        else:
            lines.append(escaped(word))
            if "${" in word:
                found.fill("trainable.command", f"{word} has no counterpart")
    return lines


def _json_of(found: Foreign, tree: Mapping[str, Any]) -> str:
    """Return a JSON text with a placeholder for each setting, texts in quotes."""
    parts = []
    for name, own in tree.items():
        text = _json_of(found, own) if isinstance(own, dict) else f"{{{own}}}"
        values = () if isinstance(own, dict) else found.values_of(own)
        texts = [value for value in values if isinstance(value, str)]
        escapes = any(json.dumps(text, ensure_ascii=False)[1:-1] != text for text in texts)
        if escapes or 0 < len(texts) < len(values):
            found.fill("trainable.command", f"the values of {own} are not all text, or need escapes in JSON")
        parts.append(f"{escaped(json.dumps(name))}: " + (f'"{text}"' if texts else text))
    return "{{" + ", ".join(parts) + "}}"


def _of_optuna(url: str) -> Foreign:
    """Read an Optuna study: the distributions of its trials, and its directions."""
    from ablate.studies.optuna_space import read_space

    space = read_space(url)
    found = Foreign(tool=f"Optuna study {space.name!r}", trials=max(space.trials, 1))
    found.objectives = list(zip(space.metrics, space.directions, strict=True))
    for name, (spec, *others) in space.ranges.items():
        notes = [f"other trials had {json.dumps(other)}" for other in others]
        notes += ["not in every trial: add a `when:`"] if name in space.conditional else []
        found.add(Setting(name=name, **spec, given=spec, notes=tuple(notes)))
    found.note("budget", "as many as the source has")
    for each in space.left:
        found.leave(each, "")
    return found
