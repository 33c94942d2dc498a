"""What both executors share: their interface, and the outcomes of a trial."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ablate.base.errors import CheckpointDownError, FailureKind, TrialError, lacks_memory
from ablate.base.plain_text import storable
from ablate.base.redaction import error_text
from ablate.core.trial import Report, TrialKey

if TYPE_CHECKING:
    from ablate.tuning import Search


class Executor(Protocol):
    """Runs the trials that a Search hands out until it has no more."""

    def run(self, search: Search, *, on_event: Callable[[], None]) -> None:
        """Run trials until `search` is finished or stopped.

        `search.report` commits every report before the trial continues or ends. `on_event` is called after each
        committed change. An exception inside a trial is recorded as FAIL.

        Raises ResourceError before anything starts, LedgerError if a commit is refused (StaleDriverError also between
        commits), and CheckpointDownError if checkpoints cannot be written. On SIGINT and SIGTERM it pauses running
        trials, then raises KeyboardInterrupt with the signal as its argument. Trials that do not pause within the grace
        time stay RUNNING in the ledger.
        """


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a trial cannot continue: a message of one line, and the traceback for an event in the ledger.

    `kind` is the cause. `trial` is an error of the trial itself. `memory` is a lack of memory and `died` a killed
    process: another attempt may succeed. `pack` is an error of a whole pack, which one of its trials may have caused.
    `store` means that checkpoints cannot be written: it ends the driver and is not a fault of the trial.
    """

    message: str
    traceback: str = ""
    kind: FailureKind = "trial"

    @staticmethod
    def of(error: BaseException) -> Failure:
        """Return the failure of `error`; the message names its type unless it is ablate's own error."""
        text, name = error_text(error, first_line=True), type(error).__name__
        own = isinstance(error, TrialError | CheckpointDownError)
        message = storable(text if own or text == name else f"{name}: {text}")
        kind: FailureKind = error.kind if isinstance(error, TrialError) else "trial"
        detail = error.detail if isinstance(error, TrialError) else ""
        if isinstance(error, CheckpointDownError):
            kind = "store"
        elif isinstance(error, MemoryError) or lacks_memory(f"{name}: {text}"):
            kind = "memory"
        return Failure(
            message=message, traceback=storable(detail or "".join(traceback.format_exception(error))), kind=kind
        )


@dataclass(frozen=True, kw_only=True)
class Paused:
    """The trial was asked to pause and has written its checkpoint; it waits for the next driver."""


@dataclass(frozen=True, kw_only=True)
class Crowded:
    """The trials of the pack did not fit into memory together; this one continues in a smaller pack."""


Outcome = Report | Failure | Paused | Crowded


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The outcomes of some trials of a worker's pack.

    `notes` are lines for the user, by subject: about the user's own code, and what a worker has logged as a warning.
    """

    outcomes: Mapping[TrialKey, Outcome]
    notes: Mapping[str, str] = field(default_factory=dict)
