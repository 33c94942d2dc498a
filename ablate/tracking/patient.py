"""A tracker that tries again when its system does not answer: what every tracker of a study shares."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from ablate.base.errors import StaleDriverError
from ablate.base.redaction import redact_text
from ablate.core.trial import TrialConfig
from ablate.ledger import Ledger, StudyWriter
from ablate.study import Study
from ablate.tracking.tracker import WriteFiles

log = logging.getLogger(__name__)
FIRST_DELAY_SECONDS = 1.0
LAST_DELAY_SECONDS = 60.0
REASON_LIMIT = 300  # characters; database drivers quote whole statements


class PatientTracker:
    """Calls `catch_up` until it succeeds; Tracker states the guarantees.

    If the system does not answer, the first call after 1, 2, 4, ... 60 s tries again. One warning reports the failure
    and one line the recovery. Once another driver has taken the study over, nothing more is written. `label` names the
    system in messages, `secret` is an address whose secrets are replaced in them.
    """

    def __init__(
        self,
        *,
        label: str,
        study: Study,
        ledger: Ledger,
        writer: StudyWriter | None,
        secret: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self._study = study
        self._ledger = ledger
        self._writer = writer
        self._secret = secret
        self._clock = clock
        self._lock = threading.Lock()
        self._reason = ""
        self._delay = 0.0
        self._retry_at = 0.0
        self._closed = False

    @abstractmethod
    def catch_up(self) -> None:
        """Show every change since the last call; an error means that a later call tries again."""

    def end(self) -> None:
        """Leave nothing as running; called once, after the last `catch_up`."""

    def unshown(self) -> Sequence[str]:
        """Return what could not be shown, as one line for the user each."""
        return ()

    def is_answer(self, error: Exception) -> bool:
        """Return whether `error` came from a system that answers: it refused one request of several."""
        return False

    def sync(self) -> None:
        """Update the system to the current state of the ledger."""
        with self._lock:
            self._attempt_when_due()

    def log_models(
        self, configs: Sequence[TrialConfig], *, data_dir: Path | None = None, write: WriteFiles | None = None
    ) -> None:
        """Do nothing: the system holds no networks."""

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        """Do nothing: the system holds no files."""

    def close(self) -> Sequence[str]:
        """Sync once more and end; return lines on what could not be shown."""
        with self._lock:
            if self._closed:
                return ()
            if self._attempt(self.catch_up):
                self._attempt(self.end)
            if self._delay and not self._overtaken():
                log.warning("%s is behind the ledger; the same command, run again, catches up", self.label)
            self._closed = True
            return () if self._overtaken() else self.unshown()

    def _attempt_when_due(self) -> None:
        if self._clock() >= self._retry_at:
            self._attempt(self.catch_up)

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Call `work`; return whether the system answers and this driver may continue."""
        if self._closed or self._overtaken():
            return False
        try:
            work()
        except StaleDriverError:
            return False
        except Exception as error:
            self._fail(error)
            return self.is_answer(error)
        if self._delay and work == self.catch_up:
            log.warning("%s has caught up with the ledger again", self.label)
            self._delay = self._retry_at = 0.0
        return True

    def _overtaken(self) -> bool:
        return self._writer is not None and self._writer.lost

    def _fail(self, error: Exception) -> None:
        self._reason = redact_text(f"{type(error).__name__}: {error}", self._secret)[:REASON_LIMIT]
        if not self._delay:
            log.warning("%s cannot be kept up to date, trying on: %s", self.label, self._reason)
        self._delay = min(2 * self._delay or FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS)
        self._retry_at = self._clock() + self._delay
