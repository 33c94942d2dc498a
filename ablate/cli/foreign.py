"""What was read from the file of another tool, and the study file that it becomes (`ablate new --from`)."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from ablate.base.plain_text import one_printable_line
from ablate.study.command_text import OFFERED, placeholders
from ablate.study.file import FILL
from ablate.study.patterns import metric_name
from ablate.study.space import Choices, FloatRange, IntRange, Range

EXAMPLE = {"float": [0.1, 1.0]}
KINDS = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
RANGES: dict[str, type[Choices | IntRange | FloatRange]] = {"choices": Choices, "int": IntRange, "float": FloatRange}
SAMPLERS = {
    "bayes": "gp", "bayesianoptimization": "gp", "gpsampler": "gp", "random": "random", "randomsampler": "random",
    "grid": "grid", "gridsampler": "grid", "tpe": "tpe", "multivariate-tpe": "tpe", "tpesampler": "tpe",
    "sobol": "qmc", "qmcsampler": "qmc", "nsgaii": "nsga2", "nsgaiisampler": "nsga2",
}  # fmt: skip
_EPOCHS = re.compile(r"(?:[\w.]*\.)?(?:(?:num|n|max|total)[-_]?)?epochs?")
_EPOCHS_OPTION = re.compile(rf"((?<=[ '])--{_EPOCHS.pattern}[= ])(\d+)(?![\w.{{])")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting in words that every tool can say; `Foreign.add` writes it as a range or a value.

    `step` counts from `low`. `choices` are the values of a choice, or the one fixed value. `given` is what the source
    says, and `notes` are remarks.
    """

    name: str
    kind: Literal["fixed", "choices", "int", "float", "unknown"]
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()
    given: Any = None
    notes: tuple[str, ...] = ()

    def written(self) -> tuple[Any, list[str]]:
        """Return the value or range of a study file, and remarks; an example and FILL if no range can express it."""
        notes = [note for note in self.notes if note]
        fault = "has no counterpart"
        if self.kind == "fixed":
            return _scalar(self.choices[0]), notes
        try:
            if self.kind == "choices":
                values = [_scalar(value) for value in self.choices]
                once = [*{(type(value), value): value for value in values}.values()]
                notes += ["a value that stood twice stands once"] * (len(once) < len(values))
                return {"choices": list(Choices(choices=once).choices)}, notes
            if self.kind != "unknown":
                return self._numbers(notes), notes
        except (ValidationError, ArithmeticError) as error:
            faults = error.errors() if isinstance(error, ValidationError) else [{"msg": "too large a number"}]
            fault = str(faults[0]["msg"]).removeprefix("Value error, ")
        return EXAMPLE, [f"{FILL}: {_shown(self.given)} {fault}; these bounds are an example", *notes]

    def _numbers(self, notes: list[str]) -> dict[str, Any]:
        """Return a range, whose highest value is one of its steps."""
        if self.log and self.step not in (None, 1):
            notes.append(f"steps of {self.step:g} are left out")
        stepped = self.step is not None and not self.log and not (self.kind == "int" and self.step == 1)
        options: dict[str, Any] = {"log": True} if self.log else {"step": self.step} if stepped else {}
        found = RANGES[self.kind].model_validate({self.kind: [self.low, self.high], **options})
        assert isinstance(found, IntRange | FloatRange)
        low, high = found.bounds
        if stepped:
            last = (found.count() or 1) - 1
            high = found.at(last) if isinstance(found, FloatRange) else low + last * (found.step or 1)
            options["step"] = found.step
        return {self.kind: [low, high], **options}


@dataclass(kw_only=True)
class Foreign:
    """What a reader found in the file of another tool, and the remarks that the study file makes about it.

    `names` maps the source's names of settings to ablate's. `objectives` are names and directions. `left` names what
    has no counterpart, `open` what the user has to decide, `kubernetes` are options of `ablate k8s render`.
    """

    tool: str
    config: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    kubernetes: str = ""
    objectives: list[tuple[str | None, str]] = field(default_factory=list)
    command: str | None = None
    sampler: str | None = None
    scheduler: dict[str, Any] = field(default_factory=lambda: {"name": "none"})
    epochs: int | None = None
    trials: int | None = None

    def add(self, found: Setting) -> str:
        """Add a setting and return the name of its placeholder; a fixed number of epochs is the study's own."""
        fixed = found.choices[0] if found.kind == "fixed" else None
        if _EPOCHS.fullmatch(found.name) and _is_count(fixed) and self.epochs in (None, fixed):
            self.epochs = fixed
            return self.names.setdefault(found.name, "epochs")
        own = re.sub(r"\W|^(?=\d)", "_", found.name, flags=re.ASCII) or "_"
        while own in self.config or own in OFFERED:
            own += "_"
        self.config[own], remarks = found.written()
        self.names[found.name] = own
        said = [f"{found.name!r} in the source"] * (own != found.name) + remarks
        if said:
            self.note(f"config.{own}", "; ".join(said))
        return own

    def run(self, words: Sequence[str]) -> None:
        """Take the words of the command; settings that it does not use are added to it, and are to be filled in."""
        missing = [each for each in self.names.items() if each[1] not in placeholders(shlex.join(words))]
        words = [*words, *(f"--{escaped(theirs)}={{{own}}}" for theirs, own in missing)]
        self.command = shlex.join(words)
        given = _EPOCHS_OPTION.search(self.command)
        if given is not None and _is_count(int(given[2])) and self.epochs in (None, int(given[2])):
            self.epochs = int(given[2])
            self.command = _EPOCHS_OPTION.sub(r"\1{epochs}", self.command, count=1)
        if missing:
            names = ", ".join(theirs for theirs, _ in missing)
            self.fill("trainable.command", f"the source's command does not use {names}: say how it gets them")

    def note(self, key: str, text: str) -> None:
        """Add to the comment behind a key of the study file."""
        known, text = self.notes.get(key, ""), one_printable_line(text)
        self.notes[key] = known if text in known else f"{known}; {text}" if known else text

    def values_of(self, own: str) -> Sequence[Any]:
        """Return the choices of a setting, or its value if it is fixed; nothing of a range of numbers."""
        spec = self.config.get(own)
        found: Sequence[Any] = spec.get("choices", ()) if isinstance(spec, dict) else (spec,)
        return found

    def fill(self, key: str, text: str) -> None:
        """Mark a key of the study file as one that the user has to decide."""
        self.note(key, text if FILL in self.notes.get(key, "") else f"{FILL}: {text}")

    def leave(self, place: str, value: Any, why: str = "") -> None:
        """Name what has no counterpart, with its value unless that is an empty text."""
        self.left.append(_line(place, value, why))

    def leave_all(self, place: str, rest: Mapping[str, Any]) -> None:
        """Name all keys of a mapping that were not taken."""
        for key, value in rest.items():
            self.leave(f"{place}.{key}".removeprefix("."), value)

    def take(self, data: dict[str, Any], place: str, key: str, kind: type, default: Any = None) -> Any:
        """Remove and return a value; one that is not of `kind` is to be filled in, and `default` is returned."""
        if key not in data or data[key] is None:
            data.pop(key, None)
            return default
        value = data.pop(key)
        right = isinstance(value, (int, float) if kind is float else kind) and (kind is bool) == isinstance(value, bool)
        if not right:
            self.open.append(_line(f"{place}.{key}".strip("."), value, f"must be {KINDS[kind]}"))
            return default
        return value.copy() if isinstance(value, dict) else value

    def sample(self, place: str, name: str) -> None:
        """Take the sampler of this name, or name it as without a counterpart."""
        self.sampler = SAMPLERS.get(name.lower())
        if self.sampler is None:
            self.leave(place, name)
        elif self.sampler != name.lower():
            self.note("sampler", f"for {place}: {name}")

    def stop_early(self, first: int, reduction: float, text: str) -> None:
        """Stop weak trials early, from the report `first` on."""
        self.scheduler = {"name": "asha", "min_epochs": max(first, 1), "reduction": max(round(reduction), 2)}
        self.note("scheduler", text)

    def marked(self) -> str:
        """Return the keys of the study file that the user has to decide, or an empty text."""
        return ", ".join(key for key, note in self.notes.items() if FILL in note)

    def lines(self, file: str) -> list[str]:
        """Return lines for the head of the study file, of the notes as they are now."""
        marked = self.marked()
        return [
            *([f"{FILL}: {marked}. Delete these words there and here."] if marked else []),
            *(f"{FILL}: {line}" for line in self.open),
            *(f"Without a counterpart: {line}" for line in self.left),
            *([f"On Kubernetes: ablate k8s render {file} {self.kubernetes}"] if self.kubernetes else []),
        ]


def content_of(found: Foreign, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of a study file and the comments behind them."""
    if found.command is None:
        found.run(["python", "train.py", *(f"--{escaped(theirs)}={{{own}}}" for theirs, own in found.names.items())])
        found.fill("trainable.command", "the source names no command")
    if not found.names:
        found.fill("config", "the source names no setting that can be read")
    metrics = _metrics(found)
    first = metrics[0][1]
    found.note("trainable.metrics", f"the command has to print it, as in {first}=0.5, {first}: 0.5 or '{first}': 0.5")
    searched = [theirs for theirs, own in found.names.items() if own != "epochs" and _EPOCHS.fullmatch(theirs)]
    if found.scheduler["name"] != "none" and (searched or found.epochs is None):
        told = f"searches {searched[0]}, and a study has one number" if searched else "does not say it"
        found.fill("epochs", f"how often the command prints the metric; the source {told}")
    found.note("epochs", "how often the command prints the metric")
    epochs = found.epochs or found.scheduler.get("min_epochs", 1) * found.scheduler.get("reduction", 1) ** 2
    counts = [range_of(spec).count() if isinstance(spec, dict) else 1 for spec in found.config.values()]
    if found.sampler == "grid" and None in counts:
        found.leave("grid", "", "a grid needs choices or steps for every setting")
        found.sampler = None
    trials = found.trials
    if trials is None:
        trials = math.prod(each or 1 for each in counts) if found.sampler == "grid" else 24
        found.note("budget", "all of the grid" if found.sampler == "grid" else "the source has no number of trials")
    # names are whole, as for Katib: `loss` is not the end of `aux_loss`
    tail = r"""["']?\s*[=:]\s*["']?{number}"""  # Hugging Face prints 'loss': '0.5'
    patterns = {own: rf"(?<![\w/.|-]){re.escape(printed)}{tail}" for own, printed, _ in metrics}
    return {
        "study": name,
        "trainable": {"command": found.command, "metrics": patterns},
        "config": found.config,
        "epochs": epochs,
        "objectives": [{"metric": own, "direction": direction} for own, _, direction in metrics],
        **({} if found.sampler is None else {"sampler": {"name": found.sampler}}),
        "scheduler": found.scheduler,
        "budget": {"trials": max(trials, 1)},
        "confirm": None,
    }, found.notes


def _metrics(found: Foreign) -> list[tuple[str, str, str]]:
    """Return name, printed name and direction of each objective; a name that is missing is to be filled in."""
    metrics: list[tuple[str, str, str]] = []
    for printed, direction in found.objectives[4:]:
        found.leave("objective", f"{printed}, {direction}", "a study has at most four")
    for printed, direction in (found.objectives or [(None, "minimize")])[:4]:
        own = metric_name(printed or "objective")
        while own in [other for other, _, _ in metrics]:
            own += "_"
        if printed is None:
            found.fill("objectives", "the source names no metric; check its direction too")
        if direction not in ("minimize", "maximize"):
            found.fill("objectives", f"{direction} is no direction")
            direction = "minimize"
        metrics.append((own, printed or own, direction))
    return metrics


def range_of(spec: Mapping[str, Any]) -> Range:
    """Return the range that a study file writes so; raise ValidationError if it is none."""
    return next(kind.model_validate(spec) for name, kind in RANGES.items() if name in spec)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9


def _scalar(value: Any) -> Any:
    """Return a value that a setting can have: a list or mapping as JSON text, a number that is not finite as text."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return one_printable_line(text if len(text) <= 200 else f"{text[:200]}…")


def _line(place: str, value: Any, why: str) -> str:
    shown = _shown(value)
    return one_printable_line(f"{place}{': ' * bool(shown)}{shown}{f' ({why})' if why else ''}")


def escaped(word: str) -> str:
    return word.replace("{", "{{").replace("}", "}}")
