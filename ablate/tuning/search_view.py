"""What can be read of a running search at any moment: states, progress, fronts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.core.objectives import count_states
from ablate.core.trial import TrialKey, TrialState
from ablate.ledger import StudyWriter
from ablate.study.tuning_seeds import tuning_seeds
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.recorded import RecordedSearch, has_room
from ablate.tuning.stages.confirmation import FrontMember, find_untested
from ablate.tuning.state.standing import StageStanding, Standing, stage_standing

if TYPE_CHECKING:
    from ablate.study import Study


class SearchView:
    """Reads the state of a search, under its lock."""

    study: Study
    _lock: threading.RLock
    _writer: StudyWriter
    _subsearches: Mapping[str, DatasetSearch]
    _out: set[TrialKey]
    _stopped: bool

    def counts(self) -> dict[str, dict[str, int]]:
        """Return for each data set how many of its trials are in each state."""
        with self._lock:
            return {
                name: count_states(t.state for t in subsearch.trials.values())
                for name, subsearch in self._subsearches.items()
            }

    def reported(self) -> dict[str, int]:
        """Return for each data set how many reports have been committed."""
        with self._lock:
            return {
                name: sum(len(t.decisions) for t in subsearch.trials.values())
                for name, subsearch in self._subsearches.items()
            }

    def most_at_once(self) -> int:
        """Return how many trials can run at a time now, including those that run."""
        with self._lock:
            if self._stopped:
                return len(self._out)
            each = self._subsearches.values()
            new = sum(one.most_new() for one in each if self._room(one))
            if self.study.budget.scope == "total":
                new = min(new, self.study.budget.trials - sum(len(one.search_trials()) for one in each))
            return new + sum(not trial.state.finished for one in each for trial in one.trials.values())

    def standings(self, planned: Mapping[str, int]) -> tuple[Standing, ...]:
        """Return the progress of each data set; `planned` is an upper bound on the search trials of each."""
        with self._lock:
            limit = self.study.budget.wall_clock
            left = None if limit is None else limit - self._writer.active_seconds()
            return tuple(
                _standing(subsearch, subsearch.to_start(planned[name]) if self._room(subsearch) else 0, left)
                for name, subsearch in self._subsearches.items()
            )

    def front(self, dataset: str) -> tuple[FrontMember, ...]:
        """Return the front of a data set's finished search trials, best on the first objective first."""
        with self._lock:
            return self._subsearches[dataset].front()

    def _room(self, subsearch: DatasetSearch) -> bool:
        return has_room(subsearch, self._subsearches.values(), self._writer.active_seconds())


def _standing(search: RecordedSearch, to_start: int, time_left: float | None) -> Standing:
    """Return the progress of a data set; `to_start` counts search trials that do not exist yet."""
    study, trials = search.study, list(search.trials.values())
    before: list[StageStanding] = []
    of_row = None  # the seconds of a trial of a row until one shows it, as tuning trials suggest
    if study.tune is not None:
        before = [stage_standing("tune", trials, to_start=search.tuning_to_start())]
        if (seconds := before[0].seconds) is not None:
            rows = len(search.design)
            of_row = seconds * study.replicates / tuning_seeds(study) / (max(to_start, rows) / rows)
    own = stage_standing("search", trials, to_start=to_start, otherwise=of_row)
    stages = [*before, own, *([_test_standing(search, own)] if study.opens_test else [])]
    return Standing(dataset=search.dataset, stages=tuple(stages), time_left=time_left)


def _test_standing(search: RecordedSearch, own: StageStanding) -> StageStanding:
    """Return the progress of the trials on the test split; before the freeze, of those requested so far.

    `own` is the progress of the search. A comparison evaluates every trial that does not fail, in a time that is
    negligible beside training.
    """
    trials, confirm = list(search.trials.values()), search.study.confirm
    if confirm is None:
        untrained = own.total - own.done
        new, seconds = untrained + len(find_untested(trials)), 0.0 if untrained else None
        return stage_standing("confirm", trials, to_start=new, otherwise=seconds)
    ended = [t for t in search.search_trials() if t.state is TrialState.COMPLETE]
    share = confirm.replicates / search.study.replicates
    full = sum(t.wall_seconds for t in ended) / len(ended) * share if ended else None
    new = 0 if search.frozen else len(search.unconfirmed())
    return stage_standing("confirm", trials, to_start=new, otherwise=full)
