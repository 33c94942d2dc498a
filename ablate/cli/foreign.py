"""What was read from the file of another tool, and the study file that it becomes (`ablate new --from`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ablate.base.errors import RequestError
from ablate.base.plain_text import one_printable_line
from ablate.functions.command_words import OFFERED, placeholders
from ablate.study.space import Choices, FloatRange, IntRange

FILL = "FILL IN"
EXAMPLE = {"float": [0.1, 1.0]}
KINDS = {dict: "a mapping", list: "a list", str: "text", int: "a whole number", float: "a number"}
SAMPLERS = {
    "bayes": "gp", "bayesianoptimization": "gp", "gpsampler": "gp", "random": "random", "randomsampler": "random",
    "grid": "grid", "tpe": "tpe", "multivariate-tpe": "tpe", "tpesampler": "tpe", "sobol": "qmc", "qmcsampler": "qmc",
    "nsgaiisampler": "nsga2",
}  # fmt: skip


@dataclass(kw_only=True)
class Foreign:
    """What was read from another tool: ranges by ablate's name, their comments, and lines on what has no counterpart.

    `names` maps the source's names of settings to ablate's. `objectives` are names and directions.
    """

    tool: str
    config: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    objectives: list[tuple[str | None, str]] = field(default_factory=list)
    command: str | None = None
    sampler: str | None = None
    scheduler: dict[str, Any] = field(default_factory=lambda: {"name": "none"})
    epochs: int = 1
    trials: int | None = None

    def add(self, name: str, spec: Any, *notes: str) -> None:
        """Add a setting, and say what is special about it."""
        own = re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII)
        own += "_" * (own in OFFERED)
        if not own:
            raise RequestError("a setting of the source has no name")
        if own in self.config:
            raise RequestError(f"{name}: two settings would be called {own!r}; rename one in the source")
        said = ([f"{name!r} in the source"] if own != name else []) + [note for note in notes if note]
        self.config[own], self.names[name] = spec, own
        if said:
            self.note(f"config.{own}", "; ".join(said))

    def add_example(self, name: str, given: Any) -> None:
        """Add a setting whose distribution, as `given`, is to be filled in."""
        shown = json.dumps(given, default=str)[:200]
        self.add(name, EXAMPLE, f"{FILL}: {shown} has no counterpart; these bounds are an example")

    def note(self, key: str, text: str) -> None:
        """Put a comment behind a key of the study file."""
        self.notes[key] = one_printable_line(text)

    def leave(self, place: str, value: Any, why: str = "") -> None:
        """Name what has no counterpart, with its value unless that is an empty text."""
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        shown = text if len(text) <= 200 else f"{text[:200]}…"
        self.left.append(one_printable_line(f"{place}{': ' * bool(shown)}{shown}{f' ({why})' if why else ''}"))

    def leave_all(self, place: str, rest: Mapping[str, Any]) -> None:
        """Name all keys of a mapping that were not taken."""
        for key, value in rest.items():
            self.leave(f"{place}.{key}".removeprefix("."), value)

    def lines(self) -> list[str]:
        """Return lines for the head of the study file."""
        fill = [f"Fill in what is marked {FILL}."] if any(FILL in note for note in self.notes.values()) else []
        return [*fill, *(f"Without a counterpart: {line}" for line in self.left)]

    def sample(self, place: str, name: str) -> None:
        """Take the sampler of this name, or name it as without a counterpart."""
        self.sampler = SAMPLERS.get(name.lower())
        if self.sampler is None:
            self.leave(place, name)
        elif self.sampler != name.lower():
            self.note("sampler", f"for {place}: {name}")


def content_of(found: Foreign, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of a study file and the comments behind them."""
    if found.command is None:
        found.command = f"python train.py {' '.join(f'--{own} {{{own}}}' for own in found.config)}"
        found.note("trainable.command", f"{FILL}: the source names no command")
    used = placeholders(found.command)
    for theirs, own in found.names.items():
        if own not in used:
            found.leave(theirs, found.config.pop(own), "the command does not use it")
    named = found.objectives or [(None, "minimize")]
    metrics = {_metric(metric, index): metric for index, (metric, _) in enumerate(named)}
    if len(metrics) < len(named):
        raise RequestError(f"two objectives have one name: {', '.join(metrics)}")
    if any(metric is None for metric in metrics.values()):
        found.note("objectives", f"{FILL}: the source names no metric; check its direction too")
    patterns = {own: rf"{re.escape(metric or own)}\s*[=:]\s*{{number}}" for own, metric in metrics.items()}
    found.notes.setdefault("trainable.metrics", f"{FILL}: how the command prints it; {{number}} is any number")
    sampler, trials = found.sampler, found.trials
    counts = [_count(spec) for spec in found.config.values()]
    if sampler == "grid" and None in counts:
        found.leave("grid", "", "a grid needs choices or steps for every setting")
        sampler = None
    if trials is None:
        trials = math.prod(each or 1 for each in counts) if sampler == "grid" else 24
        found.note("budget", "all of the grid" if sampler == "grid" else f"{FILL}: the source has no number of trials")
    directions = [direction for _, direction in named]
    return {
        "study": name,
        "trainable": {"command": found.command, "metrics": patterns},
        "config": found.config,
        "epochs": found.epochs,
        "objectives": [{"metric": m, "direction": d} for m, d in zip(metrics, directions, strict=True)],
        **({} if sampler is None else {"sampler": {"name": sampler}}),
        "scheduler": found.scheduler,
        "budget": {"trials": trials},
        "confirm": None,
    }, found.notes


def _metric(name: Any, index: int) -> str:
    if name is None:
        return f"val_objective{index or ''}"
    return name if name.startswith(("val_", "train_")) else f"val_{name}"


def _count(spec: Any) -> int | None:
    """Return the number of values of a setting, or None if there are infinitely many or the range is unsound."""
    if not isinstance(spec, dict):
        return 1
    kind = next(kind for key, kind in (("choices", Choices), ("int", IntRange), ("float", FloatRange)) if key in spec)
    try:
        return kind.model_validate(spec).count()
    except ValidationError:
        return None


def take(data: dict[str, Any], place: str, key: str, kind: type, default: Any = None) -> Any:
    """Remove and return a value; raise RequestError if it is not of `kind`."""
    if key not in data:
        return default
    value = data.pop(key)
    right = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    if not right:
        where = ".".join(part for part in (place, key) if part)
        raise RequestError(f"{where} = {one_printable_line(repr(value)[:80])}: must be {KINDS[kind]}")
    return value.copy() if isinstance(value, dict) else value


def interval(low: float, high: float, *, whole: bool = False, log: bool = False, step: float | None = None) -> Any:
    """Return a range of a study file."""
    options = {"log": True} if log else {} if step is None else {"step": step}
    return {"int" if whole else "float": [low, high]} | options


def choices(values: Sequence[Any]) -> dict[str, Any]:
    """Return choices; a list or mapping is written as JSON text."""
    return {"choices": [json.dumps(each) if isinstance(each, dict | list) else each for each in values]}


def escaped(word: str) -> str:
    return word.replace("{", "{{").replace("}", "}}")
