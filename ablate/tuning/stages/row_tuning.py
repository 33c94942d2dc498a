"""Equal tuning of a comparison's rows: the same values are tried for every row, and each seed is trained with its best.

Every tuning trial of a data set ends before the first row is trained, so which trials follow does not depend on the
order in which they end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ablate.base.randomness import stream
from ablate.core.trial import PLACE, Stage
from ablate.ledger import NewTrial
from ablate.study.tuning_seeds import tuning_seeds_of
from ablate.tuning.sampling.search_space import SearchSpace, inner_at_share
from ablate.tuning.sampling.suggester import Suggester
from ablate.tuning.stages.tuned_rows import RowPart, TunedRows, place_of
from ablate.tuning.state.trial_progress import further

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


@dataclass(frozen=True, kw_only=True)
class RowTuning:
    """Makes the trials of a tuned comparison on one data set, in order: all tuning trials, then the rows themselves."""

    study: Study
    dataset: str
    suggester: Suggester

    @cached_property
    def _draws(self) -> Sequence[Mapping[str, Any]]:
        return tuning_draws(self.study, self.dataset)

    def waits(self, rows: TunedRows) -> bool:
        """Return whether all asked-for tuning trials exist and one of them has not ended, so that no row can follow."""
        ended = all(trial.state.finished for trial in rows.tuning)
        return not ended and not rows.further_tuning and self._next_tuning(0, rows) is None

    def next_trial(self, number: int, rows: TunedRows) -> NewTrial | None:
        """Return the next trial of the data set, or None if all rows have theirs.

        A row that cannot be built with some values is not tried with them. On a seed without a complete tuning trial a
        row has no best values, so it is not trained on it.
        """
        if (new := self._next_tuning(number, rows)) is not None:
            return new
        part = next(iter(rows.further_tuning), None) or next(rows.lacking(), None)
        return None if part is None else self._of(part, number)

    def _next_tuning(self, number: int, rows: TunedRows) -> NewTrial | None:
        after = max((place_of(trial) for trial in rows.tuning), default=-1) + 1
        for place in range(after, len(rows.design) * len(self._draws)):
            draw, row = divmod(place, len(rows.design))
            new = self.suggester.build(number, {**rows.design[row], **self._draws[draw]})
            if new is not None:
                seeds = tuning_seeds_of(self.study, new.config.variant)
                config = replace(new.config, stage="tune", seeds=seeds)
                return replace(new, config=config, sampler_state=_state(place))
        return None

    def _of(self, part: RowPart, number: int) -> NewTrial:
        """Return the trial of a part of a row, or the further seeds of a tuning trial."""
        stage: Stage = "tune" if part.like.number == part.source else "search"
        changed = {"stage": stage, "seeds": part.seeds, "source": part.source}
        new = further(part.like, number, self.suggester.facts(), **changed)
        return replace(new, sampler_state=_state(part.place))


def _state(place: int) -> dict[str, Any]:
    return {"trial": {PLACE: place}, "study": {}}
