"""Observations of another study's trials, which a sampler sees before its first suggestion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ablate.base.errors import RequestError
from ablate.core.objectives import violation
from ablate.core.trial import TrialState
from ablate.tuning.recorded import RecordedSearch
from ablate.tuning.sampling.request import SamplerTraits
from ablate.tuning.state.trial_progress import TrialProgress

if TYPE_CHECKING:
    from ablate.study import Study

WARM_START = "warm_start"


def find_observations(study: Study, other: Mapping[str, RecordedSearch]) -> dict[str, Any]:
    """Return the payload of the event `warm_start`: what of the searches `other` the samplers of `study` are told.

    Trials are taken from the data set of the same label, or from the only one if both studies have one. Raises
    RequestError if the objectives differ, if the sampler does not learn, or if no trial can be taken.
    """
    source = next(iter(other.values())).study
    _refuse_what_differs(study, source)
    alone = len(study.labels) == 1 == len(other)
    found: dict[str, list[dict[str, Any]]] = {}
    for label in study.labels:
        search = next(iter(other.values())) if alone else other.get(label)
        seen = (_observation(study, label, trial) for trial in search.search_trials()) if search else ()
        found[label] = [each for each in seen if each is not None]
    taken = sum(map(len, found.values()))
    finished = sum(trial.state.finished for each in other.values() for trial in each.search_trials())
    if not taken:
        names = ", ".join(study.space.names())
        raise RequestError(
            f"--from {source.name}: none of its {finished} finished search trials has the searched settings of"
            f" {study.name!r} ({names}) with values in their ranges. Leave --from out, or widen the ranges."
        )
    return {"study": source.name, "taken": taken, "finished": finished, "observations": found}


def _refuse_what_differs(study: Study, source: Study) -> None:
    if study.compare is not None:
        raise RequestError(f"--from {source.name}: a comparison trains its whole design and has no sampler to tell")
    if not SamplerTraits.of(study.sampler.name).learns:
        raise RequestError(
            f"--from {source.name}: sampler {study.sampler.name} learns from no result. Leave --from out, or take"
            " sampler front, tpe, nsga2 or gp."
        )
    own, others = (
        ", ".join(f"{objective.metric} ({objective.direction})" for objective in each.objectives)
        for each in (study, source)
    )
    if own != others:
        raise RequestError(
            f"--from {source.name}: its objectives are {others}, those of {study.name!r} are {own}. They must be the"
            " same, in the same order."
        )


def _observation(study: Study, label: str, trial: TrialProgress) -> dict[str, Any] | None:
    """Return what a sampler is told of a trial, as JSON; None if the trial has no place in the space of `label`."""
    space, parameters = study.space_for(label), trial.config.parameters
    stops = study.scheduler.name != "none"  # otherwise its sampler is not made for trials that were stopped
    used = (TrialState.COMPLETE, TrialState.PRUNED) if stops else (TrialState.COMPLETE,)
    if trial.state not in used or not space.contains(parameters):
        return None
    try:
        values = {name: space.ranges[name].read(value) for name, value in parameters.items()}
        study.settings_of(label, values)
    except (ValueError, ValidationError):
        return None
    sized = [c for c in study.constraints if c.metric in trial.size]
    if any(violation(c, trial.metric(c.metric)) > 0 for c in sized):
        return None
    objectives = [objective.metric for objective in study.objectives]
    names = [*objectives, *(constraint.metric for constraint in study.constraints)]
    metrics = {name: value for name in names if math.isfinite(value := trial.metric(name))}
    if not metrics.keys() >= set(objectives):
        return None
    share = trial.epoch / trial.config.epochs
    state = trial.state.value
    return {"trial": trial.number, "parameters": values, "state": state, "share": share, "metrics": metrics}
