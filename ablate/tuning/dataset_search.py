"""The search of one data set: its recorded trials, its sampler history and its rungs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ablate.base.errors import LedgerError
from ablate.core.config import DatasetFacts
from ablate.core.objectives import losses
from ablate.core.trial import CONFIRM_SEED_BASE, PLACE, Decision, Stage
from ablate.ledger import NewTrial, Snapshot
from ablate.ledger.requests import ANSWERED, RETRY
from ablate.tuning.recorded import RecordedSearch
from ablate.tuning.sampling.suggester import Suggester
from ablate.tuning.sampling.twins import Measure
from ablate.tuning.stages.confirmation import FrontMember, confirmation_trials, evaluations, shuffle
from ablate.tuning.stages.row_tuning import RowTuning
from ablate.tuning.state.trial_progress import ReportSummary, TrialProgress, further, metric_of
from ablate.tuning.stopping.rungs import RungReport, Rungs
from ablate.tuning.warm_start import WARM_START

if TYPE_CHECKING:
    from ablate.study import Study
    from ablate.tuning.stages.arms import Arm

RETRIED, RESUMED, FAILED = "retried", "resumed", "failed"


@dataclass(kw_only=True)
class DatasetSearch(RecordedSearch):
    """The state of one data set's search, rebuilt from the ledger; it makes decisions but writes nothing."""

    suggester: Suggester
    rungs: Rungs
    tuning: RowTuning | None = None
    setbacks: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)  # places in `start` of the file that were suggested or refused
    _front: tuple[FrontMember, ...] | None = None  # until a trial ends
    _told: int = 0  # number of search trials whose result the sampler of a deterministic study has received

    @staticmethod
    def of(
        study: Study,
        dataset: str,
        *,
        measure: Measure,
        facts_of: Callable[[str], DatasetFacts],
        only: Sequence[str] = (),
    ) -> DatasetSearch:
        """Return an empty search; raise RequestError if the sampler or scheduler does not suit the study."""
        suggester = Suggester(study=study, dataset=dataset, measure=measure, facts=lambda: facts_of(dataset), only=only)
        suggester.check()
        tuning = RowTuning(study=study, dataset=dataset, suggester=suggester) if study.tune is not None else None
        rungs = Rungs.of(study, suggester.curves)
        return DatasetSearch(study=study, dataset=dataset, suggester=suggester, rungs=rungs, tuning=tuning)

    def restore(self, found: Snapshot, taken: Sequence[ReportSummary]) -> None:
        """Load what the ledger has of the data set, and tell scheduler and sampler."""
        super().restore(found, taken)
        for step in taken:
            if step.key.dataset != self.dataset or step.final or step.diverged:
                continue
            if (trial := self.trials[step.key.number]).config.stage == "search":
                self.rungs.observe(self._sight(trial, step), shared=self.study.deterministic is None)
        for trial in self.search_trials():
            self.tell(trial)

    def take(self, trial: TrialProgress, step: ReportSummary) -> None:
        """Apply one committed report."""
        super().take(trial, step)
        if trial.config.stage == "search":
            self.suggester.curves.add(trial, step)

    def mark(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Apply one event."""
        super().mark(kind, payload)
        if kind in (RETRIED, RESUMED):
            self.setbacks.setdefault(payload["trial"], []).append((kind, payload["epoch"]))
        elif kind == ANSWERED and payload.get("start") is not None:
            self.started.add(payload["start"])
        elif kind == ANSWERED and payload.get("command") == RETRY and "refused" not in payload:
            self.setbacks.pop(payload.get("trial", -1), None)
            self.suggester.curves.outgrown.discard(payload.get("trial", -1))
        elif kind == FAILED and payload.get("kind") == "memory":
            self.suggester.curves.outgrown.add(payload["trial"])
        elif kind == WARM_START:
            self._observe(payload)

    def _observe(self, payload: Mapping[str, Any]) -> None:
        seen = payload["observations"].get(self.dataset, [])
        space = self.study.space_for(self.dataset)
        if not all(space.contains(each["parameters"]) for each in seen):
            raise LedgerError(f"study {self.study.name!r}: its event {WARM_START!r} is damaged: outside of the space")
        for index, each in enumerate(seen):
            self.suggester.observe(index - len(seen), each)

    def times(self, kind: str, number: int) -> int:
        """Return how often a trial was RETRIED after a failure, or RESUMED by a next driver, at its current epoch."""
        return self.setbacks.get(number, []).count((kind, self.trials[number].epoch))

    @property
    def next_number(self) -> int:
        """The number of the next trial."""
        return next(reversed(self.trials), -1) + 1

    @property
    def waits(self) -> bool:
        """Whether the next suggestion must wait until a trial that it depends on has ended."""
        if self.campaign is not None:
            return not self.campaign.wanted()
        if self.tuning is not None:
            return self.tuning.waits(self.tuned_rows())
        if self.study.deterministic is None:
            return False
        trials = self.search_trials()
        return not all(trial.state.finished for trial in self._heard_at(len(trials)))

    def _heard_at(self, place: int) -> Sequence[TrialProgress]:
        """Return the search trials whose results the trial at `place` may use in a deterministic study."""
        assert self.study.deterministic is not None
        return self.search_trials()[: max(place - self.study.deterministic + 1, 0)]

    def suggest(self) -> NewTrial | None:
        """Return the next trial of the search or of the tuning, or None if the space is exhausted."""
        if self.campaign is not None:
            return self._run_of(*self.campaign.wanted()[0])
        if self.tuning is not None:
            return self.tuning.next_trial(self.next_number, self.tuned_rows())
        for number, seeds in self._seeds_asked_for().items():
            return self._further(number, seeds)
        self._hear()
        return self.suggester.suggest(self.next_number)

    def to_start(self, planned: int) -> int:
        """Return how many search trials remain to start; of a comparison those that are asked for."""
        if not self.suggester.only:
            return super().to_start(planned)
        return len(self.suggester.left()) + len(self._seeds_asked_for())

    def most_new(self) -> int:
        """Return at most how many search trials can begin before another trial ends."""
        study, begun = self.study, self.search_trials()
        if self.campaign is not None:
            return len(self.campaign.wanted())
        if study.tune is not None:
            return self.tuning_to_start() if self.is_tuning else self.to_start(0)
        if self.suggester.only:
            return self.to_start(0)
        if self.lacks_seeds:
            return len(begun)
        limits = [study.budget.trials]
        if study.compare is not None:
            limits.append(len(self.design))
        elif (distinct := study.space_for(self.dataset).cardinality()) is not None:
            limits.append(distinct)
        new = min(limits) - len(begun)
        if study.deterministic is not None:
            new = min(new, study.deterministic - sum(not trial.state.finished for trial in begun))
        return max(new, 0)

    def asks_for(self, trial: TrialProgress) -> bool:
        """Return whether a trial is one of a variant that is to be trained."""
        return self.suggester.asks_for(trial.config.variant)

    def _seeds_asked_for(self) -> dict[int, tuple[int, ...]]:
        return {number: s for number, s in self.missing_seeds().items() if self.asks_for(self.trials[number])}

    def suggest_given(self, given: Mapping[str, Any]) -> NewTrial | str:
        """Return the next search trial with the settings `given`, or in words why there is none."""
        self._hear()
        return self.suggester.suggest_given(self.next_number, given)

    def next_start(self) -> tuple[int, Mapping[str, Any]] | None:
        """Return place and settings of the next configuration of `start` in the study file, or None."""
        starts = enumerate(self._starts)
        return next((each for each in starts if each[0] not in self.started), None)

    @cached_property
    def _starts(self) -> Sequence[Mapping[str, Any]]:
        return self.study.start_of(self.dataset)

    def _hear(self) -> None:
        """Show the sampler of a deterministic study the results that its next suggestion may use."""
        if self.study.deterministic is not None:
            heard = self._heard_at(len(self.search_trials()))
            for trial in heard[self._told :]:
                self.suggester.put(trial)
            self._told = len(heard)

    def add(self, new: NewTrial) -> TrialProgress:
        """Add a trial that was just committed and return its progress."""
        trial = TrialProgress(config=new.config, size=new.size, sampler_state=new.sampler_state)
        self.enter(trial)
        self.tell(trial)
        return trial

    def tell(self, trial: TrialProgress) -> None:
        """Pass a search trial's state to the sampler; in a deterministic study, pass it as running.

        A tuned comparison has no sampler: its tuning decides.
        """
        self._front = None
        if trial.config.stage == "search" and self.tuning is None and self.campaign is None:
            if trial.state.finished:
                self.suggester.curves.end(trial)
                self.rungs.end(trial.number)
            self.suggester.put(trial, as_running=self.study.deterministic is not None)

    def front(self) -> tuple[FrontMember, ...]:
        """Return the front of the search's finished trials, computed once for each change."""
        if self._front is None:
            self._front = super().front()
        return self._front

    def decide(self, trial: TrialProgress, step: ReportSummary) -> Decision:
        """Ask the scheduler about a report that does not end its trial; only search trials are ever stopped."""
        if self.campaign is not None:
            ends = self.campaign.is_over(trial) or self.campaign.is_behind(trial, step.epoch, step.means)
            return Decision.STOP if ends else Decision.CONTINUE
        if trial.config.stage != "search":
            return Decision.CONTINUE
        self.suggester.curves.add(trial, step)
        return self.rungs.decide(self._sight(trial, step), rivals=self._rivals(trial))

    def _rivals(self, trial: TrialProgress) -> list[int] | None:
        """Return the numbers of the trials that `trial` is compared with, or None for every trial that has reported."""
        if self.study.deterministic is None:
            return None
        place = [other.number for other in self.search_trials()].index(trial.number)
        return [other.number for other in self._heard_at(place)]

    def to_confirm(self) -> list[NewTrial]:
        """Return the requested trials on the test split that do not exist yet.

        Confirmations are in the order of `shuffle`, evaluations of a comparison in the order of its trials.
        """
        first, facts = self.next_number, self.suggester.facts()
        if self.study.compare is not None:
            return evaluations(list(self.trials.values()), facts, first)
        of_now = self.study.trainable  # a command may have got the test metric after its search
        wanted = shuffle(self.study, self.dataset, self.unconfirmed())
        return confirmation_trials(wanted, facts, first, trainable=of_now)

    def _further(self, number: int, seeds: tuple[int, ...]) -> NewTrial:
        return further(self.trials[number], self.next_number, self.suggester.facts(), seeds=seeds, source=number)

    def _run_of(self, arm: Arm, place: int) -> NewTrial:
        """Return the next run of an arm of a campaign."""
        assert self.campaign is not None
        first, seeds = next(iter(arm.runs.values()), None), (arm.seed(place),)
        if first is not None:
            new = self._further(first.number, seeds)
        else:
            built = self.suggester.build(self.next_number, arm.settings)
            assert built is not None  # what cannot be built is refused, and a campaign has no constraints
            new = replace(built, config=replace(built.config, seeds=seeds, trainable=self.campaign.trainable(arm)))
        return replace(new, sampler_state={"trial": {PLACE: arm.number}, "study": {}})

    def closing(self) -> list[NewTrial]:
        """Return the trials that compare the first champion of a campaign with the last one, none if it is the same."""
        assert self.campaign is not None
        first, last, asked = self.campaign.arms[0], self.campaign.champion, self.campaign.asked.close
        if first is last:
            return []
        sources = [next(iter(arm.runs.values())) for arm in (first, last)]
        wanted = [(run, (CONFIRM_SEED_BASE + i,)) for i in range(asked.replicates) for run in sources]
        stage: Stage = "confirm" if asked.test else "search"
        return confirmation_trials(wanted, self.suggester.facts(), self.next_number, stage=stage)

    def _sight(self, trial: TrialProgress, step: ReportSummary) -> RungReport:
        values = [
            metric_of(o.metric, means=step.means, size=trial.size, wall_seconds=step.wall_seconds)
            for o in self.study.objectives
        ]
        return {
            "number": trial.number,
            "epoch": step.epoch,
            "losses": losses(self.study.objectives, values),
            "epochs": trial.config.epochs,
        }


def require_searchable(study: Study, *, measure: Measure, facts_of: Callable[[str], DatasetFacts]) -> None:
    """Raise RequestError if a sampler or scheduler does not suit the study; record nothing."""
    for name in study.labels:
        DatasetSearch.of(study, name, measure=measure, facts_of=facts_of)
