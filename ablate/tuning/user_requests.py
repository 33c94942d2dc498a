"""Carries out what users ask of a running study: each request once, in the transaction that answers it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ablate.base.errors import LedgerError
from ablate.core.trial import Decision, TrialConfig, TrialKey, TrialState
from ablate.ledger import Ledger, NewEvent, NewTrial, StudyWriter
from ablate.ledger.requests import ANSWERED, CLOSE, ENQUEUE, JUDGE, PRUNE, RETRY, STOP, Change, Request
from ablate.study.given import read_given
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.refusals import refusal
from ablate.tuning.state.trial_progress import TrialProgress

if TYPE_CHECKING:
    from ablate.study import Study

POLL_SECONDS = 1.0  # between two looks into the ledger for new requests
STOPPED = "stopped by `ablate prune`"
log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Requests:
    """The requests to the driver of a study that it has not answered yet.

    `begin` is called before each write. `discard` is called before a trial is reopened whose report ended it, or
    from its start: it removes the trial's checkpoints from an epoch on, which would repeat reports. `seconds` is the
    time between two looks for new requests; before a new suggestion and at a report there always is one.
    """

    study: Study
    writer: StudyWriter
    ledger: Ledger
    begin: Callable[[], None]
    discard: Callable[[TrialConfig, int], None]
    seconds: float = POLL_SECONDS
    pending: list[Request] = field(default_factory=list)
    _read_at: float = float("-inf")

    def refresh(self, *, at_once: bool = False) -> None:
        """Read the requests again if the last look was `seconds` ago."""
        if at_once or time.monotonic() >= self._read_at + self.seconds:
            self.pending = self.ledger.requests(self.study.name)
            self._read_at = time.monotonic()

    def carry_out(
        self,
        searches: Mapping[str, DatasetSearch],
        *,
        held: Collection[TrialKey],
        end: Callable[[DatasetSearch, TrialProgress, TrialState], None],
    ) -> bool:
        """Refuse what cannot be done, prune trials that are not in training and reopen failed ones.

        `held` are the trials in training: their next report ends them (see `pruned`). Returns whether a trial was
        reopened.
        """
        reopened = False
        for request in list(self.pending):
            search = searches.get(str(request.dataset))
            reason = refusal(request, self.study, search)
            if request.command == STOP and request.term != self.writer.term:
                reason = "its driver had ended"
            if reason is not None:
                self._refuse(request, reason)
            elif search is not None and request.trial is not None:
                trial = search.trials[request.trial]
                if request.command == RETRY:
                    self._reopen(request, trial)
                    reopened = True
                elif request.command == PRUNE and trial.key not in held:
                    self.begin()
                    event = _answer(request)
                    self.writer.finish(trial.key, TrialState.PRUNED, STOPPED, event)
                    self.done(search, event)
                    end(search, trial, TrialState.PRUNED)
        return reopened

    def pruned(self, search: DatasetSearch, number: int) -> NewEvent | None:
        """Return the event that answers a request to prune a trial, or None if the ledger has none."""
        self.refresh(at_once=True)
        for request in self._of(search, PRUNE):
            if request.trial == number:
                return _answer(request)
        return None

    def given(self, search: DatasetSearch) -> tuple[Mapping[str, Any], NewEvent] | None:
        """Return the next configuration that is asked for on a data set, and the event that answers it.

        Those of `start` in the study file come before those of `ablate enqueue`.
        """
        start = search.next_start()
        if start is not None:
            index, values = start
            source = f"start.{index}" if self.study.start else "the defaults"
            payload = {"start": index, "message": f"{source} of the study file"}
            return values, NewEvent(kind=ANSWERED, dataset=search.dataset, payload=payload)
        for request in self._of(search, ENQUEUE):
            return read_given(self.study, search.dataset, request.parameters or {}), _answer(request)
        return None

    def _of(self, search: DatasetSearch, command: str) -> Iterator[Request]:
        """Yield the requests of one command on a data set that can be carried out."""
        for request in self.pending:
            wanted = request.command == command and request.dataset == search.dataset
            if wanted and refusal(request, self.study, search) is None:
                yield request

    def suggest(self, search: DatasetSearch) -> tuple[NewTrial | None, NewEvent | None]:
        """Return the next search trial, None if there is none, and the event to commit with it."""
        while (asked := self.given(search)) is not None:
            values, event = asked
            new = search.suggest_given(values)
            if not isinstance(new, str):
                origin = {name: event.payload[name] for name in ("start", "request") if name in event.payload}
                state = {**new.sampler_state, "given": {**origin, "settings": list(values)}}
                number = {"trial": new.config.key.number}
                return replace(new, sampler_state=state), replace(event, payload={**event.payload, **number})
            self.done(search, self._note_refusal(event, new))
        return search.suggest(), None

    def submit(self, search: DatasetSearch) -> None:
        """Answer each change that a campaign is asked to judge: with its number as a candidate."""
        assert search.campaign is not None
        while (request := next(self._of(search, JUDGE), None)) is not None:
            answer = _answer(request)
            candidate = search.campaign.candidate(Change.model_validate(request.parameters))
            event = replace(answer, payload={**answer.payload, **candidate})
            self._note(event)
            self.done(search, event)

    def closing(self, search: DatasetSearch) -> NewEvent | None:
        """Return the event that closes a campaign, or None if nobody asks for it."""
        return next(map(_answer, self._of(search, CLOSE)), None)

    def done(self, search: DatasetSearch, event: NewEvent | None) -> None:
        """Apply an answer that was just committed, if there was one."""
        if event is not None:
            search.mark(event.kind, event.payload)
            self.refresh(at_once=True)

    @contextmanager
    def listening(self, stop: Callable[[], None], lock: AbstractContextManager[object]) -> Iterator[None]:
        """Ask in a thread whether this driver is to stop; if so, answer while holding `lock` and call `stop`."""
        ended = threading.Event()

        def listen() -> None:
            while not ended.wait(self.seconds):
                try:
                    if (request := self._stop_asked()) is not None:
                        with lock:
                            self._note(_answer(request))
                        log.warning("asked to pause: no new trials; those that run pause")
                        stop()
                        return
                except LedgerError as error:  # the driver's next write meets it too, and reports it
                    log.debug("requests cannot be read: %s", error)

        thread = threading.Thread(target=listen, name="requests", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _stop_asked(self) -> Request | None:
        asked = (request for request in self.ledger.requests(self.study.name) if request.command == STOP)
        return next((request for request in asked if request.term == self.writer.term), None)

    def _reopen(self, request: Request, trial: TrialProgress) -> None:
        ended = trial.decisions.get(trial.epoch) is Decision.STOP
        if (request.from_start or ended) and trial.config.evaluates is None:
            self.discard(trial.config, 0 if request.from_start else trial.epoch)
        self.begin()
        self.writer.reopen(trial.key, _answer(request), from_start=request.from_start)
        trial.state = TrialState.WAITING

    def _refuse(self, request: Request, reason: str) -> None:
        self._note_refusal(_answer(request), reason)
        self.pending.remove(request)

    def _note_refusal(self, event: NewEvent, reason: str) -> NewEvent:
        refusal = replace(event, payload={**event.payload, "refused": reason})
        self._note(refusal)
        log.warning("%s: not done: %s", event.payload["message"], reason)
        return refusal

    def _note(self, event: NewEvent) -> None:
        self.begin()
        self.writer.note(event.kind, event.dataset, event.payload)


def _answer(request: Request) -> NewEvent:
    same = {"command": request.command, "trial": request.trial, "message": request.message}
    known = {name: value for name, value in same.items() if value is not None}
    return NewEvent(kind=ANSWERED, dataset=request.dataset, payload={"request": request.rowid, **known})
