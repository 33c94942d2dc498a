"""The stages of a search: its end, the frozen front, and rounds of further seeds; each is committed as it begins."""

from __future__ import annotations

from collections.abc import Sequence

from ablate.ledger import NewEvent, NewTrial
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.racing import RACED, budget_of
from ablate.tuning.recorded import DRIVER_STARTED, FROZEN, TIME_UP, has_trials_left, is_over, is_time_up
from ablate.tuning.search_view import SearchView
from ablate.tuning.trial_queue import TrialQueue


class SearchStages(SearchView):
    """Commits the events that begin and end the stages of a search, under its lock."""

    _queue: TrialQueue
    _begun: bool

    def _note_time_up(self) -> None:
        """Commit that the time budget is spent; a killed driver may have stored less active time than that."""
        limit = self.study.budget.wall_clock
        if limit is None or not self._begun:
            return
        for subsearch in self._subsearches.values():
            up = is_time_up(subsearch, self._writer.active_seconds())
            if has_trials_left(subsearch, self._subsearches.values()) and subsearch.time_up < limit and up:
                self._note(subsearch, TIME_UP, wall_clock=limit, search_trials=len(subsearch.search_trials()))

    def _over(self, subsearch: DatasetSearch) -> bool:
        return is_over(subsearch, self._subsearches.values(), self._writer.active_seconds())

    def _freeze(self) -> bool:
        """Freeze the fronts of the searches that have just ended; return whether there was one."""
        ready = [each for each in self._subsearches.values() if self._over(each) and not each.frozen]
        for subsearch in ready:
            new = subsearch.to_confirm()
            chosen = [record.config.source if c is None else c for record in new for c in [record.config.evaluates]]
            budget = budget_of(self.study)
            more = {} if budget is None else {"budget": budget}
            payload = {"search_trials": len(subsearch.search_trials()), "confirmed": chosen, **more}
            self._add(subsearch, new, NewEvent(kind=FROZEN, dataset=subsearch.dataset, payload=payload))
        return bool(ready)

    def _race(self) -> bool:
        """Commit the next round of further seeds where every confirmation has ended; return whether there was one."""
        ready = [each for each in self._subsearches.values() if self._over(each) and each.frozen and not each.settled]
        ready = [each for each in ready if all(trial.state.finished for trial in each.trials.values())]
        for subsearch in ready:
            new, payload = subsearch.next_round()
            self._add(subsearch, new, NewEvent(kind=RACED, dataset=subsearch.dataset, payload=payload))
        return bool(ready)

    def _add(self, subsearch: DatasetSearch, new: Sequence[NewTrial], event: NewEvent) -> None:
        """Commit the trials of a stage and the event that begins it in one transaction, and queue the trials."""
        self._begin()
        self._writer.add_trials(new, event)
        subsearch.mark(event.kind, dict(event.payload))
        for record in new:
            self._queue.put(subsearch.add(record))

    def _note(self, subsearch: DatasetSearch, kind: str, **payload: object) -> None:
        self._begin()
        self._writer.note(kind, subsearch.dataset, payload)
        subsearch.mark(kind, payload)

    def _begin(self) -> None:
        """Record the driver's start before its first write; a driver with nothing to do leaves no event."""
        if not self._begun:
            self._writer.note(DRIVER_STARTED, None, {"holder": self._writer.holder})
            self._begun = True
