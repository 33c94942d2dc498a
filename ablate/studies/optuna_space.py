"""Reads the search space of an Optuna study: the distributions of its trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError

from ablate.base.errors import RequestError, did_you_mean
from ablate.base.redaction import error_text, redact_url


@dataclass(frozen=True, kw_only=True)
class OptunaSpace:
    """Distributions of an Optuna study by name, each in the words of `_range`, those of its latest trial first.

    `conditional` are names that some trials lack. `metrics` are None without names. `left` names the attributes.
    """

    name: str
    metrics: list[str | None]
    directions: list[str]
    ranges: Mapping[str, list[dict[str, Any]]]
    conditional: frozenset[str]
    trials: int
    left: list[str]


def read_space(url: str) -> OptunaSpace:
    """Return the space of the study in `sqlite:///FILE`, or of `sqlite:///FILE#STUDY`; the file is only read.

    Raises RequestError if there is no such file or study, or if none of its trials has parameters.
    """
    file, _, name = url.removeprefix("sqlite:///").partition("#")
    shown = redact_url(url)
    if not url.startswith("sqlite:///") or not Path(file).is_file():
        raise RequestError(f"{shown}: there is no such file. Write sqlite:///FILE or sqlite:///FILE#STUDY")
    place = f"sqlite:///file:{quote(str(Path(file).absolute()))}?mode=ro&uri=true"
    try:
        storage = RDBStorage(place, skip_table_creation=True)
        studies = {study.study_name: study for study in storage.get_all_studies()}
        name = name or (next(iter(studies)) if len(studies) == 1 else "")
        if name not in studies:
            raise RequestError(f"{shown}: name the study, as in {shown}#NAME. {did_you_mean(name, studies)}")
        trials = storage.get_all_trials(studies[name]._study_id, deepcopy=False)
    except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError, ValueError, KeyError) as error:
        raise RequestError(f"{shown}: cannot be read as an Optuna storage: {error_text(error)}") from None
    ranges: dict[str, list[dict[str, Any]]] = {}
    for trial in reversed(trials):
        for each, spec in trial.distributions.items():
            known = ranges.setdefault(each, [])
            if (found := _range(spec)) not in known:
                known.append(found)
    if not ranges:
        raise RequestError(f"{shown}: no trial of study {name!r} has parameters")
    study = studies[name]
    metrics = study.system_attrs.get("study:metric_names")
    if not isinstance(metrics, list) or len(metrics) != len(study.directions):
        metrics = [None] * len(study.directions)
    return OptunaSpace(
        name=name,
        metrics=metrics,
        directions=[direction.name.lower() for direction in study.directions],
        ranges=ranges,
        conditional=frozenset(n for n in ranges if any(t.distributions and n not in t.distributions for t in trials)),
        trials=len(trials),
        left=[f"user_attrs.{key}" for key in study.user_attrs],
    )


def _range(spec: BaseDistribution) -> dict[str, Any]:
    """Return a distribution as keywords of `ablate.cli.foreign.Setting`."""
    if isinstance(spec, CategoricalDistribution):
        return {"kind": "choices", "choices": spec.choices}
    assert isinstance(spec, FloatDistribution | IntDistribution)
    kind = "float" if isinstance(spec, FloatDistribution) else "int"
    return {"kind": kind, "low": spec.low, "high": spec.high, "log": spec.log, "step": spec.step}
