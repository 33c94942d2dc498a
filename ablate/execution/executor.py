"""What both executors share: their interface, one trial's assignment, and what a failure leaves behind."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ablate.errors import TrialError
from ablate.execution.memory import keep_freed_memory
from ablate.folder import Place
from ablate.registry import Registry
from ablate.trial import Report, TrialConfig, TrialKey, checkpoint_folder

if TYPE_CHECKING:
    from ablate.search import Search

TRAINERS = Registry("trainer", {"train": "ablate.execution.resident:train"})

logger = logging.getLogger("ablate.execution")


class Executor(Protocol):
    """Runs the trials that a Search hands out until it has no more."""

    def run(self, search: Search, *, on_event: Callable[[], None]) -> None:
        """Return when `search` is finished or was stopped.

        Every report is committed by `search.report` before the trial goes on or ends. `on_event` is called after
        each committed change. An exception inside a trial becomes a recorded FAIL. Raises ResourceError before
        anything starts, LedgerError (StaleDriverError) when a commit is refused, and KeyboardInterrupt with the
        signal as its argument on SIGINT and SIGTERM; running trials then stay RUNNING in the ledger.
        """


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One trial and everything a process needs to train it.

    `attempt` counts how often the trial was handed out, over all drivers: it names the checkpoints, so that a process
    that was given up and comes back overwrites nothing. `store` is the place below which checkpoints lie. `device` is
    a torch device, never `auto`; parts given by import path are also looked for on `search_path`.
    """

    config: TrialConfig
    attempt: int
    home: Path
    store: Place
    data_dir: Path | None
    device: str
    trainer: str
    threads: int
    search_path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.config.key)

    def reports(self, pause: Callable[[], bool]) -> Generator[Report]:
        """Yield the trainer's reports with torch limited to `threads` threads; raise RegistryError.

        Once `pause()` is true, the trainer writes a checkpoint as soon as it can and raises PausedError.
        """
        keep_freed_memory()
        os.environ["OMP_NUM_THREADS"] = str(self.threads)  # read when torch is imported, which may be later
        sys.path.extend(place for place in self.search_path if place not in sys.path)
        train = TRAINERS.load(self.trainer)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(self.threads)
        yield from train(
            self.config,
            data_dir=self.data_dir,
            checkpoints=checkpoint_folder(self.store, self.config.key),
            device=self.device,
            attempt=self.attempt,
            pause=pause,
        )


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a trial cannot go on: one line for the ledger, the traceback for the log."""

    message: str
    traceback: str = ""

    @staticmethod
    def of(error: BaseException) -> Failure:
        """Describe `error`; a TrialError speaks for itself, others are named by their type."""
        lines = str(error).strip().splitlines()
        text = lines[0] if lines else ""
        name = type(error).__name__
        message = text if isinstance(error, TrialError) and text else f"{name}: {text}" if text else name
        return Failure(message=message, traceback="".join(traceback.format_exception(error)))


ENDED_EARLY = Failure(message="training ended before its final report")


def advance(reports: Iterator[Report]) -> Report | Failure:
    """Return the next report, or the Failure that took its place."""
    try:
        return next(reports, ENDED_EARLY)
    except Exception as error:
        return Failure.of(error)


def log_failure(home: Path, key: TrialKey, failure: Failure) -> None:
    """Say in one line that a trial failed and append its traceback to `home/logs/DATASET-NUMBER.txt`."""
    place = home / "logs" / f"{key.dataset}-{key.number:06d}.txt"
    logger.warning("trial %s failed: %s", key, failure.message)
    if not failure.traceback:
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("a", encoding="utf-8") as file:
            file.write(failure.traceback + "\n")
    except OSError as error:
        logger.warning("the traceback of trial %s could not be written: %s", key, error)
