"""Carries out what users ask of a running study: each request once, in the transaction that answers it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ablate.base.errors import LedgerError
from ablate.ledger import EventRecord, Ledger, NewEvent, NewTrial, StudyWriter
from ablate.ledger.requests import ANSWERED
from ablate.trial import Decision, TrialKey, TrialState
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.recorded import ENQUEUE, PRUNE, RETRY, STOP, TUNED
from ablate.tuning.trial_progress import TrialProgress

POLL_SECONDS = 1.0  # between two looks into the ledger for new requests
STOPPED = "stopped by `ablate prune`"
log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Requests:
    """The requests to the driver of a study that it has not answered yet.

    `begin` is called before each write. `discard` is called before a trial is reopened whose report ended it: it
    removes the trial's checkpoints from that epoch on, which would repeat the report. `seconds` is the time between two
    looks for new requests; before a new suggestion and at a report there always is one.
    """

    study: str
    writer: StudyWriter
    ledger: Ledger
    begin: Callable[[], None]
    discard: Callable[[TrialKey, int], None]
    seconds: float = POLL_SECONDS
    pending: list[EventRecord] = field(default_factory=list)
    _read_at: float = float("-inf")

    def refresh(self, *, at_once: bool = False) -> None:
        """Read the requests again if the last look was `seconds` ago."""
        if at_once or time.monotonic() >= self._read_at + self.seconds:
            self.pending = self.ledger.requests(self.study)
            self._read_at = time.monotonic()

    def carry_out(
        self,
        searches: Mapping[str, DatasetSearch],
        *,
        held: Collection[TrialKey],
        end: Callable[[DatasetSearch, TrialProgress, TrialState], None],
    ) -> bool:
        """Prune trials that are not in training and reopen failed ones; return whether one was reopened.

        `held` are the trials in training: their next report ends them (see `pruned`).
        """
        reopened = False
        for request in list(self.pending):
            command, search = request.payload["command"], searches.get(str(request.dataset))
            if command == STOP and request.payload["term"] != self.writer.epoch:
                self._refuse(request, "its driver had ended")
            elif command == ENQUEUE and search is not None and search.exhausted:
                self._refuse(request, "every configuration of the space is in the study")
            elif command in (PRUNE, RETRY) and search is not None:
                trial = search.trials.get(request.payload["trial"])
                if trial is None:
                    self._refuse(request, "there is no such trial")
                elif command == RETRY and not search.may_retry(trial):
                    self._refuse(request, TUNED)
                elif command == RETRY and trial.state is TrialState.FAIL:
                    self._reopen(request, trial)
                    reopened = True
                elif command == RETRY or trial.state.finished:
                    self._refuse(request, f"the trial is {trial.state}")
                elif trial.key not in held:
                    self.begin()
                    event = _answer(request)
                    self.writer.finish(trial.key, TrialState.PRUNED, STOPPED, event)
                    self.done(search, event)
                    end(search, trial, TrialState.PRUNED)
        return reopened

    def pruned(self, key: TrialKey) -> NewEvent | None:
        """Return the event that answers a request to prune a trial, or None if the ledger has none."""
        self.refresh(at_once=True)
        for request in self.pending:
            wanted = request.payload["command"] == PRUNE and request.payload["trial"] == key.number
            if wanted and request.dataset == key.dataset:
                return _answer(request)
        return None

    def given(self, search: DatasetSearch) -> tuple[Mapping[str, Any], NewEvent] | None:
        """Return the next configuration that is asked for on a data set, and the event that answers it.

        Those of `start` in the study file come before those of `ablate enqueue`.
        """
        start = search.next_start()
        if start is not None:
            index, values = start
            payload = {"start": index, "message": f"start.{index} of the study file"}
            return values, NewEvent(kind=ANSWERED, dataset=search.dataset, payload=payload)
        for request in self.pending:
            if request.payload["command"] == ENQUEUE and request.dataset == search.dataset:
                return request.payload["parameters"], _answer(request)
        return None

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

    def done(self, search: DatasetSearch, event: NewEvent | None) -> None:
        """Apply an answer that was just committed, if there was one."""
        if event is not None:
            search.mark(event.kind, dict(event.payload))
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
                        log.warning("`ablate stop`: no new trials; those that run pause")
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

    def _stop_asked(self) -> EventRecord | None:
        asked = (r for r in self.ledger.requests(self.study) if r.payload["command"] == STOP)
        return next((request for request in asked if request.payload["term"] == self.writer.epoch), None)

    def _reopen(self, request: EventRecord, trial: TrialProgress) -> None:
        if trial.decisions.get(trial.epoch) is Decision.STOP and trial.config.evaluates is None:
            self.discard(trial.key, trial.epoch)
        self.begin()
        self.writer.reopen(trial.key, _answer(request))
        trial.state = TrialState.WAITING

    def _refuse(self, request: EventRecord, reason: str) -> None:
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


def _answer(request: EventRecord) -> NewEvent:
    same: dict[str, Any] = {
        name: request.payload[name] for name in ("command", "trial", "message") if name in request.payload
    }
    return NewEvent(kind=ANSWERED, dataset=request.dataset, payload={"request": request.rowid, **same})
