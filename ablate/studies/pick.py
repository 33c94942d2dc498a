"""Picks the best network that keeps given bounds, writes its settings or a study of it; reads the curve of sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ablate.base.errors import RequestError, did_you_mean
from ablate.base.files import DiskFolder
from ablate.core.objectives import COST_METRICS, is_maximized, is_share, on_validation, signed
from ablate.core.trial import TrialConfig
from ablate.results.comparison.rows import comparison_fits
from ablate.results.front.curve import ends
from ablate.results.front.curve_words import reading_sentence
from ablate.results.front.fitted import Fit, search_fits
from ablate.results.front.picking import Bound, Choice, choose
from ablate.results.trials.tables import REPORT_COLUMNS
from ablate.studies.stored import Stored
from ablate.study import Study, parse_study
from ablate.study.yaml_text import read_yaml, write_yaml

LEFT_OUT = ("settings", "variants", "parts", "start", "constraints", "compare", "scale", "only", "deterministic")


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best trial of a study, as `ablate pick` picks it: its settings, and the means of its metrics over `n` seeds.

    Calling it with the label of a data set returns the best trial there.
    """

    dataset: str
    trial: int
    stage: str
    n: int
    metrics: Mapping[str, float]
    settings: Mapping[str, Any]
    found: Stored = field(repr=False, compare=False)

    def __call__(self, dataset: str | None = None) -> Best:
        """Return the best trial of one data set."""
        return best_of(self.found, dataset)


def best_of(found: Stored, dataset: str | None = None) -> Best:
    """Return the best trial of a study on the first objective, of `dataset` or of all; raise RequestError if none."""
    objective = found.study.objectives[0]
    made = [
        Best(
            dataset=each.dataset,
            trial=each.row["trial"],
            stage=each.stage,
            n=each.row["replicates"],
            metrics={name: interval.mean for name, interval in each.metrics.items()},
            settings=each.config.settings.handed(),
            found=found,
        )
        for each in pick(found, (), dataset)
        if each.row is not None and each.config is not None
    ]
    if not made:
        raise RequestError(f"study {found.study.name!r} has no best trial yet: none is complete and keeps its bounds")
    return min(made, key=lambda best: signed(objective, next(iter(best.metrics.values()))))


def read_bounds(least: Sequence[str], most: Sequence[str]) -> list[Bound]:
    """Return the bounds of `--min` and `--max`, each NAME=NUMBER; raise RequestError for a wrong one."""
    return [_bound("--min", ">=", text) for text in least] + [_bound("--max", "<=", text) for text in most]


def choice_text(study: Study) -> str:
    """Return what to type to pick one network of a front, or an empty text where one objective picks it."""
    words = [f"--{'min' if is_maximized(o) else 'max'} {o.metric}=NUMBER" for o in study.objectives]
    return f"say what the {study.noun} must keep: {' or '.join(words)}" if len(words) > 1 else ""


def pick(found: Stored, asked: Sequence[Bound], dataset: str | None) -> list[Choice]:
    """Return one choice for each data set of a study, or for `dataset`.

    Raises RequestError for an unknown data set or metric, and for a comparison, which searches nothing.
    """
    study = found.results.study
    if study.compare is not None:
        raise RequestError(f"study {study.name!r} is a comparison: it has no front to pick from")
    if dataset is not None and dataset not in study.labels:
        raise RequestError(f"study {study.name!r} has no data set {dataset!r}. {did_you_mean(dataset, study.labels)}")
    results = found.results
    known = {on_validation(name) for name in results.reports.columns if name not in REPORT_COLUMNS}
    known |= {*COST_METRICS, *(name for trial in found.snapshot.trials for name in trial.size)}
    for bound in asked:
        if results.trials.height and bound.metric not in known:
            raise RequestError(f"no trial reports {bound.asked!r}. {did_you_mean(bound.asked, known)}")
    configs = {(t.key.dataset, t.key.number): t.config for t in found.snapshot.trials}
    made = [choose(results, label, asked) for label in (study.labels if dataset is None else (dataset,))]
    return [
        replace(each, config=configs[each.dataset, each.row["trial"]]) if each.row is not None else each
        for each in made
    ]


def study_text(found: Stored, config: TrialConfig) -> str:
    """Return a study file with one trial and no range: it trains the network of `config` once, with all settings fixed.

    What is not a setting (data set, seed, protocol, objectives, trainable) is that of the study.
    """
    data, _ = read_yaml(found.record.file_text, "ledger")
    data = {name: value for name, value in data.items() if name not in LEFT_OUT}
    label, key = config.key.dataset, config.key
    number = config.first
    task = config.task.model_dump(mode="json", exclude_defaults=True) | {"task": config.task.task}
    if "datasets" in data:
        data["datasets"] = {label: task}
    data |= config.settings.model_dump(mode="json")
    tail = f"-{label}-{number}"
    name = key.study[: 63 - len(tail)] + tail if len(tail) < 60 else f"picked-{number}"  # 63 characters at most
    data |= {"study": name, "sampler": {"name": "random"}, "scheduler": {"name": "none"}}
    data |= {"replicates": 1, "budget": {"trials": 1}, "confirm": None}
    of = f"the {found.study.noun} of search trial {number} of study {key.study}"
    on = f" on {label}" if len(found.study.labels) > 1 else ""
    head = f"# Trains {of}{on}, with every setting fixed.\n"
    text = head + write_yaml(data)
    parse_study(text, f"the picked {found.study.noun}")
    return text


def settings_text(config: TrialConfig, suffix: str) -> str:
    """Return the settings alone as JSON or YAML, by the suffix of a file; raise RequestError for another one."""
    settings = config.settings.handed()
    if suffix == ".json":
        return json.dumps(settings, indent=1, ensure_ascii=False) + "\n"
    if suffix in (".yaml", ".yml"):
        return write_yaml(settings)
    raise RequestError("--write: a file of settings ends with .json or .yaml")


def write_new(file: Path, text: str) -> None:
    """Write a file; raise RequestError if there is one already, or if it cannot be written."""
    if file.exists() or file.is_symlink():
        raise RequestError(f"{file} exists and is kept; choose another name, or move it away")
    try:
        DiskFolder(file.absolute().parent).write(file.name, text.encode())
    except OSError as error:
        raise RequestError(f"{file}: cannot be written: {error.strerror}") from error


def read_assignment(option: str, text: str) -> tuple[str, float]:
    """Return name and number of an option's METRIC=NUMBER; raise RequestError for a wrong one."""
    name, equals, number = text.rpartition("=")  # a metric may have the sign in its name
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or not name.strip() or not math.isfinite(value):
        raise RequestError(f"{option} {text}: it reads METRIC=NUMBER, such as val_accuracy=0.97")
    return name.strip(), value


def _bound(option: str, op: Literal["<=", ">="], text: str) -> Bound:
    name, value = read_assignment(option, text)
    return Bound(metric=on_validation(name), op=op, bound=value, asked=name)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The curve of a data set read at a value: the sentence, JSON values, and whether the curve answers."""

    sentence: str
    values: dict[str, Any]
    is_known: bool


def readings(found: Stored, asked: str, value: float, dataset: str | None) -> list[Reading]:
    """Read the curve of each data set, or of `dataset`, at a size or at a value of its metric.

    Raises RequestError for an unknown data set or another metric.
    """
    study = found.results.study
    if dataset is not None and dataset not in study.labels:
        raise RequestError(f"study {study.name!r} has no data set {dataset!r}. {did_you_mean(dataset, study.labels)}")
    fits = search_fits(found.results) if study.compare is None else comparison_fits(found.results)
    return [_read(study, fit, asked, value) for label, fit in fits.items() if dataset in (None, label)]


def _read(study: Study, fit: Fit, asked: str, value: float) -> Reading:
    if asked != fit.size and on_validation(asked) != on_validation(fit.metric):
        known = f"the curve is of {fit.metric} against {fit.size}. {did_you_mean(asked, [fit.metric, fit.size])}"
        raise RequestError(f"--at {asked}: {known}")
    answer, at_size = None, asked == fit.size
    if not at_size and is_share(fit.metric) and not 0 <= value <= 1:
        raise RequestError(f"--at {asked}={value:g}: a share is from 0 to 1, such as {asked}=0.93")
    error = 1 - value if is_share(fit.metric) else value
    if not fit.reason and at_size and fit.reach[0] <= value <= fit.reach[1]:
        answer = fit.quality_ends(value)
    elif not fit.reason and not at_size and error > 0:
        answer = ends(fit.curve.size_for(error))
    shown: list[float | None] = [*(answer or (None, None, None))]
    if answer and not at_size:
        shown = [each if fit.reach[0] <= each <= fit.reach[1] else None for each in answer]
        answer = answer if shown[0] is not None else None
    reason = fit.reason or ("" if answer else "beyond the sizes for which the curve is used")
    values = {"dataset": fit.dataset, "asked": asked, "value": value, "metric": fit.metric if at_size else fit.size}
    values |= dict(zip(("estimate", "low", "high"), shown, strict=True))
    values |= {"networks": len(fit.networks), "over": [*fit.over], "reason": reason}
    sentence = study.said_of(fit.dataset, reading_sentence(fit, at_size, value, answer))
    return Reading(sentence=sentence, values=values, is_known=answer is not None)
