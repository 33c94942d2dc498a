"""One data set's own search: its trials, its sampler history, its rungs, and how far its confirmation is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ablate.config import InputShape
from ablate.ledger import NewTrial, NoteRecord, TrialRecord
from ablate.search.confirmation import FrontMember, confirmation_trials, front, lacking, spread
from ablate.search.progress import Progress, Step, losses, metric_of
from ablate.search.rungs import Rungs, Sight
from ablate.search.suggester import Measure, Suggester
from ablate.study import VARIANT
from ablate.trial import CONFIRM_SEED_BASE, Decision, TrialConfig, TrialKey

if TYPE_CHECKING:
    from ablate.study import Study

EXHAUSTED, TIME_UP, FROZEN, TEST_OPENED = "exhausted", "time_up", "frozen", "test_opened"
RETRIED, RESUMED, FAILED = "retried", "resumed", "failed"


@dataclass(kw_only=True)
class Lane:
    """Everything about one data set, rebuilt from the ledger; it decides and remembers, and writes nothing."""

    study: Study
    dataset: str
    suggester: Suggester
    rungs: Rungs
    trials: dict[int, Progress] = field(default_factory=dict)
    exhausted: bool = False
    time_up: float = 0.0  # the budget of seconds that was found to be spent
    frozen_at: int = -1  # number of search trials when the front was last frozen
    test_opened: bool = False
    setbacks: dict[int, list[tuple[str, int | None]]] = field(default_factory=dict)
    _told: int = 0  # search trials whose end the sampler of a deterministic study has been told

    @staticmethod
    def of(study: Study, dataset: str, *, measure: Measure, shape_of: Callable[[str], InputShape]) -> Lane:
        """Return an empty lane; raise RequestError where sampler or scheduler do not suit the study."""
        suggester = Suggester(study=study, dataset=dataset, measure=measure, shape=lambda: shape_of(dataset))
        suggester.check()
        return Lane(study=study, dataset=dataset, suggester=suggester, rungs=Rungs.of(study))

    def restore(self, records: Sequence[TrialRecord], steps: Sequence[Step], notes: Sequence[NoteRecord]) -> None:
        """Take in what the ledger holds: trials by number, reports and notes in the order of their commit."""
        for record in records:
            self.trials[record.key.number] = Progress.of(record)
        for step in steps:
            trial = self.trials[step.key.number]
            if trial.config.stage == "search" and not (step.final or step.diverged):
                self.rungs.observe(self._sight(trial, step), shared=self.study.deterministic is None)
            trial.take(step)
        for trial in self.search_trials():
            self.tell(trial)
        for note in notes:
            self.mark(note.kind, dict(note.payload))

    def mark(self, kind: str, payload: dict[str, object]) -> None:
        """Take in one note."""
        if kind == EXHAUSTED:
            self.exhausted = True
        elif kind == TIME_UP:
            self.time_up = float(str(payload["wall_clock"]))
        elif kind == FROZEN:
            self.frozen_at, self.test_opened = int(str(payload["search_trials"])), False
        elif kind == TEST_OPENED:
            self.test_opened = True
        elif kind in (RETRIED, RESUMED):
            epoch = payload.get("epoch")  # notes of before had none: they count at every epoch
            setback = (kind, None if epoch is None else int(str(epoch)))
            self.setbacks.setdefault(int(str(payload["trial"])), []).append(setback)

    def retries(self, number: int) -> int:
        """Return how often a trial was put back after a failed attempt at the epoch where it stands."""
        return self._setbacks(RETRIED, number)

    def resumptions(self, number: int) -> int:
        """Return how many drivers in a row found the trial at the epoch where it stands."""
        return self._setbacks(RESUMED, number)

    def _setbacks(self, kind: str, number: int) -> int:
        counted = ((kind, self.trials[number].epoch), (kind, None))
        return sum(setback in counted for setback in self.setbacks.get(number, ()))

    def search_trials(self) -> list[Progress]:
        """Return the search's trials by number."""
        return [trial for trial in self.trials.values() if trial.config.stage == "search"]

    @property
    def next_number(self) -> int:
        """The number of the next trial."""
        return max(self.trials, default=-1) + 1

    @property
    def waits(self) -> bool:
        """Whether the next suggestion has to wait for the end of a trial that it must be made from."""
        if self.study.deterministic is None:
            return False
        trials = self.search_trials()
        return not all(trial.state.finished for trial in self._heard_at(len(trials)))

    def _heard_at(self, place: int) -> list[Progress]:
        """Return the search trials that the one at `place` may know of in a deterministic study."""
        assert self.study.deterministic is not None
        return self.search_trials()[: max(place - self.study.deterministic + 1, 0)]

    def suggest(self) -> NewTrial | None:
        """Return the next search trial, or None where the space is used up."""
        if (further := self.lacks_seeds()) is not None:
            return self._further(*further)
        number = self.next_number
        if self.study.deterministic is not None:
            heard = self._heard_at(len(self.search_trials()))
            for trial in heard[self._told :]:
                self.suggester.put(trial)
            self._told = len(heard)
        found = self.suggester.suggest(number)
        if found is None:
            return None
        variant = found.parameters.get(VARIANT)
        config = TrialConfig(
            key=TrialKey(study=self.study.name, dataset=self.dataset, number=number),
            stage="search",
            model=found.model,
            task=found.task,
            train=found.train,
            seeds=tuple(range(self.study.replicates)),
            study_seed=self.study.seed,
            protocol=self.study.protocol,
            parameters=found.parameters,
            variant=None if variant is None else str(variant),
        )
        return NewTrial(config=config, size=found.size, shape=self.suggester.shape(), sampler_state=found.sampler_state)

    def add(self, new: NewTrial) -> Progress:
        """Take in a trial that was just committed."""
        trial = Progress(config=new.config, size=new.size, sampler_state=new.sampler_state)
        self.trials[trial.number] = trial
        self.tell(trial)
        return trial

    def tell(self, trial: Progress) -> None:
        """Let the sampler know a search trial's standing; in a deterministic study, only that there is one."""
        if trial.config.stage == "search":
            self.suggester.put(trial, unheard=self.study.deterministic is not None)
            if trial.state.finished:
                self.rungs.end(trial.number)

    def decide(self, trial: Progress, step: Step) -> Decision:
        """Ask the scheduler about a report that does not end its trial; confirmation trials always go on."""
        if trial.config.stage == "confirm":
            return Decision.CONTINUE
        return self.rungs.decide(self._sight(trial, step), rivals=self._rivals(trial))

    def _rivals(self, trial: Progress) -> list[int] | None:
        """Return the numbers of the trials that `trial` is compared with; None: whoever has reported."""
        if self.study.deterministic is None:
            return None
        place = [other.number for other in self.search_trials()].index(trial.number)
        return [other.number for other in self._heard_at(place)]

    def missing_objectives(self, trial: Progress, step: Step) -> list[str]:
        """Return the objectives that have no finite value in `step`."""
        values = {o.metric: self._value(o.metric, trial, step) for o in self.study.objectives}
        return [name for name, value in values.items() if not abs(value) < float("inf")]

    def front(self) -> tuple[FrontMember, ...]:
        """Return the front of the search's finished trials."""
        return front(self.study, self.search_trials())

    def unconfirmed(self) -> list[tuple[TrialConfig, tuple[int, ...]]]:
        """Return the search trials whose confirmation lacks seeds, with these: those begun before, then the front's."""
        assert self.study.confirm is not None
        begun = [trial for trial in self.trials.values() if trial.config.stage == "confirm"]
        chosen = [member.config.key.number for member in spread(self.study, self.front(), self.study.confirm.top)]
        seeds = [CONFIRM_SEED_BASE + i for i in range(self.study.confirm.replicates)]
        return [(self.trials[number].config, missing) for number, missing in lacking(seeds, begun, chosen).items()]

    def to_confirm(self) -> list[NewTrial]:
        """Return the confirmation trials that are asked for and do not exist yet."""
        wanted = self.unconfirmed()
        return confirmation_trials(list(self.trials.values()), wanted, self.suggester.shape()) if wanted else []

    @property
    def settled(self) -> bool:
        """Whether the front of the search as it stands has been frozen and every confirmation asked for exists."""
        return self.frozen_at == len(self.search_trials()) and not self.unconfirmed()

    def lacks_seeds(self) -> tuple[Progress, tuple[int, ...]] | None:
        """Return the first trial of a comparison that was given fewer seeds than the study now asks for, with these."""
        if self.study.compare is None:
            return None
        missing = lacking(range(self.study.replicates), self.search_trials())
        return next(((self.trials[number], seeds) for number, seeds in missing.items()), None)

    def _further(self, first: Progress, seeds: tuple[int, ...]) -> NewTrial:
        key = replace(first.key, number=self.next_number)
        config = replace(first.config, key=key, seeds=seeds, source=first.number)
        return NewTrial(config=config, size=first.size, shape=self.suggester.shape())

    def _sight(self, trial: Progress, step: Step) -> Sight:
        values = [self._value(o.metric, trial, step) for o in self.study.objectives]
        return {
            "number": trial.number,
            "epoch": step.epoch,
            "losses": losses(self.study.objectives, values),
            "epochs": trial.config.train.epochs,
        }

    def _value(self, metric: str, trial: Progress, step: Step) -> float:
        return metric_of(metric, means=step.means, size=trial.size, wall_seconds=step.wall_seconds)
