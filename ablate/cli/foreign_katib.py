"""`ablate new --from`: reads a Katib Experiment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ablate.cli.foreign import Foreign, Setting, escaped
from ablate.study.yaml_text import read_scalar

_REFERENCE = re.compile(r"\$\{(trialParameters|trialSpec)\.([^}]*)\}")
_GPU = "nvidia.com/gpu"


def of_katib(data: dict[str, Any]) -> Foreign:
    """Read a Katib Experiment (v1beta1)."""
    found = Foreign(tool="Katib Experiment")
    spec = found.take(data, "", "spec", dict, {})
    objective = found.take(spec, "spec", "objective", dict, {})
    if name := found.take(objective, "spec.objective", "objectiveMetricName", str):
        found.objectives = [(name, found.take(objective, "spec.objective", "type", str, "minimize"))]
    if "goal" in objective:
        found.leave("spec.objective.goal", objective.pop("goal"), "no value ends a search: `ablate stop` does")
    found.leave_all("spec.objective", objective)
    found.trials = found.take(spec, "spec", "maxTrialCount", int)
    algorithm = found.take(spec, "spec", "algorithm", dict, {})
    resource = _algorithm(found, algorithm)
    for index, each in enumerate(found.take(spec, "spec", "parameters", list, [])):
        _add(found, f"spec.parameters.{index}", each, resource)
    _command(found, spec)
    if "metricsCollectorSpec" in spec:
        collector = spec.pop("metricsCollectorSpec")
        if not _is_standard(collector):
            found.leave("spec.metricsCollectorSpec", collector)
            found.fill("trainable.metrics", "the source collects its metrics in another way than from the output")
    early = found.take(spec, "spec", "earlyStopping", dict, {})
    settings = _settings(early)
    if early.get("algorithmName") == "medianstop":
        early.pop("algorithmName"), early.pop("algorithmSettings", None)
        found.stop_early(
            _whole(settings.pop("start_step", None), 4), 2, "for medianstop: its first step, the better half"
        )
        early |= settings
    found.leave_all("spec.earlyStopping", early)
    found.leave_all("spec.algorithm", algorithm)
    found.leave_all("spec", spec)
    found.leave_all("", {key: value for key, value in data.items() if key not in ("apiVersion", "kind")})
    return found


def _algorithm(found: Foreign, algorithm: dict[str, Any]) -> str | None:
    """Take the sampler, or Hyperband's bands; return the name of the setting that Hyperband gives its epochs to."""
    name = found.take(algorithm, "spec.algorithm", "algorithmName", str, "none given")
    settings = _settings(algorithm)
    if name != "hyperband" or "resource_name" not in settings:
        found.sample("algorithm", name)
        return None
    algorithm.pop("algorithmSettings")
    found.sampler, found.epochs = "random", max(_whole(settings.get("r_l"), 1), 1)
    found.stop_early(1, _whole(settings.get("eta"), 3), "for hyperband: its eta; r_l is the number of epochs")
    return settings["resource_name"]


def _settings(section: Mapping[str, Any]) -> dict[str, str]:
    """Return `algorithmSettings` by name."""
    given = section.get("algorithmSettings")
    entries = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    return {str(each.get("name")): str(each.get("value")) for each in entries}


def _whole(text: Any, default: int) -> int:
    value = read_scalar(str(text))
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _is_standard(collector: Any) -> bool:
    """Return whether metrics are read from the output, in Katib's own form."""
    kind = collector.get("collector", {}) if isinstance(collector, dict) else None
    return isinstance(kind, dict) and kind.get("kind", "StdOut") == "StdOut" and "source" not in collector


def _add(found: Foreign, place: str, given: Any, resource: str | None) -> None:
    entry = found.take({place: given}, "", place, dict, {})
    name, kind = (found.take(entry, place, key, str, "") for key in ("name", "parameterType"))
    space = found.take(entry, place, "feasibleSpace", dict, {})
    if name == resource:
        found.names[name] = "epochs"
    else:
        found.add(_setting(found, place, name, kind, space, given))
    found.leave_all(place, entry)


def _setting(found: Foreign, place: str, name: str, kind: str, space: dict[str, Any], given: Any) -> Setting:
    """Return a setting from `feasibleSpace`, whose numbers are text; a normal distribution is drawn evenly."""
    unknown = Setting(name=name, kind="unknown", given=given)
    words = {key: read_scalar(str(space[key])) for key in ("min", "max", "step") if key in space}
    form, listed = found.take(space, place, "distribution", str, "uniform"), found.take(space, place, "list", list)
    log, normal = form in ("logUniform", "logNormal"), form in ("normal", "logNormal")
    if kind in ("discrete", "categorical") and listed is not None:
        values = tuple(read_scalar(str(value)) if kind == "discrete" else str(value) for value in listed)
        return Setting(name=name, kind="choices", choices=values, given=given)
    if kind not in ("double", "int") or not {"min", "max"} <= words.keys() or not (log or normal or form == "uniform"):
        return unknown
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in words.values()):
        return unknown
    number: Any = "int" if kind == "int" else "float"
    notes = (f"drawn evenly, not by {form}",) if normal else ()
    low, high = words["min"], words["max"]
    return Setting(
        name=name, kind=number, low=low, high=high, step=words.get("step"), log=log, given=given, notes=notes
    )


def _command(found: Foreign, spec: dict[str, Any]) -> None:
    """Take the command of the primary container, and its image and GPUs as options of `ablate k8s render`."""
    template = found.take(spec, "spec", "trialTemplate", dict, {})
    place = "spec.trialTemplate"
    references: dict[str, str] = {}
    for index, each in enumerate(found.take(template, place, "trialParameters", list, [])):
        entry = found.take({str(index): each}, f"{place}.trialParameters", str(index), dict, {})
        name = str(entry.get("name"))
        references[name] = str(entry.get("reference", name))
    containers = list(_containers(template))
    primary = template.pop("primaryContainerName", None)
    container = next((each for each in containers if each.get("name") == primary), containers[0] if containers else {})
    given = [container.get(key) for key in ("command", "args")]
    words = [str(word) for part in given if isinstance(part, list) for word in part]
    if words:
        entries = [each for each in container.get("env") or () if isinstance(each, dict)]
        environment = [f"{each.get('name')}={each.get('value')}" for each in entries]
        used = [each for each in environment if any(n in found.names for n in _parameters(each, references))]
        words = ["env", *used, *words] if used else words
        found.run([_word(found, word, references) for word in words])
    if template.pop("trialSpec", None) is not None:
        found.leave(f"{place}.trialSpec", "", "the command of one container is read, and what of `env` names a setting")
    found.leave_all(place, template)
    trials = found.take(spec, "spec", "parallelTrialCount", int, 1)
    limits = container.get("resources", {}).get("limits", {}) if isinstance(container.get("resources"), dict) else {}
    gpus = _whole(limits.get(_GPU) if isinstance(limits, dict) else None, 0)
    size = f"--gpus {trials * gpus} --gpus-per-trial {gpus}" if gpus > 0 else f"--nodes {trials}"
    if isinstance(container.get("image"), str) or trials > 1:
        image = str(container.get("image", "IMAGE"))
        found.kubernetes = f"--image {image} {size} (with ablate in the image)"


def _containers(template: Any) -> Iterator[dict[str, Any]]:
    """Yield every container of a trial's template, wherever it is."""
    if isinstance(template, dict):
        listed = template.get("containers")
        yield from (each for each in listed if isinstance(each, dict)) if isinstance(listed, list) else ()
        for value in template.values():
            yield from _containers(value)
    elif isinstance(template, list):
        for value in template:
            yield from _containers(value)


def _parameters(text: str, references: Mapping[str, str]) -> list[str]:
    return [references.get(name, name) for kind, name in _REFERENCE.findall(text) if kind == "trialParameters"]


def _word(found: Foreign, word: str, references: Mapping[str, str]) -> str:
    """Return a word of the command with ablate's placeholders; other values of Katib's are to be filled in."""
    pieces, end = [], 0
    for reference in _REFERENCE.finditer(word):
        kind, name = reference.groups()
        name = references.get(name, name) if kind == "trialParameters" else f"${{trialSpec.{name}}}"
        own = "trial" if name == "${trialSpec.Name}" else found.names.get(name)
        if own is None:
            found.fill("trainable.command", f"{reference[0]} has no counterpart")
        elif own == "trial":
            found.note("trainable.command", "{trial} is the trial's number")
        pieces += [escaped(word[end : reference.start()]), f"{{{own}}}" if own else escaped(reference[0])]
        end = reference.end()
    return "".join([*pieces, escaped(word[end:])])
