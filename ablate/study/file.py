"""Reads a Study from a YAML file, and reports every fault at once, each with its line."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence, Set
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ablate.base.errors import Fault, RegistryError, StudyFileError, did_you_mean
from ablate.core.config import leaves
from ablate.core.registry import FAMILY, TRAINABLES
from ablate.study.checks import faults_of
from ablate.study.patterns import NUMBER_PLACEHOLDER
from ablate.study.shape_faults import items, known_keys, placed, range_above, shape_faults, type_of
from ablate.study.study import Study, kind_of_file
from ablate.study.yaml_text import Path as YamlPath
from ablate.study.yaml_text import dotted, read_yaml, refuse, write_yaml

SIZE_LIMIT_BYTES = 250_000
FILL = "FILL IN"  # marks what `ablate new --from` leaves to the user; no command runs a file that has it
SECTIONS = ("config", "model", "training")  # whose settings `--set` finds without their section
LIMITS = ("trials", "wall_clock")  # of a budget, which the command line may replace
IN_FLIGHT = 8  # default number of concurrent trials of a data set in a deterministic study
_TRIES = 10  # to mend a file so that its other faults can be found
_NOBODYS = "module:function"  # stands for a trainable that is not known


def load_study(path: Path, **options: Any) -> Study:
    """Return the study in `path`; raise StudyFileError listing every fault with line, path, value and rule."""
    return read_study(path, **options)[0]


def read_study(
    path: Path, *, scale: float | None = None, only: Sequence[str] | None = None, deterministic: bool = False,
    limits: Mapping[str, Any] | None = None, changes: Mapping[str, Any] | None = None,
) -> tuple[Study, str]:  # fmt: skip
    """Return the study in `path`, changed by the options of the command line, and the text that describes it.

    The text is that of the file. If an option changes the study, the text is the settings of the file and the option
    as YAML. `limits`, of trials or time, replace both limits of the file's budget; `changes` replace values by path.
    Raises StudyFileError if the file has faults or has its own `scale` or `only`; its own `deterministic` is kept.
    """
    text = read_text(path)
    found: list[Fault] = []
    data, lines = read_yaml(text, str(path), found)
    _refuse_unfilled(text, lines, str(path))
    study = _shaped(data, lines, str(path), found)
    if changes:
        data, lines = _changed(data, changes, {*type(study).model_fields}, str(path)), {}
        study, text = _shaped(data, lines, f"{path} with --set"), write_yaml(data)
    asked = {"scale": scale, "only": None if only is None else list(only)}
    options: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    for key in options.keys() & data.keys():
        refuse(str(path), f"says `{key}:` itself; leave the option out, or take the key out of the file")
    if deterministic and "deterministic" not in data:
        options["deterministic"] = IN_FLIGHT
    if limits and (study.compare or study.campaign):
        refuse(str(path), "is no search, so --trials and --time do not limit it")
    if limits:
        own = data.get("budget", {}).items()
        options["budget"] = {**{key: value for key, value in own if key not in LIMITS}, **limits}
    if options:
        said = {name: getattr(study, name) for name in study.model_fields_set}
        study = _shaped(said | options, lines, str(path))
        text = write_yaml(data | options)
    _refuse_faults(study, lines, str(path))
    return study, text


def _changed(data: Mapping[str, Any], changes: Mapping[str, Any], keys: Set[str], file: str) -> dict[str, Any]:
    """Return the file's values with those of `changes`, by path: `config.lr`, `seed`, or `lr` where one section has it.

    `keys` are those of the file itself. Raises StudyFileError for a name that is in no section.
    """
    found, given = deepcopy(dict(data)), set[tuple[str, ...]]()
    for name, value in changes.items():
        sections = [key for key in SECTIONS if name in (data.get(key) or {})]
        if "." not in name and name not in keys and len(sections) != 1:
            known = sorted({*keys, *(each for key in SECTIONS for each in data.get(key) or ())})
            several = f"it is in {' and '.join(sections)}: write one of them before it" if sections else ""
            refuse(file, f"--set {name}: {several or f'there is no such setting. {did_you_mean(name, known)}'}")
        *above, last = name.split(".") if name in keys or not sections else (sections[0], name)
        place: Any = found
        for key in above:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                refuse(file, f"--set {name}: {key} is {place!r}, so no setting is below it")
        if (*above, last) in given:
            refuse(file, f"--set {name}: {'.'.join((*above, last))} is given twice")
        given.add((*above, last))
        nested = isinstance(value, str) and value[:1] in ("{", "[")
        place[last] = read_yaml(f"{last}: {value}", f"--set {name}")[0][last] if nested else value
    return found


def read_text(path: Path) -> str:
    """Return the text of a study file, or of a file that describes one; raise StudyFileError if it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(SIZE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        refuse(str(path), "no such file." + _near(path))
    except (OSError, UnicodeDecodeError) as error:
        refuse(str(path), f"cannot be read: {error}")
    if len(text.encode()) > SIZE_LIMIT_BYTES:
        refuse(str(path), f"such a file has at most {SIZE_LIMIT_BYTES:,} bytes")
    return text


def _refuse_unfilled(text: str, lines: Mapping[YamlPath, int], file: str) -> None:
    """Raise StudyFileError, with one fault, if a value or a comment of the file says FILL."""
    marked = [number for number, line in enumerate(text.split("\n"), 1) if FILL in line]
    if not marked:
        return
    keys = {line: path for path, line in reversed([*lines.items()]) if path}  # of the paths of a line, the outermost
    first = next((number for number in marked if number in keys), marked[0])
    others = ", ".join(str(number) for number in marked if number != first)
    rule = f"says {FILL}: write what is meant, and delete these words" + (f" (also line {others})" if others else "")
    raise StudyFileError(file, [Fault(path=dotted(keys.get(first, ())), value=None, rule=rule, line=first)])


def parse_study(text: str, file: str = "study", *, known_good: bool = False) -> Study:
    """Return the study written in `text`; raise StudyFileError naming `file` in every fault.

    `known_good` skips the check for faults of meaning, for a text that passed it before.
    """
    found: list[Fault] = []
    data, lines = read_yaml(text, file, found)
    study = _shaped(data, lines, file, found)
    if not known_good:
        _refuse_faults(study, lines, file)
    return study


def _shaped(data: Mapping[str, Any], lines: Mapping[YamlPath, int], file: str, found: Sequence[Fault] = ()) -> Study:
    """Return the study of these settings; raise StudyFileError if one has the wrong type, or faults were `found`."""
    faults = list(found)
    try:
        TRAINABLES.check(kind_of_file(data))
    except RegistryError as error:  # which keys the file may have depends on it
        faults.append(Fault(path="trainable", value=data["trainable"], rule=str(error)))
        data = {**data, "trainable": _NOBODYS if "config" in data else FAMILY}
    try:
        study = Study.model_validate(data)
    except ValidationError as error:
        faults += [*shape_faults(error, lines, data), *_faults_beside(error, data)]
    else:
        faults += faults_of(study) if faults else []
        if not faults:
            return study
    raise StudyFileError(file, placed(faults, lines))


def _faults_beside(error: ValidationError, data: Mapping[str, Any]) -> list[Fault]:
    """Return the faults of meaning of a file in which `error` found wrong types, but those that may follow from these.

    What is wrong is corrected or left out until the rest is a study. A fault that names it may follow from it.
    """
    rest, unsure = deepcopy(dict(data)), set[str]()
    for _ in range(_TRIES):
        for item in reversed(items(error)):
            unsure |= _mended(rest, item, data)
        if not unsure.isdisjoint(("compare", "campaign")):
            return []  # what is left is of another kind
        try:
            faults = faults_of(Study.model_validate(rest))
        except ValidationError as again:
            error = again
        else:
            words = [re.findall(r"\w+", f"{fault.path} {fault.value} {fault.rule}") for fault in faults]
            return [
                fault
                for fault, said in zip(faults, words, strict=True)
                if unsure.isdisjoint([*said, *(f"{word}s" for word in said)])
            ]
    return []


def _mended(rest: dict[str, Any], item: Any, data: Any) -> set[str]:
    """Correct or remove what `item` of pydantic says of `rest`; return the names of which nothing is known then.

    `data` is what the file says.
    """
    within: list[tuple[Any, Any]] = []  # each container above the wrong value with the place in it, outermost first
    value: Any = rest
    for part in range_above(item["loc"], type_of(rest).section_names) or item["loc"]:
        if part in (value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()):
            within.append((value, part))
            value = value[part]
    if not within:
        rest["study"] = rest.get("study", "name")  # the only key that every file needs
        return set()
    (container, place), names = within[-1], [str(part) for holder, part in within if isinstance(holder, dict)]
    known = re.findall(r"'([^']*)'", str(item.get("ctx", {}).get("expected", "")))
    if known and item["type"] == "literal_error":
        container[place] = difflib.get_close_matches(str(value), known, n=1, cutoff=0)[0]
        return set()
    if names[0] == "trainable":
        command = rest["trainable"].get("command") if isinstance(rest["trainable"], dict) else None
        is_text = isinstance(command, str)
        rest["trainable"] = {"command": command if is_text else "true", "metrics": {"val_loss": NUMBER_PLACEHOLDER}}
        return {"metric", "metrics"} if is_text else {"metric", "metrics", "config"}
    del container[place]
    unknown = {names[-1]}
    if item["type"] == "extra_forbidden":
        unknown |= {*difflib.get_close_matches(names[-1], known_keys(item["loc"][:-1], data), n=1)}
    return unknown


def _refuse_faults(study: Study, lines: Mapping[YamlPath, int], file: str) -> None:
    """Raise StudyFileError if settings contradict each other."""
    if faults := faults_of(study):
        raise StudyFileError(file, placed(faults, lines))


def difference(old: str, new: str) -> list[str]:
    """Return the differences between two study files' texts, a line `path: old -> new` for each setting."""
    before, after = (
        {name: json.dumps(value, default=str) for name, value in leaves(read_yaml(text, "study")[0]).items()}
        for text in (old, new)
    )
    names = sorted(before.keys() | after.keys())
    missing = "(not set)"
    return [
        f"{name}: {before.get(name, missing)} -> {after.get(name, missing)}"
        for name in names
        if before.get(name, missing) != after.get(name, missing)
    ]


def _near(path: Path) -> str:
    folder = path.parent
    names = [p.name for p in folder.glob("*.y*ml")] if folder.is_dir() else []
    return f" {did_you_mean(path.name, names)}" if names else ""
