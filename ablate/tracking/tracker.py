"""The interface of a tracker, which shows the ledger's trials elsewhere, and the wrapper that lets it end no study."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ablate.base.errors import RequestError, StaleDriverError
from ablate.base.redaction import redact_text
from ablate.core.trial import TrialConfig
from ablate.ledger import StudyWriter

log = logging.getLogger(__name__)
SYNC_SECONDS = 3.0
LAST_TRIES = 2
REASON_LIMIT = 300  # characters; database drivers quote whole statements
WriteFiles = Callable[[TrialConfig, Path], object]  # writes the settings and weights of a trial into a folder
T = TypeVar("T")


class Tracker(Protocol):
    """Projects the ledger onto another system; the ledger remains the only record.

    If a method raises, the user gets one warning, the study continues, and the next call tries again, except after a
    RequestError. No method is called while another one runs.
    """

    def sync(self) -> None:
        """Update the other system to the current state of the ledger; cheap if nothing changed."""

    def log_models(self, configs: Sequence[TrialConfig], *, write: WriteFiles) -> None:
        """Attach to each trial of `configs` the files that `write` puts into an empty folder; `close` may send them."""

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        """Attach files and folders (report, tables) to the study; `close` may send them."""

    def close(self) -> Sequence[str]:
        """Sync once more and leave no run as RUNNING; return what could not be shown, one line for the user each."""


class Patient:
    """A tracker whose calls, from any thread, raise nothing; Tracker says what becomes of an error.

    Once another driver has taken the study over, nothing more is called. `label` names the system in messages,
    `secret` is an address whose secrets are replaced in them.
    """

    def __init__(self, tracker: Tracker, *, label: str, writer: StudyWriter | None = None, secret: str = "") -> None:
        self.tracker, self.label = tracker, label
        self._writer, self._secret = writer, secret
        self._lock = threading.Lock()
        self._fails = self._ended = False

    def close(self) -> Sequence[str]:
        """Call `close` of the tracker, at most LAST_TRIES times: nothing comes after it."""
        lines: Sequence[str] = ()
        for _ in range(LAST_TRIES):
            lines = self.call(self.tracker.close) or lines
            if not self._fails:
                break
        if self._fails and not self._ended:
            log.warning("%s is behind the ledger; the same command, run again, catches up", self.label)
        self._ended = True
        return lines

    def call(self, work: Callable[[], T]) -> T | None:
        """Return what a method of the tracker returns, None if it raises; say the first error, and that it is over."""
        with self._lock:
            if self._ended or (self._writer is not None and self._writer.lost):
                return None
            done, error = attempt(work)
            if isinstance(error, RequestError):
                log.warning("%s does not show this study: %s", self.label, redact_text(str(error), self._secret))
                self._ended = True
            elif isinstance(error, StaleDriverError):
                self._ended = True
            elif error is not None:
                if not self._fails:
                    reason = redact_text(f"{type(error).__name__}: {error}", self._secret)[:REASON_LIMIT]
                    log.warning("%s cannot be kept up to date, trying on: %s", self.label, reason)
                self._fails = True
            elif self._fails and work in (self.tracker.sync, self.tracker.close):
                log.warning("%s has caught up with the ledger again", self.label)
                self._fails = False
            return done


def attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Call `work`; return its result or its error, whatever another system and its client raise."""
    try:
        return work(), None
    except Exception as error:
        return None, error


class Several:
    """Passes every call on to several trackers, or to none."""

    def __init__(self, *trackers: Patient) -> None:
        self.trackers = trackers

    def sync(self) -> None:
        for each in self.trackers:
            each.call(each.tracker.sync)

    def log_models(self, configs: Sequence[TrialConfig], *, write: WriteFiles) -> None:
        for each in self.trackers:
            each.call(partial(each.tracker.log_models, configs, write=write))

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        for each in self.trackers:
            each.call(partial(each.tracker.log_artifacts, paths))

    def close(self) -> Sequence[str]:
        return [line for each in self.trackers for line in each.close()]


def none(*_: Any, **__: Any) -> Several:
    """Return the tracker that does nothing: results are in the ledger, the tables and the report only."""
    return Several()


@contextmanager
def sync_periodically(sync: Callable[[], None]) -> Iterator[None]:
    """Call `sync` every SYNC_SECONDS from a separate thread inside the block, so that it never delays a trial."""
    ended = threading.Event()

    def keep_up() -> None:
        while not ended.wait(SYNC_SECONDS):
            sync()

    thread = threading.Thread(target=keep_up, name="tracking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
