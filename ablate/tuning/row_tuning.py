"""Equal tuning of a comparison's rows: the same values are tried for every row, and each row is trained with its best.

Every tuning trial of a data set ends before the first row is trained, so which trials follow does not depend on the
order in which they end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ablate.base.randomness import stream
from ablate.ledger import NewTrial
from ablate.objectives import best_place
from ablate.trial import TUNE_SEED_BASE, TrialState
from ablate.tuning.search_space import SearchSpace, inner_at_share
from ablate.tuning.sequences import PLACE
from ablate.tuning.suggester import Suggester
from ablate.tuning.trial_progress import TrialProgress

if TYPE_CHECKING:
    from ablate.study import Study

MOST_POINTS = 1000  # points of the sequence for each trial: a space that repeats itself that often has no more of them


def tuning_draws(study: Study, dataset: str) -> tuple[dict[str, Any], ...]:
    """Return the values that every row of a data set tries, `tune.trials` at most.

    A finite space with no more points than that is tried whole. Otherwise the points are a Sobol' sequence, scrambled
    by the study's seed, on each range's scale.
    """
    assert study.tune is not None
    space, trials = study.tuned, study.tune.trials
    count = space.cardinality()
    if count is not None and count <= trials:
        return tuple(space.grid())
    from scipy.stats import qmc

    dimensions = SearchSpace.of(space)
    engine = qmc.Sobol(len(space.ranges), scramble=True, rng=stream(study.seed, dataset, 0, "tune"))
    found: dict[str, dict[str, Any]] = {}
    for _ in range(MOST_POINTS * trials):
        if len(found) == trials:
            break
        shares = dict(zip(space.ranges, engine.random(1)[0].tolist(), strict=True))
        values: dict[str, Any] = {}
        for name, spec in space.ranges.items():
            if space.is_active(name, values):
                values |= dimensions.decode({name: inner_at_share(spec, shares[name])})
        found.setdefault(repr(values), values)
    return tuple(found.values())


def best_tuning(study: Study, trials: Iterable[TrialProgress]) -> TrialProgress | None:
    """Return the best of one row's tuning trials by `tuning_metric`; None if none is complete and finite."""
    metric = study.tuning_metric
    assert metric is not None
    complete = sorted((t for t in trials if t.state is TrialState.COMPLETE), key=lambda trial: trial.number)
    place = best_place(metric, [trial.metric(metric) for trial in complete], study.objectives)
    return None if place is None else complete[place]


@dataclass(frozen=True, kw_only=True)
class RowTuning:
    """The trials of a tuned comparison on one data set, in their order: all tuning trials, then the rows themselves."""

    study: Study
    dataset: str
    suggester: Suggester

    @cached_property
    def _design(self) -> Sequence[Mapping[str, Any]]:
        return self.study.design(self.dataset)

    @cached_property
    def _draws(self) -> Sequence[Mapping[str, Any]]:
        return tuning_draws(self.study, self.dataset)

    def waits(self, trials: Iterable[TrialProgress]) -> bool:
        """Return whether every tuning trial exists and one of them has not ended, so that no row can follow yet."""
        tuning = [trial for trial in trials if trial.config.stage == "tune"]
        return not all(trial.state.finished for trial in tuning) and self._next_tuning(0, tuning) is None

    def next_trial(self, number: int, trials: Iterable[TrialProgress]) -> NewTrial | None:
        """Return the next trial of the data set, or None if all rows have theirs.

        A row that cannot be built with some values is not tried with them. A row without a complete tuning trial has
        no best values, so it is not trained.
        """
        trials = list(trials)
        tuning = [trial for trial in trials if trial.config.stage == "tune"]
        return self._next_tuning(number, tuning) or self._next_row(number, trials, tuning)

    def _next_tuning(self, number: int, tuning: Sequence[TrialProgress]) -> NewTrial | None:
        assert self.study.tune is not None
        for place in range(_after(tuning), len(self._design) * len(self._draws)):
            draw, row = divmod(place, len(self._design))
            new = self.suggester.build(number, {**self._design[row], **self._draws[draw]})
            if new is not None:
                first = TUNE_SEED_BASE + new.config.seeds[0]  # a placebo has other seeds here too
                seeds = tuple(range(first, first + self.study.tune.replicates))
                config = replace(new.config, stage="tune", seeds=seeds)
                return replace(new, config=config, sampler_state=_state(place))
        return None

    def _next_row(
        self, number: int, trials: Sequence[TrialProgress], tuning: Sequence[TrialProgress]
    ) -> NewTrial | None:
        of_row: dict[int, list[TrialProgress]] = {}
        for trial in tuning:
            of_row.setdefault(place_of(trial) % len(self._design), []).append(trial)
        rows = [trial for trial in trials if trial.config.stage == "search" and trial.config.source is None]
        for place in range(_after(rows), len(self._design)):
            best = best_tuning(self.study, of_row.get(place, ()))
            if best is not None:
                new = self.suggester.build(number, best.config.parameters)
                if new is not None:
                    return replace(new, sampler_state=_state(place))
        return None


def place_of(trial: TrialProgress) -> int:
    """Return the place of a trial of a tuned comparison: in its draws and rows, or in its rows."""
    return int(trial.sampler_state["trial"][PLACE])


def _after(trials: Sequence[TrialProgress]) -> int:
    return max((place_of(trial) for trial in trials), default=-1) + 1


def _state(place: int) -> dict[str, Any]:
    return {"trial": {PLACE: place}, "study": {}}
