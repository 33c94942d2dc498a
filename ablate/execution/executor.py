"""What both executors share: their interface, the assignment of one trial, and its outcomes."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ablate.errors import CheckpointDownError, PausedError, TrialError
from ablate.execution.memory import keep_freed_memory
from ablate.files import Place
from ablate.plain_text import storable
from ablate.redaction import error_text
from ablate.registry import Registry
from ablate.trainable import load_trainable
from ablate.trial import Decision, Report, TrialConfig, checkpoint_folder

if TYPE_CHECKING:
    from ablate.tuning import Search

TRAINERS = Registry("trainer", {})
logger = logging.getLogger("ablate.execution")


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
class Assignment:
    """One trial and everything that a process needs to train it.

    `attempt` counts how often the trial was handed out, over all drivers. Checkpoint names contain it, so that a
    process that was given up and returns overwrites nothing. Checkpoints lie below `store`. `device` is a torch device,
    never `auto`. `trainer`, an import path, takes the place of the
    trainable's `train`. Parts given by import path are also searched for on `search_path`. `code` refers to the user's
    code in a cluster's object store (`carried_code`), if it was sent.
    """

    config: TrialConfig
    attempt: int
    store: Place
    data_dir: Path | None
    device: str
    trainer: str | None
    threads: int
    search_path: tuple[str, ...] = ()
    code: Any = None

    def __str__(self) -> str:
        return str(self.config.key)

    def reports(self, pause: Callable[[], bool]) -> Generator[Report]:
        """Yield the trainable's reports with torch limited to `threads` threads; raise RegistryError.

        Once `pause()` is true, it writes a checkpoint as soon as it can and raises PausedError.
        """
        keep_freed_memory()
        os.environ["OMP_NUM_THREADS"] = str(self.threads)  # read when torch is imported, which may be later
        sys.path.extend(place for place in self.search_path if place not in sys.path)
        train = load_trainable(self.config.trainable).train if self.trainer is None else TRAINERS.load(self.trainer)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(self.threads)
        yield from train(
            self.config,
            data_dir=self.data_dir,
            checkpoints=checkpoint_folder(self.store, self.config.origin.key),
            device=self.device,
            attempt=self.attempt,
            pause=pause,
        )


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a trial cannot continue: a message of one line, and the traceback for an event in the ledger.

    `kind` is the cause. `trial` is an error of the trial itself. `memory` is a lack of memory, which another attempt
    may not meet. `store` means that checkpoints cannot be written: it ends the driver and is not a fault of the trial.
    """

    message: str
    traceback: str = ""
    kind: Literal["trial", "memory", "store"] = "trial"

    @staticmethod
    def of(error: BaseException) -> Failure:
        """Return the failure of `error`; the message names its type unless it is ablate's own error."""
        text, name = error_text(error, first_line=True), type(error).__name__
        own = isinstance(error, TrialError | CheckpointDownError)
        message = storable(text if own or text == name else f"{name}: {text}")
        kind: Literal["trial", "memory", "store"] = "trial"
        if isinstance(error, CheckpointDownError):
            kind = "store"
        elif isinstance(error, MemoryError) or name == "OutOfMemoryError" or NO_MEMORY in text:
            kind = "memory"  # by name: torch is not imported here
        return Failure(message=message, traceback=storable("".join(traceback.format_exception(error))), kind=kind)


@dataclass(frozen=True, kw_only=True)
class Paused:
    """The trial was asked to pause and has written its checkpoint; it waits for the next driver."""


Outcome = Report | Failure | Paused
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"  # torch's message in a RuntimeError on a CPU
ENDED_EARLY = Failure(message="training ended before its final report")


def advance(reports: Iterator[Report]) -> Outcome:
    """Return the next report, or the pause or failure that took its place."""
    try:
        return next(reports, ENDED_EARLY)
    except PausedError:
        return Paused()
    except Exception as error:
        return Failure.of(error)


def commit(search: Search, assignment: Assignment, outcome: Outcome) -> bool:
    """Commit an outcome and return whether the trial continues; raise CheckpointDownError if the store failed."""
    key = assignment.config.key
    if isinstance(outcome, Failure):
        if outcome.kind == "store":
            raise CheckpointDownError(f"trial {key}: {outcome.message}")
        logger.warning("trial %s failed: %s", key, outcome.message)
        search.fail(key, outcome.message, retry=outcome.kind == "memory", detail=outcome.traceback)
        return False
    if isinstance(outcome, Paused):
        search.pause(key)
        return False
    return search.report(key, outcome) is Decision.CONTINUE and not outcome.final
