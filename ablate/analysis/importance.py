"""How much each searched setting decides whether a trial is among the best: PED-ANOVA (arXiv 2304.10255, 2601.20800).

Optuna computes it. Its conditional form counts a setting only where it was searched, so settings that only some trials
have are compared with the others on one scale.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ablate.base.randomness import stream

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

LEAST = 10  # complete trials
BEST_SHARE, FEWEST_BEST = 0.1, 5  # the best tenth, at least 5 trials: Optuna's advice
RESAMPLES, FEWEST_RESAMPLES, WORK = 100, 25, 100_000  # resamples times trials
RANGE = (10, 90)  # percentiles of the resamples


@dataclass(frozen=True, kw_only=True)
class Importance:
    """The importance of one setting, a share of all: the shares of an objective sum to 1.

    `low` and `high` are the 10th and 90th percentiles over resamples of the trials, widened to contain the share;
    `active` counts the trials in which the setting was searched.
    """

    parameter: str
    share: float
    low: float
    high: float
    active: int


@dataclass(frozen=True, kw_only=True)
class Importances:
    """The importances for one objective, the largest first; without any, `reason` says why."""

    metric: str
    trials: int
    best: int
    resamples: int
    rows: tuple[Importance, ...]
    reason: str = ""

    @property
    def order(self) -> tuple[str, ...]:
        """The settings, the most important first."""
        return tuple(row.parameter for row in self.rows)


def importances(
    metric: str,
    losses: Sequence[float],
    parameters: Sequence[Mapping[str, Any]],
    distributions: Mapping[str, BaseDistribution],
    *,
    study_seed: int,
    dataset: str,
) -> Importances:
    """Return the importance of each setting for a metric's losses [n], of which the smaller is the better.

    `parameters` [n] are Optuna's values of the settings that were searched in each trial. Trials whose loss is not
    finite do not enter. A setting with one value has no importance and is not listed.
    """
    kept = [place for place, value in enumerate(losses) if math.isfinite(value)]
    values = [losses[place] for place in kept]
    names = _varied([parameters[place] for place in kept], distributions)
    if reason := _refusal(values, names):
        return Importances(metric=metric, trials=len(kept), best=0, resamples=0, rows=(), reason=reason)
    trials = [
        _frozen(number, values[number], parameters[place], distributions, names) for number, place in enumerate(kept)
    ]
    quantile = max(BEST_SHARE, FEWEST_BEST / len(trials))
    shares = evaluated(trials, names, quantile)
    rng = stream(study_seed, dataset, 0, "importance", metric)
    resamples = min(max(WORK // len(trials), FEWEST_RESAMPLES), RESAMPLES)
    drawn = [[trials[i] for i in rng.integers(0, len(trials), len(trials))] for _ in range(resamples)]
    low, high = np.percentile([evaluated(sample, names, quantile) for sample in drawn], RANGE, axis=0)
    rows = [
        Importance(
            parameter=name,
            share=shares[place],
            low=min(float(low[place]), shares[place]),  # resamples repeat trials, which favours the other settings
            high=max(float(high[place]), shares[place]),
            active=sum(name in trial.params for trial in trials),
        )
        for place, name in enumerate(names)
    ]
    best = math.ceil(quantile * len(trials))
    ordered = tuple(sorted(rows, key=lambda row: (-row.share, row.parameter)))
    return Importances(metric=metric, trials=len(trials), best=best, resamples=resamples, rows=ordered)


def evaluated(trials: Sequence[FrozenTrial], names: Sequence[str], quantile: float) -> list[float]:
    """Return Optuna's importance of each of `names` for being among the best `quantile` of `trials`, as shares of all.

    A resample in which all trials are equally good has no importances: its shares are 0.
    """
    from optuna.importance import PedAnovaImportanceEvaluator

    study = _study_type()(trials)
    with warnings.catch_warnings():  # a resample may have too few trials with a rare setting
        warnings.simplefilter("ignore")
        asked = [name for name in names if any(name in trial.params for trial in trials)]
        found = PedAnovaImportanceEvaluator(target_quantile=quantile).evaluate(study, params=asked)
    total = sum(found.values())
    return [found.get(name, 0.0) / total if total > 0 else 0.0 for name in names]


def _refusal(losses: Sequence[float], names: Sequence[str]) -> str:
    if len(losses) < LEAST:
        return f"{len(losses)} complete trial{'s' * (len(losses) != 1)}, {LEAST} are needed"
    if not names:
        return "no setting with more than one value is searched"
    if min(losses) == max(losses):
        return "all complete trials have the same value"
    return ""


def _varied(parameters: Sequence[Mapping[str, Any]], distributions: Mapping[str, BaseDistribution]) -> list[str]:
    """Return the settings that were searched in some trial and can take more than one value, in their order."""
    return [
        name
        for name, distribution in distributions.items()
        if not distribution.single() and any(name in own for own in parameters)
    ]


def _frozen(
    number: int,
    loss: float,
    parameters: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    names: Sequence[str],
) -> FrozenTrial:
    from optuna.trial import FrozenTrial, TrialState

    then = datetime(2000, 1, 1, tzinfo=UTC)  # the evaluator reads no times
    own = [name for name in names if name in parameters]
    return FrozenTrial(
        number=number,
        trial_id=number,
        state=TrialState.COMPLETE,
        value=loss,
        datetime_start=then,
        datetime_complete=then,
        params={name: parameters[name] for name in own},
        distributions={name: distributions[name] for name in own},
        user_attrs={},
        system_attrs={},
        intermediate_values={},
    )


@cache
def _study_type() -> Any:
    """Return the type of an Optuna study of given trials; a storage would copy them for each resample."""
    import optuna

    class Given(optuna.Study):
        def __init__(self, trials: Sequence[FrozenTrial]) -> None:
            super().__init__(study_name="given", storage=storage)
            self.given = list(trials)

        def get_trials(self, deepcopy: bool = True, states: Any = None) -> list[FrozenTrial]:
            return self.given

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would say that a study was created
    storage = optuna.storages.InMemoryStorage()
    storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "given")
    return Given
