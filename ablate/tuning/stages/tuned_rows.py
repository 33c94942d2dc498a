"""What the rows of a tuned comparison still lack: tuning seeds, then their own seeds with the values that won.

Seed j of a row is trained with the values that won on tuning seed j alone, so each seed is an independent repetition of
tuning and training. Seeds with the same winner are one trial; the further trials of a row name the first as `source`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ablate.core.objectives import winner
from ablate.core.trial import PLACE, TUNE_SEED_BASE, TrialState
from ablate.study import VARIANT
from ablate.study.tuning_seeds import tuning_seed_of, tuning_seeds_of
from ablate.tuning.stages.confirmation import seeds_by_source
from ablate.tuning.state.trial_progress import TrialProgress

if TYPE_CHECKING:
    from ablate.study import Study


@dataclass(frozen=True, kw_only=True)
class RowPart:
    """The seeds of a row that the same values won: the trial to come, or the tuning seeds that a tuning trial lacks.

    `like` is the tuning trial with the values, `source` the number of the first trial of the row, None for that itself.
    """

    place: int
    like: TrialProgress
    seeds: tuple[int, ...]
    source: int | None


@dataclass(frozen=True, kw_only=True)
class TunedRows:
    """The tuning trials and rows of one data set, as they are; `design` has the parameters of each row."""

    study: Study
    design: Sequence[Mapping[str, Any]]
    trials: Iterable[TrialProgress]

    @cached_property
    def tuning(self) -> list[TrialProgress]:
        """The tuning trials by number."""
        return [trial for trial in self.trials if trial.config.stage == "tune"]

    @cached_property
    def trained(self) -> dict[int, list[TrialProgress]]:
        """The trials of each row by its place in the design."""
        found: dict[int, list[TrialProgress]] = {}
        for trial in self.trials:
            if trial.config.stage == "search":
                found.setdefault(place_of(trial), []).append(trial)
        return found

    @cached_property
    def further_tuning(self) -> list[RowPart]:
        """The tuning seeds that tuning trials lack because the study asks for more than before."""
        had, found = seeds_by_source(self.tuning), []
        for first in (trial for trial in self.tuning if trial.config.source is None):
            asked = tuning_seeds_of(self.study, first.config.variant)
            if missing := tuple(seed for seed in asked if seed not in had[first.number]):
                found.append(RowPart(place=place_of(first), like=first, seeds=missing, source=first.number))
        return found

    @cached_property
    def tuning_ended(self) -> bool:
        """Whether every tuning trial that exists has ended and has the seeds that the study asks for."""
        return not self.further_tuning and all(trial.state.finished for trial in self.tuning)

    def lacking(self) -> Iterator[RowPart]:
        """Yield the trials of rows that are to come once the tuning has ended, in the order of the design."""
        for place in range(len(self.design)):
            yield from self._parts(place)

    def rows_to_train(self) -> int:
        """Return how many rows lack seeds, whatever their tuning finds."""
        return sum(bool(self._missing(place)) for place in range(len(self.design)))

    def has_decided(self, trial: TrialProgress) -> bool:
        """Return whether a row is trained on a seed whose values a tuning trial helps, or would help, to choose."""
        own = {seed - TUNE_SEED_BASE - self.study.seeds_of(trial.config.variant)[0] for seed in trial.config.seeds}
        return any(
            tuning_seed_of(self.study, None, seed - self.study.seeds_of(row.config.variant)[0]) - TUNE_SEED_BASE in own
            for trials in self.trained.values()
            for row in trials
            for seed in row.config.seeds
        )

    def _missing(self, place: int) -> list[int]:
        had = {seed for trial in self.trained.get(place, ()) for seed in trial.config.seeds}
        return [seed for seed in self.study.seeds_of(self._variant(place)) if seed not in had]

    def _parts(self, place: int) -> Iterator[RowPart]:
        """Yield the trials that a row lacks, ordered by their first seed; a seed without a winner is in none."""
        groups: dict[int, tuple[TrialProgress, list[int]]] = {}
        for seed in self._missing(place):
            best = self._winner(place, tuning_seed_of(self.study, self._variant(place), seed))
            if best is not None:
                groups.setdefault(best.config.first, (best, []))[1].append(seed)
        source = next((trial.number for trial in self.trained.get(place, ())), None)
        for best, seeds in groups.values():
            yield RowPart(place=place, like=best, seeds=tuple(seeds), source=source)

    def _winner(self, place: int, seed: int) -> TrialProgress | None:
        """Return the first of `ranked` of a row's tuning trials on a seed; one that diverged has no score."""
        tried = [trial for trial in self._complete_tuning.get(place, ()) if seed in trial.config.seeds]
        best = winner(self.study.tuning_objective, self.study.constraints, lambda m: [t.metric(m, seed) for t in tried])
        return None if best is None else tried[best]

    @cached_property
    def _complete_tuning(self) -> dict[int, list[TrialProgress]]:
        """The complete tuning trials of each row by its place in the design."""
        found: dict[int, list[TrialProgress]] = {}
        for trial in self.tuning:
            if trial.state is TrialState.COMPLETE:
                found.setdefault(place_of(trial) % len(self.design), []).append(trial)
        return found

    def _variant(self, place: int) -> str:
        return str(self.design[place][VARIANT])


def place_of(trial: TrialProgress) -> int:
    """Return the place of a trial of a tuned comparison: in its draws and rows, or in its rows."""
    return int(trial.sampler_state["trial"][PLACE])
