"""The interface of executors: hands out trials, takes reports and makes decisions, based on the ledger alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ablate.base.errors import FailureKind, StudyFailedError
from ablate.core.config import DatasetFacts
from ablate.core.trial import Decision, Report, TrialConfig, TrialKey, TrialState
from ablate.ledger import Ledger, NewEvent, StudyWriter
from ablate.ledger.requests import find_unanswered
from ablate.tuning.dataset_search import FAILED, RESUMED, RETRIED, DatasetSearch
from ablate.tuning.recorded import EXHAUSTED, TEST_OPENED, is_finished
from ablate.tuning.report_rules import judge, require_objectives
from ablate.tuning.sampling.twins import Measure
from ablate.tuning.search_stages import SearchStages
from ablate.tuning.state.trial_progress import DRIVER_STARTED, ReportSummary, TrialProgress, steps
from ablate.tuning.state.trial_queue import PATIENCE, GroupKey, Patience, TrialQueue, alone
from ablate.tuning.user_requests import STOPPED, Requests

if TYPE_CHECKING:
    from ablate.study import Study


class Search(SearchStages):
    """Hands out trials and takes their reports; thread-safe.

    Every answer is committed before it is returned. A new object rebuilds its state from the ledger, so it continues
    exactly where another stopped. `measure` counts a network's size, `facts_of` gives a data set's facts by its label.
    `group_key` tells which trials can share a pack. `discard` removes a trial's checkpoints from an epoch on,
    `prepare` gets the trainable of each trial before it is handed out. A trial has `gpus_per_trial` GPUs. Without
    `keep_going`, the study ends when its first two trials fail before their first report.
    Methods raise LedgerError (StaleDriverError) if a commit is refused, and RequestError if nothing in the space can be
    trained.
    """

    def __init__(
        self,
        study: Study,
        writer: StudyWriter,
        ledger: Ledger,
        *,
        measure: Measure,
        facts_of: Callable[[str], DatasetFacts],
        group_key: GroupKey = alone,
        patience: Patience = PATIENCE,
        discard: Callable[[TrialConfig, int], None] = lambda config, epoch: None,
        prepare: Callable[[str], None] = lambda trainable: None,
        keep_going: bool = True,
        gpus_per_trial: float = 1.0,
        only: Sequence[str] = (),
    ) -> None:
        self.study = study
        self._only = only
        self._gpus_per_trial = gpus_per_trial
        self._keep_going = keep_going
        self._patience = patience
        self._prepare = prepare
        self._writer = writer
        self._ledger = ledger
        self._measure = measure
        self._facts_of = facts_of
        self._lock = threading.RLock()
        self._out: set[TrialKey] = set()
        self._stopped = False
        self._begun = self._behind = False
        self._queue = TrialQueue(group_key)
        self._requests = Requests(study=study, writer=writer, ledger=ledger, begin=self._begin, discard=discard)
        self._restore()

    def next_trial(self) -> TrialConfig | None:
        """Set a trial RUNNING and return it, or return None if there is nothing to hand out now.

        Unfinished trials come first, then new suggestions for the data sets in turn. The front of a data set whose
        search is over is frozen and confirmed.
        """
        with self._lock, self._in_step():
            self._carry_out()
            while not self._stopped:
                self._referee()
                trial = self._unfinished() or self._suggest()
                if trial is not None:
                    return self._hand_out(trial)
                if not self._freeze():
                    break
            return None

    def next_pack(self, most: int, beside: Sequence[TrialConfig] = ()) -> tuple[TrialConfig, ...]:
        """Set up to `most` trials RUNNING that can train beside each other and `beside`, and return them.

        They share a group key. Unfinished trials come first, then new suggestions; those of another key wait for the
        next pack. A trial whose last attempt failed trains alone, so that no other fails with it. Returns nothing if
        there is nothing to hand out now.
        """
        with self._lock, self._in_step():
            if not beside:
                first = self.next_trial()
                return () if first is None else (first, *self.next_pack(most - 1, (first,)))
            self._carry_out()
            keys = {self._group(self._subsearches[config.key.dataset].trials[config.key.number]) for config in beside}
            group = keys.pop()
            found: list[TrialConfig] = []
            while group is not None and not keys and len(found) < most and not self._stopped:
                trial = self._unfinished(group) or self._suggest_like(group, most)
                if trial is None:
                    break
                found.append(self._hand_out(trial))
            return tuple(found)

    def group_key(self, config: TrialConfig) -> str | None:
        """Return what trials of one pack have in common with a trial, None if it can never be in one."""
        with self._lock:
            return self._queue.group_key(config)

    def report(self, key: TrialKey, report: Report) -> Decision:
        """Commit a report with its decision and return the decision; a repeated report gets the stored one.

        The last report completes its trial. If a replicate diverged or an objective is missing, the trial is FAIL
        instead. A search trial is FAIL at its first diverged replicate. In a comparison that says what a diverged seed
        counts as, the other replicates decide, as long as there is one. STOP from the scheduler makes it PRUNED. Raises
        StudyFailedError if a trial's first report lacks an objective or a constrained metric, or the first of all has a
        value that none can have; its checkpoint is then discarded.
        """
        with self._lock, self._in_step():
            subsearch = self._subsearches[key.dataset]
            trial = subsearch.trials[key.number]
            if report.epoch in trial.decisions:
                return trial.decisions[report.epoch]
            if trial.state.finished:
                return Decision.STOP
            if not trial.decisions:
                try:
                    require_objectives(subsearch, trial, report)
                except StudyFailedError:
                    self._requests.discard(trial.config, report.epoch)  # repaired code is to make the report again
                    raise
            decision, state, error = judge(subsearch, trial, report)
            event = self._requests.pruned(subsearch, key.number) if state is None else None
            if event is not None:
                decision, state, error = Decision.STOP, TrialState.PRUNED, STOPPED
            self._note_opened_test(subsearch, trial, report)
            stands = self._writer.report(key, report, decision, state, error, event)
            subsearch.take(trial, ReportSummary.of(key, report, stands, self._gpus_per_trial))
            self._requests.done(subsearch, event)
            if state is not None:
                self._end(subsearch, trial, state)
            return stands

    def fail(self, key: TrialKey, message: str, *, kind: FailureKind = "trial", detail: str = "") -> None:
        """Record that a trial's attempt failed; unless the fault is the trial's own, it is handed out again.

        The third failed attempt without a new report, over all drivers, ends the trial as FAIL (see Patience). One that
        ends for want of memory teaches the sampler that its surroundings cannot be trained. `detail` is the traceback,
        which is stored in the event. Raises StudyFailedError, once the failure is committed, if the fault is the
        trial's own and the second one of a study in which no trial has reported.
        """
        with self._lock, self._in_step():
            subsearch = self._subsearches[key.dataset]
            trial = subsearch.trials[key.number]
            if trial.state.finished:
                return
            attempts = subsearch.times(RETRIED, key.number) + 1
            retry = kind != "trial"
            again = retry and attempts < self._patience.attempts
            if retry and not again:
                message = f"{message} (attempt {attempts} at {self.study.unit} {trial.epoch})"
            payload = {"trial": key.number, "epoch": trial.epoch, "kind": kind, "message": message, "detail": detail}
            event = NewEvent(kind=RETRIED if again else FAILED, dataset=key.dataset, payload=payload)
            self._begin()
            if again:
                self._put_back(trial, message, event)
                subsearch.mark(event.kind, payload)
                return
            subsearch.mark(event.kind, payload)
            self._writer.finish(key, TrialState.FAIL, message, event)
            self._end(subsearch, trial, TrialState.FAIL)
            if not retry and not self._keep_going:
                self._refuse_hopeless(message)

    def _refuse_hopeless(self, message: str) -> None:
        """Raise StudyFailedError if two trials have failed and none has reported."""
        trials = [trial for each in self._subsearches.values() for trial in each.trials.values()]
        failed = sum(trial.state is TrialState.FAIL for trial in trials)
        if failed > 1 and not self._heard():
            raise StudyFailedError(
                f"study {self.study.name!r}: {failed} trials have failed before their first report and none has"
                f" reported, so the study ends here. The last one: {message}. Correct the code and run the command"
                " again; type --keep-going to continue all the same"
            )

    def pause(self, key: TrialKey) -> None:
        """Set a trial that has paused back to WAITING; it continues from its checkpoint.

        Unlike a trial whose driver was killed, it does not count as a resumption (see Patience).
        """
        with self._lock, self._in_step():
            trial = self._subsearches[key.dataset].trials[key.number]
            if trial.state is TrialState.RUNNING:
                self._put_back(trial, None)

    def attempt(self, key: TrialKey) -> int:
        """Return how often a trial was handed out, over all drivers; the number names this attempt's checkpoints."""
        with self._lock:
            return self._subsearches[key.dataset].trials[key.number].attempt

    def check(self) -> None:
        """Raise StaleDriverError if another driver is known to have taken over the study; query no database."""
        self._writer.check()

    def listening(self, stop: Callable[[], None]) -> AbstractContextManager[None]:
        """Return a block in which a thread calls `stop` within seconds after a user asked this driver to stop."""
        return self._requests.listening(stop, self._lock)

    def stop(self) -> None:
        """Stop handing out trials."""
        with self._lock:
            self._stopped = True

    @property
    def finished(self) -> bool:
        """Whether every search is over, every front frozen and confirmed, and no trial is unfinished."""
        with self._lock:
            return is_finished(self._subsearches.values(), self._writer.active_seconds())

    def _note_opened_test(self, subsearch: DatasetSearch, trial: TrialProgress, report: Report) -> None:
        names = (name for metrics in report.metrics for name in metrics)
        if trial.config.stage == "confirm" and not subsearch.test_opened and any(n.startswith("test_") for n in names):
            self._note(subsearch, TEST_OPENED, trial=trial.number)

    def _put_back(self, trial: TrialProgress, message: str | None, event: NewEvent | None = None) -> None:
        self._writer.requeue(trial.key, message, event)
        trial.state = TrialState.WAITING
        self._out.discard(trial.key)
        self._queue.put(trial)

    def _unfinished(self, group: str | None = None) -> TrialProgress | None:
        """Return the first unfinished trial; with `group`, the first that can join a pack of that group key."""
        while trial := self._queue.take(lambda each: group is None or self._group(each) == group):
            subsearch = self._subsearches[trial.key.dataset]
            if trial.state is TrialState.RUNNING:
                if subsearch.times(RESUMED, trial.number) >= (most := self._patience.resumptions):
                    ended = f"its driver ended {most} times at {self.study.unit} {trial.epoch}"
                    self.fail(trial.key, f"{ended} without a further report")
                    continue
                self._note(subsearch, RESUMED, trial=trial.number, epoch=trial.epoch)
            return trial
        return None

    def _group(self, trial: TrialProgress) -> str | None:
        """Return the trial's group key, or None while it must train alone."""
        subsearch = self._subsearches[trial.key.dataset]
        left = trial.state is TrialState.RUNNING and trial.key not in self._out  # by the last driver, not yet noted
        resumed = subsearch.times(RESUMED, trial.number) + left >= self._patience.together
        apart = resumed or subsearch.times(RETRIED, trial.number)
        return None if apart else self._queue.group_key(trial.config)

    def _suggest_like(self, group: str, most: int) -> TrialProgress | None:
        """Return the next suggestion of a group key; at most `most` others wait for it, or any number of a tuning's.

        A sampler knows less the further ahead it is asked. The values that a tuning tries are known from the start.
        """
        while not self._stopped and (len(self._queue) < most or self.study.tune is not None):
            trial = self._suggest()
            if trial is None or self._group(trial) == group:
                return trial
            self._queue.put(trial)
        return None

    def _suggest(self) -> TrialProgress | None:
        """Return a new trial for the data set whose turn it is, the first in the file among equals."""
        self._note_spent()
        while True:
            ready = [each for each in self._subsearches.values() if self._room(each)]
            if self._only:  # the others are left to another driver, which ends the search
                ready = [each for each in ready if each.to_start(0)]
            if self.study.budget.scope == "per_dataset" or self.study.tune is not None:  # else turns keep their order
                ready = [each for each in ready if not each.waits]
            self._requests.refresh(at_once=bool(ready))
            # a user's configuration first, then the data set with the fewest search and tuning trials
            subsearch = min(ready, key=lambda s: (self._requests.given(s) is None, s.begun), default=None)
            if subsearch is None or subsearch.waits:
                return None
            new, event = self._requests.suggest(subsearch)
            if new is not None:
                self._begin()
                self._writer.add_trials([new], event)
                self._requests.done(subsearch, event)
                return subsearch.add(new)
            if not self._only:
                count = len(subsearch.search_trials())
                self._note(subsearch, EXHAUSTED, search_trials=count, fingerprint=self.study.fingerprint())

    def _carry_out(self) -> None:
        """Carry out the requests that change trials that exist."""
        self._requests.refresh(at_once=self.study.campaign is not None)
        if self._requests.carry_out(self._subsearches, held=self._out, end=self._end):
            self._restore()

    def _hand_out(self, trial: TrialProgress) -> TrialConfig:
        self._prepare(trial.config.trainable)
        self._begin()
        trial.attempt = self._writer.start(trial.key)
        trial.state = TrialState.RUNNING
        self._out.add(trial.key)
        config = replace(trial.config, ledger=self._ledger.id)
        return config if self._heard() else replace(config, expects=self.study.tested_metrics)

    def _heard(self) -> bool:
        """Return whether a trial has reported."""
        return any(trial.decisions for each in self._subsearches.values() for trial in each.trials.values())

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Rebuild the search before its next use after an exception, so that memory never gets ahead of the ledger."""
        if self._behind:
            self._restore()
        try:
            yield
        except BaseException:
            self._behind = True
            raise

    def _restore(self) -> None:
        """Rebuild everything from the ledger, except which trials the executors hold now."""
        found = self._ledger.snapshot(self.study.name)
        made = partial(DatasetSearch.of, self.study, measure=self._measure, facts_of=self._facts_of, only=self._only)
        self._subsearches = {name: made(name) for name in self.study.labels}
        taken = steps(found.reports, found.events)
        searches = self._subsearches.values()
        for subsearch in searches:
            subsearch.restore(found, taken)
        waiting = [t for s in searches for t in s.trials.values() if not t.state.finished and s.asks_for(t)]
        order = list(self._subsearches)
        waiting.sort(key=lambda t: (t.number, order.index(t.key.dataset)))
        self._queue.restart(t for t in waiting if t.key not in self._out)
        own = (event for event in found.events if event.driver_term == self._writer.term)
        self._begun = any(event.kind == DRIVER_STARTED for event in own)
        self._requests.pending = find_unanswered(found.events)
        self._behind = False
