"""Progress of the search of a data set, from its trials and events alone; reading it needs no sampler."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ablate.core.trial import CONFIRM_SEED_BASE, TrialState
from ablate.ledger import Snapshot
from ablate.tuning.stages.confirmation import FrontMember, find_missing_seeds, find_untested, front, spread
from ablate.tuning.stages.tuned_rows import TunedRows
from ablate.tuning.state.planned import tuning_trials
from ablate.tuning.state.trial_progress import ReportSummary, TrialProgress, steps

if TYPE_CHECKING:
    from ablate.study import Study
    from ablate.tuning.stages.candidate_runs import Campaign

EXHAUSTED, TIME_UP, FROZEN, TEST_OPENED = "exhausted", "time_up", "frozen", "test_opened"
HOURS_UP = "hours_up"


@dataclass(kw_only=True)
class RecordedSearch:
    """The trials of one data set and the events of its search, as stored in the ledger."""

    study: Study
    dataset: str
    trials: dict[int, TrialProgress] = field(default_factory=dict)
    exhausted: bool = False
    time_up: float = 0.0  # the time budget, in seconds, that was found to be spent
    hours_up: float = 0.0  # the budget of GPU hours that was found to be spent
    frozen_at: int = -1  # number of search trials when the front was last frozen
    test_opened: bool = False
    _of_search: list[TrialProgress] = field(default_factory=list)
    begun: int = 0  # number of search and tuning trials
    campaign: Campaign | None = None

    def __post_init__(self) -> None:
        if self.study.campaign is not None:
            from ablate.tuning.stages.candidate_runs import Campaign  # imports scipy

            self.campaign = Campaign(self.study, self.dataset)

    def restore(self, found: Snapshot, taken: Sequence[ReportSummary]) -> None:
        """Load what the ledger has of the data set: trials by number, reports (`taken`) and events in commit order."""
        for record in found.trials:
            if record.key.dataset == self.dataset:
                self.enter(TrialProgress.of(record))
        for step in taken:
            if step.key.dataset == self.dataset:
                self.take(self.trials[step.key.number], step)
        for event in found.events:
            if event.dataset in (self.dataset, None):
                self.mark(event.kind, event.payload)

    def enter(self, trial: TrialProgress) -> None:
        """Add the trial with the next number."""
        self.trials[trial.number] = trial
        self.begun += trial.config.stage != "confirm"
        if trial.config.stage == "search":
            self._of_search.append(trial)
        if self.campaign is not None:
            self.campaign.enter(trial)

    def take(self, trial: TrialProgress, step: ReportSummary) -> None:
        """Apply one committed report."""
        trial.take(step)

    def mark(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Apply one event."""
        if self.campaign is not None:
            self.campaign.mark(kind, payload)
        if kind == EXHAUSTED:  # a wider range (--extend) has further configurations
            self.exhausted = payload["fingerprint"] == self.study.fingerprint()
        elif kind == TIME_UP:
            self.time_up = payload["wall_clock"]
        elif kind == HOURS_UP:
            self.hours_up = payload["gpu_hours"]
        elif kind == FROZEN:
            self.frozen_at, self.test_opened = payload["search_trials"], False
        elif kind == TEST_OPENED:
            self.test_opened = True

    def search_trials(self) -> Sequence[TrialProgress]:
        """Return the search's trials by number."""
        return self._of_search

    def front(self) -> tuple[FrontMember, ...]:
        """Return the front of the search's finished trials."""
        return front(self.study, self.search_trials())

    def is_users(self, trial: TrialProgress) -> bool:
        """Return whether a search trial has the user's settings: it is trained to its end, and confirmed in any case.

        It is the first of the trials that `start` and the defaults of ranges ask for.
        """
        return trial.config.stage == "search" and trial.sampler_state.get("given", {}).get("start") == 0

    def unconfirmed(self) -> list[tuple[TrialProgress, tuple[int, ...]]]:
        """Return (search trial, missing seeds) pairs: those already begun first, then the front's, then the user's."""
        assert self.study.confirm is not None
        begun = [trial for trial in self.trials.values() if trial.config.stage == "confirm"]
        chosen = [member.config.key.number for member in spread(self.study, self.front(), self.study.confirm.top)]
        chosen += [t.number for t in self.search_trials() if self.is_users(t) and t.state is TrialState.COMPLETE]
        seeds = [CONFIRM_SEED_BASE + i for i in range(self.study.confirm.replicates)]
        return [(self.trials[n], missing) for n, missing in find_missing_seeds(seeds, begun, chosen).items()]

    @property
    def frozen(self) -> bool:
        """Whether the front of all search trials is frozen and every trial that the freeze asks for exists."""
        if not self.study.opens_test:
            return True
        asked = find_untested(list(self.trials.values())) if self.study.compare is not None else self.unconfirmed()
        return self.frozen_at == len(self.search_trials()) and not asked

    @property
    def lacks_seeds(self) -> bool:
        """Whether trials of a comparison, or the tuning of its rows, lack requested seeds."""
        if self.study.tune is None:
            return bool(self.missing_seeds())
        rows = self.tuned_rows()
        return not rows.tuning_ended or next(rows.lacking(), None) is not None

    def to_start(self, planned: int) -> int:
        """Return how many search trials remain to start, of `planned` and for a comparison's additional seeds.

        Rows that are tuned count once until their tuning tells how many trials each of them needs.
        """
        if self.campaign is not None:
            return len(self.campaign.wanted())
        if self.study.tune is not None:
            rows = self.tuned_rows()
            return rows.rows_to_train() if self.is_tuning else sum(1 for _ in rows.lacking())
        begun = sum(trial.config.source is None for trial in self.search_trials())
        return max(planned - begun, 0) + len(self.missing_seeds())

    def tuning_to_start(self) -> int:
        """Return how many tuning trials remain to start, at most."""
        rows = self.tuned_rows()
        if self.exhausted or rows.trained:
            return len(rows.further_tuning)
        begun = sum(trial.config.source is None for trial in rows.tuning)
        return max(tuning_trials(self.study)[self.dataset] - begun, 0) + len(rows.further_tuning)

    def tuned_rows(self) -> TunedRows:
        """Return what the rows of a tuned comparison lack now."""
        return TunedRows(study=self.study, design=self.design, trials=self.trials.values())

    @cached_property
    def design(self) -> Sequence[Mapping[str, Any]]:
        """The parameters of every trial of a comparison."""
        return self.study.design(self.dataset)

    @property
    def is_tuning(self) -> bool:
        """Whether rows of a comparison are still tuned."""
        if self.study.tune is None:
            return False
        return not (self.exhausted or self.search_trials()) or not self.tuned_rows().tuning_ended

    def may_retry(self, trial: TrialProgress) -> bool:
        """Return whether a failed trial may be tried again: a tuning trial only before a row is trained by it."""
        return trial.config.stage != "tune" or not self.tuned_rows().has_decided(trial)

    def missing_seeds(self) -> dict[int, tuple[int, ...]]:
        """Return the requested seeds that trials of a comparison without tuning lack, by number."""
        if self.study.compare is None:
            return {}
        found: dict[int, tuple[int, ...]] = {}
        by_seeds: dict[tuple[int, ...], list[TrialProgress]] = {}
        for trial in self.search_trials():
            by_seeds.setdefault(self.study.seeds_of(trial.config.variant), []).append(trial)
        for seeds, trials in by_seeds.items():
            found |= find_missing_seeds(seeds, trials)
        return dict(sorted(found.items()))


def recorded_searches(study: Study, snapshot: Snapshot) -> dict[str, RecordedSearch]:
    """Return the recorded search of each data set of `study`, from a snapshot of its ledger."""
    found = {name: RecordedSearch(study=study, dataset=name) for name in study.labels}
    taken = steps(snapshot.reports, snapshot.events)
    for search in found.values():
        search.restore(snapshot, taken)
    return found


def has_room(search: RecordedSearch, everyone: Collection[RecordedSearch], active_seconds: float) -> bool:
    """Return whether the budget allows another search trial of a data set; `active_seconds` counts all drivers."""
    spent = is_time_up(search, active_seconds) or is_hours_up(search, hours_spent(search.study, everyone, planned=True))
    return has_trials_left(search, everyone) and not spent


def has_trials_left(search: RecordedSearch, everyone: Collection[RecordedSearch]) -> bool:
    """Return whether the budget and the space of a data set have trials left."""
    budget = search.study.budget
    sharing = [search] if budget.scope == "per_dataset" else everyone
    begun = sum(len(each.search_trials()) for each in sharing)
    ended = search.exhausted or (search.campaign is not None and not search.campaign.is_open)
    return (not ended and begun < budget.trials) or search.lacks_seeds


def is_time_up(search: RecordedSearch, active_seconds: float) -> bool:
    """Return whether the time budget is spent; once recorded for a data set, this stays true for that budget."""
    limit = search.study.budget.wall_clock
    return limit is not None and (search.time_up >= limit or active_seconds >= limit)


def is_hours_up(search: RecordedSearch, hours: float) -> bool:
    """Return whether the budget of GPU hours is spent; once recorded for a data set, this stays true for it."""
    limit = search.study.budget.most_hours
    return limit is not None and (search.hours_up >= limit or hours >= limit)


def is_spent(search: RecordedSearch) -> bool:
    """Return whether no further search trial may begin, because trials, time or hours are used up."""
    trials = len(search.search_trials()) >= search.study.budget.trials
    return trials or is_time_up(search, 0.0) or is_hours_up(search, 0.0)


def hours_spent(study: Study, everyone: Collection[RecordedSearch], *, planned: bool = False) -> float:
    """Return the GPU hours of all reports of search trials, 0 if no budget and no price asks for them.

    With `planned`, a trial that has not ended counts with the mean of those that have, if that is more.
    """
    if study.budget.most_hours is None and study.budget.price is None:
        return 0.0
    trials = [trial for each in everyone for trial in each.search_trials()]
    ended = [trial.gpu_seconds for trial in trials if trial.state.finished]
    least = sum(ended) / len(ended) if ended and planned else 0.0
    return sum(t.gpu_seconds if t.state.finished else max(t.gpu_seconds, least) for t in trials) / 3600


def is_over(search: RecordedSearch, everyone: Collection[RecordedSearch], active_seconds: float) -> bool:
    """Return whether a data set's search has ended: no search trial remains to start or to finish."""
    room = has_room(search, everyone, active_seconds)
    return not room and all(trial.state.finished for trial in search.search_trials())


def is_finished(everyone: Collection[RecordedSearch], active_seconds: float) -> bool:
    """Return whether every search is over, every front frozen and confirmed, and no trial is unfinished."""
    over = all(is_over(each, everyone, active_seconds) and each.frozen for each in everyone)
    return over and all(trial.state.finished for each in everyone for trial in each.trials.values())
