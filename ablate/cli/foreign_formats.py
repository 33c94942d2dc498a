"""`ablate new --from`: reads a sweep of W&B, a Katib Experiment, Hydra's sweeper and an Optuna study."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.base.errors import RequestError
from ablate.cli.foreign import FILL, Foreign, choices, escaped, interval, take
from ablate.study.file import read_text
from ablate.study.yaml_text import read_scalar, read_yaml

KNOWN = "a W&B sweep (method, parameters), a Katib Experiment, a file with hydra.sweeper, or sqlite:///FILE of Optuna"


def read_source(source: str) -> Foreign:
    """Return what `source`, a file or the URL of an Optuna storage, says; raise RequestError if it is none of KNOWN."""
    if "://" in source:
        return _of_optuna(source)
    data, _ = read_yaml(read_text(Path(source)), source)
    if data.get("kind") == "Experiment":
        return _of_katib(data)
    if "hydra" in data:
        return _of_hydra(data)
    if isinstance(data.get("parameters"), dict):
        return _of_wandb(data)
    raise RequestError(f"{source}: cannot be read. Known: {KNOWN}.")


def _of_wandb(data: dict[str, Any]) -> Foreign:
    """Read a sweep configuration of W&B."""
    found = Foreign(tool="W&B sweep")
    for name, spec in take(data, "", "parameters", dict).items():
        _add_wandb(found, str(name), spec)
    found.sample("method", take(data, "", "method", str, "none given"))
    metric = take(data, "", "metric", dict, {})
    if name := take(metric, "metric", "name", str):
        found.objectives = [(name, take(metric, "metric", "goal", str, "minimize"))]
    found.leave_all("metric", metric)
    if early := take(data, "", "early_terminate", dict):
        if take(early, "early_terminate", "type", str) == "hyperband":
            least = take(early, "early_terminate", "min_iter", int, 1)
            found.epochs = take(early, "early_terminate", "max_iter", int, least * 9)
            reduction = take(early, "early_terminate", "eta", int, 3)
            found.scheduler = {"name": "asha", "min_epochs": least, "reduction": reduction}
            found.note("scheduler", "for hyperband: its first rung and its reduction")
            found.note("epochs", f"{FILL}: how often the command prints the metric")
        found.leave_all("early_terminate", early)
    found.trials = take(data, "", "run_cap", int)
    program, words = take(data, "", "program", str), take(data, "", "command", list)
    if words is not None or program is not None:
        words = ["${interpreter}", "${program}", "${args}"] if words is None else words
        found.command = shlex.join(_wandb_words(found, list(map(str, words)), program))
    found.leave_all("", data)
    return found


def _add_wandb(found: Foreign, name: str, given: Any) -> None:
    place = f"parameters.{name}"
    if not isinstance(given, dict) or "parameters" in given:
        found.leave(place, given, "nested settings have no counterpart" if isinstance(given, dict) else "no mapping")
        return
    spec = dict(given)
    whole = all(isinstance(spec.get(key), int) for key in ("min", "max"))
    short = next((key for key in ("value", "values") if key in spec), "int_uniform" if whole else "uniform")
    kind = take(spec, place, "distribution", str, short)
    if kind in ("value", "constant") and "value" in spec:
        value = spec.pop("value")
        found.add(name, json.dumps(value) if isinstance(value, dict | list) else value)
    elif kind in ("values", "categorical") and "values" in spec:
        values = take(spec, place, "values", list)
        told = "W&B passes True and False, ablate true and false" if _flags(values) else ""
        found.add(name, choices(values), told)
    elif (ranged := _wandb_interval(kind, spec, place)) is not None:
        found.add(name, *ranged)
    else:
        found.add_example(name, given)
        return
    found.leave_all(place, spec)


def _wandb_interval(kind: str, spec: dict[str, Any], place: str) -> tuple[Any, str] | None:
    """Return the range of a distribution with its comment, or None if it has no counterpart."""
    low, high = (take(spec, place, key, float) for key in ("min", "max"))
    step = take(spec, place, "q", float, 1) if kind.startswith("q_") else None
    if low is None or high is None:
        return None
    whole = all(isinstance(each, int) for each in (low, high, step or 1))
    if kind in ("int_uniform", "uniform", "q_uniform"):
        told = f"W&B counts steps of {step} from 0" if step and low % step else ""
        return interval(low, high, whole=kind == "int_uniform" or (whole and step is not None), step=step), told
    if re.fullmatch(r"(q_|inv_)?log_uniform(_values)?", kind) is None:
        return None
    lost = "" if step is None else f"steps of {step} are left out"
    if kind.endswith("_values"):
        exact = whole and step == 1 and low >= 1
        return interval(low, high, whole=exact, log=True), "" if exact else lost
    low, high = (math.exp(min(each, 700)) for each in ((-high, -low) if kind.startswith("inv_") else (low, high)))
    return interval(low, high, log=True), "; ".join(filter(None, ["the bounds were exponents of e", lost]))


def _flags(values: Sequence[Any]) -> bool:
    return any(isinstance(value, bool) for value in values)


def _wandb_words(found: Foreign, words: Sequence[str], program: str | None) -> list[str]:
    """Return the words of a sweep's command with ablate's placeholders."""
    lines: list[str] = []
    for word in words:
        if word in ("${args}", "${args_no_hyphens}", "${args_no_boolean_flags}"):
            for name, own in found.names.items():
                spec = found.config[own]
                switch = word.endswith("flags}") and isinstance(spec, dict) and _flags(spec.get("choices", ()))
                hyphens = "" if word.endswith("hyphens}") else "--"
                lines.append(f"{{{own}?--{name}}}" if switch else f"{hyphens}{escaped(name)}={{{own}}}")
        elif word == "${program}" and program is not None:
            lines.append(escaped(program))
        elif word == "${interpreter}":
            lines.append("python")
        elif "${" in word and word != "${env}":
            found.leave("command", word)
        elif word != "${env}":
            lines.append(escaped(word))
    return lines


def _of_katib(data: dict[str, Any]) -> Foreign:
    """Read a Katib Experiment."""
    found = Foreign(tool="Katib Experiment")
    spec = take(data, "", "spec", dict, {})
    objective = take(spec, "spec", "objective", dict, {})
    if name := take(objective, "spec.objective", "objectiveMetricName", str):
        found.objectives = [(name, take(objective, "spec.objective", "type", str, "minimize"))]
        found.note("trainable.metrics", "Katib's own form; {number} is any number")
    found.leave_all("spec.objective", objective)
    algorithm = take(spec, "spec", "algorithm", dict, {})
    found.sample("algorithm", take(algorithm, "spec.algorithm", "algorithmName", str, "none given"))
    found.leave_all("spec.algorithm", algorithm)
    found.trials = take(spec, "spec", "maxTrialCount", int)
    for index, each in enumerate(take(spec, "spec", "parameters", list, [])):
        _add_katib(found, f"spec.parameters.{index}", each)
    template = take(spec, "spec", "trialTemplate", dict, {})
    references: dict[str, str] = {}
    for index, each in enumerate(take(template, "spec.trialTemplate", "trialParameters", list, [])):
        place = f"spec.trialTemplate.trialParameters.{index}"
        entry = take({"": each}, place, "", dict)
        name = take(entry, place, "name", str, "")
        references[name] = take(entry, place, "reference", str, name)
    if words := _words_of_container(template):
        found.command = shlex.join(_katib_word(found, word, references) for word in words)
    if template.pop("trialSpec", None) is not None:
        found.leave("spec.trialTemplate.trialSpec", "", "only the command of its first container is read")
    found.leave_all("spec.trialTemplate", template)
    found.leave_all("spec", spec)
    found.leave_all("", {key: value for key, value in data.items() if key not in ("apiVersion", "kind")})
    return found


def _words_of_container(template: Mapping[str, Any]) -> list[str]:
    """Return command and arguments of the first container that a trial's template has, wherever it is."""
    below: list[Any] = [template]
    while below:
        value = below.pop(0)
        if isinstance(value, dict) and isinstance(value.get("containers"), list):
            container = next(iter(value["containers"]), None)
            if isinstance(container, dict):
                given = [container.get(key) for key in ("command", "args")]
                return [str(word) for words in given if isinstance(words, list) for word in words]
        below += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return []


def _katib_word(found: Foreign, word: str, references: Mapping[str, str]) -> str:
    pieces = re.split(r"\$\{trialParameters\.([^}]*)\}", word)
    for index in range(1, len(pieces), 2):
        name = references.get(pieces[index], pieces[index])
        if name not in found.names:
            raise RequestError(f"spec.trialTemplate: {word!r} uses {pieces[index]!r}, which is no parameter")
        pieces[index] = f"{{{found.names[name]}}}"
    return "".join(piece if index % 2 else escaped(piece) for index, piece in enumerate(pieces))


def _add_katib(found: Foreign, place: str, given: Any) -> None:
    entry = take({"": given}, place, "", dict)
    name, kind = take(entry, place, "name", str, ""), take(entry, place, "parameterType", str, "")
    space = take(entry, place, "feasibleSpace", dict, {})
    words = {key: read_scalar(str(space.pop(key))) for key in ("min", "max", "step") if key in space}
    numbers = all(isinstance(value, int | float) for value in words.values()) and {"min", "max"} <= words.keys()
    form, listed = take(space, place, "distribution", str, "uniform"), take(space, place, "list", list)
    if kind in ("discrete", "categorical") and listed is not None:
        found.add(name, choices([read_scalar(str(v)) if kind == "discrete" else str(v) for v in listed]))
    elif kind in ("double", "int") and numbers and form in ("uniform", "logUniform"):
        log = form == "logUniform"
        step = None if log else words.get("step")
        found.add(name, interval(words["min"], words["max"], whole=kind == "int", log=log, step=step),
                  f"steps of {words['step']} are left out" if log and "step" in words else "")  # fmt: skip
    else:
        found.add_example(name, given)
    found.leave_all(place, entry | space)


def _of_hydra(data: dict[str, Any]) -> Foreign:
    """Read `hydra.sweeper` of a primary configuration: its params, and those of the Optuna sweeper."""
    found = Foreign(tool="Hydra sweeper")
    hydra = take(data, "", "hydra", dict)
    sweeper = take(hydra, "hydra", "sweeper", dict, {})
    params = take(sweeper, "hydra.sweeper", "params", dict, {})
    if not params:
        raise RequestError("hydra.sweeper.params: there is none to read")
    for name, text in params.items():
        own = str(name).lstrip("+")
        spec = None if own.startswith("~") else _read_override(text if isinstance(text, str) else json.dumps(text))
        if spec is None:
            found.add_example(own.lstrip("~"), text)
        else:
            found.add(own, spec)
    words = " ".join(shlex.quote(f"{escaped(theirs)}={{{own}}}") for theirs, own in found.names.items())
    found.command = f"python main.py {words}"
    found.note("trainable.command", f"{FILL}: the program of this configuration")
    direction = sweeper.pop("direction", None)
    for each in direction if isinstance(direction, list) else [direction or "minimize"]:
        found.objectives.append((None, str(each)))
    found.trials = take(sweeper, "hydra.sweeper", "n_trials", int)
    sampler = take(sweeper, "hydra.sweeper", "sampler", dict, {})
    if target := take(sampler, "hydra.sweeper.sampler", "_target_", str):
        found.sample("hydra.sweeper.sampler", target.rpartition(".")[2])
    elif found.trials is None:
        found.sampler = "grid"
    found.leave_all("hydra.sweeper.sampler", sampler)
    found.leave_all("hydra.sweeper", sweeper)
    found.leave_all("hydra", hydra)
    found.leave_all("", data)
    return found


def _read_override(text: str, depth: int = 0) -> Any:
    """Return the range or value of an override in Hydra's grammar, or None if it has no counterpart."""
    call = re.fullmatch(r"\s*(\w+)\((.*)\)\s*", text, re.DOTALL)
    if depth > 4:
        return None
    if call is None:
        words = [read_scalar(word) for word in _split(text)]
        return choices(words) if len(words) > 1 else words[0]
    name, words = call[1], _split(call[2])
    if name == "choice":
        return choices([read_scalar(word) for word in words])
    if name in ("tag", "int", "float") and words:
        inner = _read_override(words[-1], depth + 1)
        if not isinstance(inner, dict) or "choices" in inner:
            return None
        if name == "tag":
            return inner | ({"log": True} if "log" in words[:-1] else {})
        bounds = inner.pop("float", None) or inner.pop("int")
        if name == "float":
            return {"float": bounds} | inner
        return {"int": [int(each) for each in bounds]} | inner if all(float(b).is_integer() for b in bounds) else None
    given = {key.strip(): read_scalar(value.strip()) for key, _, value in (w.partition("=") for w in words if "=" in w)}
    plain = [read_scalar(word) for word in words if "=" not in word]
    names = ("start", "stop", "step") if len(plain) != 1 or given else ("stop",)
    given |= zip(names if name == "range" else ("start", "end"), plain, strict=False)
    if name == "interval" and _are_numbers(given, "start", "end"):
        return interval(given["start"], given["end"])
    given = {"start": 0, "step": 1} | given
    if name != "range" or not _are_numbers(given, "start", "stop", "step"):
        return None
    start, stop, step = (given[key] for key in ("start", "stop", "step"))
    if not 0 < step <= stop - start < 1e15 * step:
        return None
    last = start + step * (math.ceil((stop - start) / step - 1e-9) - 1)  # the stop is left out
    if all(isinstance(each, int) for each in (start, stop, step)):
        return interval(start, last, whole=True, step=None if step == 1 else step)
    return interval(start, float(f"{last:.12g}"), step=step)


def _are_numbers(given: Mapping[str, Any], *names: str) -> bool:
    found = [given.get(name) for name in names]
    return given.keys() == {*names} and all(isinstance(x, int | float) and abs(x) < 1e300 for x in found)


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


def _of_optuna(url: str) -> Foreign:
    """Read an Optuna study: the distributions of its trials, and its directions."""
    from ablate.studies.optuna_space import read_space

    space = read_space(url)
    found = Foreign(tool=f"Optuna study {space.name!r}", trials=max(space.trials, 1))
    found.objectives = list(zip(space.metrics, space.directions, strict=True))
    for name, (spec, *others) in space.ranges.items():
        notes = [f"other trials had {json.dumps(other)}" for other in others]
        notes += ["not in every trial: add a `when:`"] if name in space.conditional else []
        found.add(name, spec, *notes)
    found.note("budget", "as many as the source has")
    for each in space.left:
        found.leave(each, "")
    return found
