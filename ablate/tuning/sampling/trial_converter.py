"""Converts trials to Optuna's: complete, pruned, constraint violated or failed (docs/searching.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial
from optuna.trial import TrialState as Told

from ablate.core.trial import TrialState
from ablate.tuning.sampling.ledger_storage import freeze
from ablate.tuning.sampling.request import SamplerTraits
from ablate.tuning.sampling.search_space import SearchSpace
from ablate.tuning.state.curves import Curves
from ablate.tuning.state.trial_progress import UNSEEN, TrialProgress

if TYPE_CHECKING:
    from ablate.study import Study

SEEN = -1.0  # clearly kept, so that a sampler that models the constraint can distinguish it from 0


@dataclass(frozen=True, kw_only=True)
class TrialConverter:
    """Converts trials to Optuna's; objectives are always minimised, and the constraints are always the same.

    With `by_constraint`, a pruned trial is converted to COMPLETE with its last values, and the share of its training
    that was not seen becomes a violated constraint. Otherwise (one objective, a sampler that reads PRUNED) it is
    converted to PRUNED with its last value.
    """

    study: Study
    dimensions: SearchSpace
    by_constraint: bool

    @staticmethod
    def of(study: Study, dimensions: SearchSpace) -> TrialConverter:
        """Return the converter that suits the study's objectives, scheduler and sampler."""
        told = SamplerTraits.of(study.sampler.name).stopped_as or ("violating" if study.objectives[1:] else "pruned")
        blind = told == "violating" and study.scheduler.name != "none"
        return TrialConverter(study=study, dimensions=dimensions, by_constraint=blind)

    def to_frozen_trial(self, trial: TrialProgress, curves: Curves) -> FrozenTrial:
        """Return `trial` as the sampler sees it: with the best report up to now, as `curves` tells."""
        ranges = self.dimensions.space.ranges  # tuned values of a comparison are not among them
        inner = self.dimensions.encode({k: v for k, v in trial.config.parameters.items() if k in ranges})
        row = curves.row_of(trial.number)
        values = tuple(row[: curves.objectives])
        state, known = self._state(trial, values, trial.number in curves.outgrown)
        shown = state is Told.PRUNED and len(values) == 1 and known
        return freeze(
            number=trial.number,
            state=state,
            inner=inner,
            distributions={name: self.dimensions.distributions[name] for name in inner},
            values=values if state is Told.COMPLETE or shown else None,
            intermediate={trial.epoch: values[0]} if shown else None,
            attrs=trial.sampler_state.get("trial", {}),
            constraints=self._constraints(trial, curves, known) if state in (Told.COMPLETE, Told.PRUNED) else None,
        )

    def _state(self, trial: TrialProgress, values: tuple[float, ...], outgrown: bool) -> tuple[Told, bool]:
        """Return Optuna's state and whether the values are usable."""
        known = all(math.isfinite(value) for value in values)
        if not trial.state.finished:
            return Told.RUNNING, False
        if trial.state is TrialState.FAIL:
            return (Told.PRUNED if trial.diverged or outgrown else Told.FAIL), False
        if trial.state is TrialState.COMPLETE:
            return (Told.COMPLETE, True) if known else (Told.PRUNED, False)
        return (Told.COMPLETE, True) if known and self.by_constraint else (Told.PRUNED, known)

    def _constraints(self, trial: TrialProgress, curves: Curves, known: bool) -> dict[str, float]:
        found = dict(zip(curves.bounds, curves.row_of(trial.number)[curves.objectives :], strict=True))
        if not known:
            found[UNSEEN] = 1.0
        elif self.by_constraint:
            complete = trial.state is TrialState.COMPLETE
            found[UNSEEN] = SEEN if complete else max(1.0 - trial.epoch / trial.config.epochs, 1e-6)
        return found
