"""`ablate new --from`: reads `hydra.sweeper` of a Hydra configuration: the basic, the Optuna and the Ax sweeper."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ablate.cli.foreign import Foreign, Setting, escaped
from ablate.study.yaml_text import read_scalar

_PLAIN = re.compile(r"[A-Za-z_./][\w./-]*")  # a text that Hydra reads as text without quotes
_CASTS = {"int": int, "float": float, "str": str}
_DEEPEST = 4  # calls inside of calls


def of_hydra(data: dict[str, Any]) -> Foreign:
    """Read the settings of a sweeper: `params` (overrides), and `search_space` and `ax_config.params` (mappings)."""
    found = Foreign(tool="Hydra sweeper")
    hydra = found.take(data, "", "hydra", dict, {})
    place = "hydra.sweeper"
    sweeper = found.take(hydra, "hydra", "sweeper", dict, {})
    defaults = _defaults(data)
    sweeper_name = f"{sweeper.get('_target_')} {defaults.get('hydra/sweeper')}".lower()
    is_optuna = "optuna" in sweeper_name or bool({"n_trials", "direction", "sampler", "search_space"} & sweeper.keys())
    params = found.take(sweeper, place, "params", dict, {})
    ax = found.take(sweeper if "ax_config" in sweeper else params, place, "ax_config", dict, {})
    words = [_add_override(found, str(name), text, is_optuna) for name, text in params.items()]
    structured = found.take(sweeper, place, "search_space", dict, {}) | found.take(ax, place, "params", dict, {})
    for name, spec in structured.items():
        words.append(f"{escaped(str(name))}={{{found.add(_structured(str(name), spec))}}}")
    found.run(["python", "main.py", *words])
    found.fill("trainable.command", "the program of this configuration")
    _objectives(found, data, sweeper, ax)
    found.trials = found.take(sweeper, place, "n_trials", int, 20 if is_optuna else None)
    found.trials = found.take(ax, place, "max_trials", int, found.trials)
    sampler = found.take(sweeper, place, "sampler", dict, {})
    if target := found.take(sampler, f"{place}.sampler", "_target_", str, defaults.get("hydra/sweeper/sampler")):
        found.sample(f"{place}.sampler", target.rpartition(".")[2])
    elif not is_optuna and found.trials is None and "ax" not in sweeper_name:
        found.sampler = "grid"
    for key, rest in ((f"{place}.sampler", sampler), (f"{place}.ax_config", ax), (place, sweeper), ("hydra", hydra)):
        found.leave_all(key, rest)  # what else is in the file, the program reads itself
    return found


def _defaults(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the choices of the defaults list by group: `override /hydra/sweeper: optuna` is of `hydra/sweeper`."""
    listed = data.get("defaults")
    entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    named = [(str(key).removeprefix("override ").strip("/ "), value) for each in entries for key, value in each.items()]
    return {key: str(value) for key, value in named}


def _objectives(found: Foreign, data: dict[str, Any], sweeper: dict[str, Any], ax: dict[str, Any]) -> None:
    """Take the directions, and the metric where the file names it: Hydra's sweepers take what the program returns."""
    place = "hydra.sweeper.ax_config.experiment"
    experiment = found.take(ax, "hydra.sweeper.ax_config", "experiment", dict, {})
    minimize = found.take(experiment, place, "minimize", bool, True)
    direction = sweeper.pop("direction", None) or ("minimize" if minimize else "maximize")
    name = found.take(experiment, place, "objective_name", str) or found.take(data, "", "optimized_metric", str)
    found.leave_all(place, experiment)
    for each in direction if isinstance(direction, list) else [direction]:
        found.objectives.append((None if found.objectives else name, str(each)))


def _add_override(found: Foreign, name: str, given: Any, is_optuna: bool) -> str:
    """Add the setting of an override, and return its word in the command, which keeps `+` and `++`."""
    if name.startswith("~"):
        found.leave(f"hydra.sweeper.params.{name}", given, "no setting: the command has it as it is")
        return escaped(name)
    text = given if isinstance(given, str) else json.dumps(given, default=str)
    own = name.lstrip("+")
    setting = _override(text, is_optuna) or Setting(name=own, kind="unknown")
    return f"{escaped(name)}={{{found.add(replace(setting, name=own, given=given))}}}"


def _structured(name: str, spec: Any) -> Setting:
    """Return a setting of Hydra 1.1's `search_space` or of Ax: `type`, `low` and `high` or `bounds`, `choices`, …"""
    unknown = Setting(name=name, kind="unknown", given=spec)
    if not isinstance(spec, dict):
        return unknown
    kind, values = spec.get("type"), spec.get("choices", spec.get("values"))
    if kind in ("categorical", "choice") and isinstance(values, list):
        return Setting(name=name, kind="choices", choices=tuple(values), given=spec)
    if kind == "fixed" and "value" in spec:
        return Setting(name=name, kind="fixed", choices=(spec["value"],), given=spec)
    bounds, step = spec.get("bounds", [spec.get("low"), spec.get("high")]), spec.get("step")
    if kind not in ("int", "float", "range") or not isinstance(bounds, list) or not _are_numbers(*bounds):
        return unknown
    whole = all(isinstance(each, int) for each in bounds)
    number = (
        spec.get("value_type", spec.get("parameter_type", "int" if whole else "float")) if kind == "range" else kind
    )
    return Setting(
        name=name, kind="int" if str(number).lower() == "int" else "float", low=bounds[0], high=bounds[-1], given=spec,
        log=spec.get("log", spec.get("log_scale")) is True, step=step if _are_numbers(step) else None,
    )  # fmt: skip


def _override(text: str, is_optuna: bool, depth: int = 0) -> Setting | None:
    """Return the setting of an override in Hydra's grammar, or None if it has no counterpart."""
    call = re.fullmatch(r"\s*(\w+)\((.*)\)\s*", text, re.DOTALL)
    if depth > _DEEPEST:
        return None
    if call is None:
        values = tuple(_element(word) for word in _split(text))
        return Setting(name="", kind="choices" if len(values) > 1 else "fixed", choices=values)
    name, words = call[1], _split(call[2])
    if name == "choice":
        return Setting(name="", kind="choices", choices=tuple(_element(word) for word in words))
    if name == "tag":
        inner = _override(words[-1], is_optuna, depth + 1)
        return None if inner is None else replace(inner, log="log" in words[:-1] and inner.step is None)
    if name in ("sort", "shuffle"):  # only the order changes
        return _override(",".join(word for word in words if "=" not in word), False, depth + 1)
    if name in _CASTS:
        return _cast(name, _override(call[2], is_optuna, depth + 1))
    given = {key.strip(): read_scalar(value.strip()) for key, _, value in (w.partition("=") for w in words if "=" in w)}
    plain = [read_scalar(word) for word in words if "=" not in word]
    names = ("start", "stop", "step") if len(plain) != 1 or given else ("stop",)
    given |= zip(names if name == "range" else ("start", "end"), plain, strict=False)
    if name == "interval" and given.keys() == {"start", "end"} and _are_numbers(*given.values()):
        return Setting(name="", kind=_kind(*given.values()), low=given["start"], high=given["end"])
    given = {"start": 0, "step": 1} | given
    if name != "range" or given.keys() != {"start", "stop", "step"} or not _are_numbers(*given.values()):
        return None
    return _range(given["start"], given["stop"], given["step"], with_end=is_optuna)


def _range(start: float, stop: float, step: float, *, with_end: bool) -> Setting | None:
    """Return the numbers from `start` in steps; `stop` is one of them for the Optuna sweeper alone."""
    steps = (stop - start) / step if step else -1
    if not 0 <= steps < 1e15:
        return None
    last = math.floor(steps + 1e-9) if with_end else math.ceil(steps - 1e-9) - 1
    end = start + last * step
    end = end if isinstance(end, int) else float(f"{end:.12g}")
    told = "the Optuna sweeper counts the end in" if with_end else ""
    low, high = sorted((start, end)) if last >= 0 else (start, end)
    return Setting(name="", kind=_kind(start, stop, step), low=low, high=high, step=abs(step), notes=(told,))


def _cast(name: str, inner: Setting | None) -> Setting | None:
    """Return a setting whose values, bounds and step are of another type."""
    cast = _CASTS[name]
    if inner is None:
        return None
    if inner.kind in ("fixed", "choices"):
        try:
            return replace(inner, choices=tuple(cast(value) for value in inner.choices))
        except (TypeError, ValueError):
            return None
    if name == "str":
        return None
    step = None if inner.step is None else cast(inner.step)
    return replace(
        inner, kind="int" if name == "int" else "float", low=cast(inner.low), high=cast(inner.high), step=step
    )


def _kind(*numbers: float) -> Any:
    return "int" if all(isinstance(each, int) for each in numbers) else "float"


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 1e300 for x in values)


def _element(word: str) -> Any:
    """Return a value of a choice; quotes stay where the text would mean something else without them."""
    if word[:1] in ("'", '"') and word[-1:] == word[:1]:
        inner = word[1:-1]
        return inner if _PLAIN.fullmatch(inner) and isinstance(read_scalar(inner), str) else word
    return read_scalar(word)


def _split(text: str) -> list[str]:
    """Return the parts between commas outside of brackets and quotes."""
    pieces = re.findall(r"""'[^']*'|"[^"]*"|.""", text, re.DOTALL)
    parts, depth = [""], 0
    for piece in pieces:
        depth += (piece in "([{") - (piece in ")]}")
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]
