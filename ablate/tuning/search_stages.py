"""The stages of a search: its end and the frozen front; each is committed as it begins."""

from __future__ import annotations

from collections.abc import Sequence

from ablate.core.trial import TrialState
from ablate.ledger import NewEvent, NewTrial
from ablate.ledger.requests import JUDGED
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.recorded import FROZEN, HOURS_UP, TIME_UP, has_trials_left, hours_spent, is_over
from ablate.tuning.search_view import SearchView
from ablate.tuning.state.trial_progress import DRIVER_STARTED, TrialProgress
from ablate.tuning.state.trial_queue import TrialQueue
from ablate.tuning.user_requests import Requests

DECIDED = "its candidate is decided"


class SearchStages(SearchView):
    """Commits the events that begin and end the stages of a search, under its lock."""

    _queue: TrialQueue
    _requests: Requests
    _begun: bool
    _gpus_per_trial: float

    def _referee(self) -> None:
        """Commit what is due in a campaign: decisions, then the changes submitted since, then its closing.

        Runs that wait for a candidate that is decided meanwhile are ended; those in training end at their next report.
        """
        for subsearch in self._subsearches.values():
            if subsearch.campaign is None:
                continue
            while (found := subsearch.campaign.decision()) is not None:
                self._note(subsearch, JUDGED, **found)
            self._requests.submit(subsearch)
            if (event := self._requests.closing(subsearch)) is not None:
                self._add(subsearch, subsearch.closing(), event)
            for run in subsearch.trials.values():
                waits = not run.state.finished and run.key not in self._out
                if waits and subsearch.campaign.is_over(run):
                    self._begin()
                    self._writer.finish(run.key, TrialState.PRUNED, DECIDED)
                    self._end(subsearch, run, TrialState.PRUNED)

    def _end(self, subsearch: DatasetSearch, trial: TrialProgress, state: TrialState) -> None:
        trial.state = state
        self._out.discard(trial.key)
        subsearch.tell(trial)

    def _note_spent(self) -> None:
        """Commit that the budget of time or of GPU hours is spent, once for each data set.

        A killed driver may have stored less active time, and a trial that is tried again may delete reports later.
        """
        everyone, budget = self._subsearches.values(), self.study.budget
        time, hours = budget.wall_clock if self._begun else None, budget.most_hours
        active, used = self._writer.active_seconds(), hours_spent(self.study, everyone)
        for subsearch in everyone if time or hours else ():
            if not has_trials_left(subsearch, everyone):
                continue
            count = len(subsearch.search_trials())
            if time is not None and subsearch.time_up < time <= active:
                self._note(subsearch, TIME_UP, wall_clock=time, search_trials=count)
            if hours is not None and subsearch.hours_up < hours <= used:
                self._note(subsearch, HOURS_UP, gpu_hours=hours, used=used, search_trials=count)

    def _over(self, subsearch: DatasetSearch) -> bool:
        return is_over(subsearch, self._subsearches.values(), self._writer.active_seconds())

    def _freeze(self) -> bool:
        """Freeze the fronts of the searches that have just ended; return whether there was one."""
        ready = [each for each in self._subsearches.values() if self._over(each) and not each.frozen]
        for subsearch in ready:
            new = subsearch.to_confirm()
            chosen = [record.config.source if c is None else c for record in new for c in [record.config.evaluates]]
            payload = {"search_trials": len(subsearch.search_trials()), "confirmed": chosen}
            self._add(subsearch, new, NewEvent(kind=FROZEN, dataset=subsearch.dataset, payload=payload))
        return bool(ready)

    def _add(self, subsearch: DatasetSearch, new: Sequence[NewTrial], event: NewEvent) -> None:
        """Commit the trials of a stage and the event that begins it in one transaction, and queue the trials."""
        self._begin()
        self._writer.add_trials(new, event)
        subsearch.mark(event.kind, event.payload)
        for record in new:
            self._queue.put(subsearch.add(record))

    def _note(self, subsearch: DatasetSearch, kind: str, **payload: object) -> None:
        self._begin()
        self._writer.note(kind, subsearch.dataset, payload)
        subsearch.mark(kind, payload)

    def _begin(self) -> None:
        """Record the driver's start before its first write; a driver with nothing to do leaves no event."""
        if not self._begun:
            gpus = {"gpus_per_trial": self._gpus_per_trial} if self._gpus_per_trial != 1 else {}
            self._writer.note(DRIVER_STARTED, None, {"holder": self._writer.holder, **gpus})
            self._begun = True
