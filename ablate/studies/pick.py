"""Picks the network of a study that keeps given bounds, and writes the study file that trains it again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablate.base.errors import RequestError, did_you_mean
from ablate.base.files import DiskFolder
from ablate.base.plain_text import finite
from ablate.core.objectives import COST_METRICS, on_validation
from ablate.core.trial import TrialConfig
from ablate.results.front.picked import choice_lines, choice_tags
from ablate.results.front.picking import Bound, Choice, NoChoice, choose
from ablate.results.trials.tables import REPORT_COLUMNS
from ablate.studies.homes import continue_from
from ablate.studies.locations import Locations
from ablate.studies.stored import Stored
from ablate.study import parse_study
from ablate.study.yaml_text import read_yaml, write_yaml
from ablate.tracking import default_uri, model_registry

LEFT_OUT = ("settings", "variants", "parts", "start", "constraints", "compare", "scale", "only", "deterministic")


@dataclass(frozen=True, kw_only=True)
class Pick:
    """The choice of one data set with the configuration of its network, or no choice."""

    choice: Choice | NoChoice
    config: TrialConfig | None


def read_bounds(least: Sequence[str], most: Sequence[str]) -> list[Bound]:
    """Return the bounds of `--min` and `--max`, each NAME=NUMBER; raise RequestError for a wrong one or none."""
    found = [_bound("--min", ">=", text) for text in least] + [_bound("--max", "<=", text) for text in most]
    if not found:
        raise RequestError("say what the network must keep: --min val_accuracy=0.97 or --max params=20000")
    return found


def pick(found: Stored, asked: Sequence[Bound], dataset: str | None) -> list[Pick]:
    """Return one pick for each data set of a study, or for `dataset`.

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
    picks = []
    for label in study.labels if dataset is None else (dataset,):
        choice = choose(results, label, asked)
        config = configs[label, choice.row["trial"]] if isinstance(choice, Choice) else None
        picks.append(Pick(choice=choice, config=config))
    return picks


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
    data |= {"study": _name(key.study, label, number), "sampler": {"name": "random"}, "scheduler": {"name": "none"}}
    data |= {"replicates": 1, "budget": {"trials": 1}, "confirm": None}
    head = f"# Trains the network of search trial {number} of study {key.study} on {label}, with every setting fixed.\n"
    text = head + write_yaml(data)
    parse_study(text, "the picked network")
    return text


def write_study(found: Stored, config: TrialConfig, file: Path) -> Path:
    """Write `study_text` to `file`; raise RequestError if there is a file already, or if it cannot be written."""
    if file.exists() or file.is_symlink():
        raise RequestError(f"{file} exists and is kept; choose another name, or move it away")
    try:
        DiskFolder(file.absolute().parent).write(file.name, study_text(found, config).encode())
    except OSError as error:
        raise RequestError(f"{file}: cannot be written: {error.strerror}") from error
    return file


def register(found: Stored, picked: Pick, name: str, locations: Locations) -> str:
    """Register the network in MLflow as a version of the model `name`; return its address, `models:/NAME/1`.

    Its numbers and its verdict are tags. Raises RequestError, CheckpointError and DataError, as the registry does.
    """
    assert isinstance(picked.choice, Choice)
    assert picked.config is not None
    key = picked.config.key
    places = continue_from(locations, found.record, begun=False)
    version = model_registry.register(
        next(trial for trial in found.snapshot.trials if trial.key == key),
        found.record,
        name=name,
        tags=choice_tags(found.results, picked.choice),
        note="\n".join(choice_lines(picked.choice)),
        uri=places.tracking_uri or default_uri(places.root),
        checkpoints=places.checkpoint_root(found.study.name),
        data_dir=places.data_dir,
    )
    return f"models:/{name}/{version}"


def as_values(picked: Pick, registered: str | None = None) -> dict[str, Any]:
    """Return a pick as JSON values; what is unknown is null."""
    choice = picked.choice
    if isinstance(choice, NoChoice):
        near = None if choice.row is None else int(choice.row["trial"])
        missed = [{"bound": bound.text, "value": finite(value)} for bound, value in choice.missed]
        return {"dataset": choice.dataset, "trial": None, "nearest": near, "missed": missed}
    assert picked.config is not None
    return {
        "dataset": choice.dataset,
        "trial": choice.row["trial"],
        "source": choice.row["source"],
        "stage": choice.stage,
        "confirmed": choice.stage == "confirm",
        "among": choice.among,
        "settings": picked.config.settings.model_dump(mode="json"),
        "metrics": {
            name: {"mean": finite(i.mean), "low": finite(i.low), "high": finite(i.high), "n": i.n}
            for name, i in choice.metrics.items()
        },
        "bounds": [
            {"bound": k.limit.text, "asked": k.limit.asked, "value": k.value, "fresh_training": k.new_seed,
             "mean": k.true_mean}
            for k in choice.kept
        ],
        "registered": registered,
    }  # fmt: skip


def _bound(option: str, op: Literal["<=", ">="], text: str) -> Bound:
    name, equals, number = text.rpartition("=")  # a metric may have the sign in its name
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or not name.strip() or not math.isfinite(value):
        raise RequestError(f"{option} {text}: a bound reads METRIC=NUMBER, such as val_accuracy=0.97")
    return Bound(metric=on_validation(name.strip()), op=op, bound=value, asked=name.strip())


def _name(study: str, label: str, number: int) -> str:
    """Return a name of at most 63 characters for the study of one network."""
    tail = f"-{label}-{number}"
    return study[: 63 - len(tail)] + tail if len(tail) < 60 else f"picked-{number}"
