"""Confirmation: freeze the front of a finished search and retrain its configurations on fresh seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ablate.base.randomness import stream
from ablate.core.objectives import losses, on_front, ranked
from ablate.core.trial import TrialConfig, TrialState
from ablate.ledger import NewTrial
from ablate.tuning.state.trial_progress import TrialProgress, further, loss_matrix

if TYPE_CHECKING:
    from ablate.core.config import DatasetFacts
    from ablate.study import Study


@dataclass(frozen=True, kw_only=True)
class FrontMember:
    """A complete trial that no other dominates; `values` are the objectives in the study file's order and units."""

    config: TrialConfig
    values: tuple[float, ...]


def front(study: Study, trials: Sequence[TrialProgress]) -> tuple[FrontMember, ...]:
    """Return the trials on the front (`on_front`), the best on the first objective first (`ranked`)."""
    states = [trial.state for trial in trials]
    asked = study.objectives, study.constraints, states, lambda name: [t.metric(name) for t in trials]
    stands = on_front(*asked)
    return tuple(
        FrontMember(config=trials[i].config, values=tuple(trials[i].metric(o.metric) for o in study.objectives))
        for i in (ranked(*asked) if any(stands) else ())
        if stands[i]
    )


def spread(study: Study, members: Sequence[FrontMember], top: int | None) -> tuple[FrontMember, ...]:
    """Return at most `top` members: the first, then repeatedly the one farthest from those already chosen.

    Distances are Euclidean. Objectives are scaled to [0, 1] over the front, in log10 where the study file says so.
    """
    if top is None or len(members) <= top:
        return tuple(members)
    points = loss_matrix((losses(study.objectives, m.values) for m in members), len(study.objectives))
    width = np.ptp(points, axis=0)
    scaled: NDArray[np.float64] = (points - points.min(axis=0)) / np.where(width > 0, width, 1.0)
    chosen = [0]
    nearest = np.linalg.norm(scaled - scaled[0], axis=1)
    while len(chosen) < top:
        nearest[chosen] = -1.0
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.linalg.norm(scaled - scaled[chosen[-1]], axis=1))
    return tuple(members[i] for i in sorted(chosen))


def confirmation_trials(
    wanted: Sequence[tuple[TrialProgress, tuple[int, ...]]], facts: DatasetFacts, first: int, **changed: Any
) -> list[NewTrial]:
    """Return one full-length trial per (search trial, seeds) pair in `wanted`, with numbers from `first` on."""
    return [
        further(source, number, facts, **{"stage": "confirm", "seeds": seeds, "source": source.number, **changed})
        for number, (source, seeds) in enumerate(wanted, start=first)
    ]


def find_untested(trials: Sequence[TrialProgress]) -> list[TrialProgress]:
    """Return the COMPLETE search trials of a comparison that no trial evaluates on the test split yet."""
    had = {trial.config.evaluates for trial in trials}
    complete = [t for t in trials if t.config.stage == "search" and t.state is TrialState.COMPLETE]
    return [trial for trial in complete if trial.number not in had]


def evaluations(trials: Sequence[TrialProgress], facts: DatasetFacts, first: int) -> list[NewTrial]:
    """Return one trial per untested trial, with numbers from `first` on; it evaluates that trial's networks."""
    return [
        further(trial, number, facts, stage="confirm", source=trial.config.first, evaluates=trial.number)
        for number, trial in enumerate(find_untested(trials), start=first)
    ]


def shuffle(
    study: Study, dataset: str, wanted: Sequence[tuple[TrialProgress, tuple[int, ...]]]
) -> list[tuple[TrialProgress, tuple[int, ...]]]:
    """Return `wanted` in an order that does not depend on results, so that it favours no configuration.

    The random stream is keyed by the study's seed and the data set, so a restart gives the same order.
    """
    by_number = sorted(wanted, key=lambda pair: pair[0].number)
    return [by_number[i] for i in stream(study.seed, dataset, 0, "confirmation").permutation(len(by_number))]


def seeds_by_source(trials: Iterable[TrialProgress]) -> dict[int, tuple[int, ...]]:
    """Return the seeds on which each configuration has been trained, over all of its trials.

    The key is the number of the configuration's first trial, which its later trials name as `source`.
    """
    found: dict[int, tuple[int, ...]] = {}
    for trial in trials:
        found[trial.config.first] = (*found.get(trial.config.first, ()), *trial.config.seeds)
    return found


def find_missing_seeds(
    seeds: Iterable[int], trials: Sequence[TrialProgress], more: Iterable[int] = ()
) -> dict[int, tuple[int, ...]]:
    """Return those of `seeds` that each configuration in `trials` or `more` lacks; complete ones are omitted.

    A configuration with a failed trial is omitted too: its remaining seeds alone would be read as its result.
    """
    wanted, had = list(seeds), seeds_by_source(trials)
    failed = {trial.config.first for trial in trials if trial.state is TrialState.FAIL}
    found = {n: tuple(s for s in wanted if s not in had.get(n, ())) for n in dict.fromkeys([*had, *more])}
    return {number: missing for number, missing in found.items() if missing and number not in failed}
