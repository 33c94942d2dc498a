"""The interface of a tracker: it shows the ledger's trials elsewhere, and never blocks a study."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ablate.core.trial import TrialConfig

SYNC_SECONDS = 3.0
WriteFiles = Callable[[TrialConfig, Path], None]  # writes what a trial has kept into a folder


class Tracker(Protocol):
    """Projects the ledger onto another system; the ledger remains the only record.

    Every method may be called from any thread and may be repeated. None raises if the other system does not answer: it
    logs that once, keeps the pending changes and sends them in a later call.
    """

    def sync(self) -> None:
        """Update the other system to the current state of the ledger; cheap if nothing changed."""

    def log_models(
        self, configs: Sequence[TrialConfig], *, data_dir: Path | None = None, write: WriteFiles | None = None
    ) -> None:
        """Publish the trained networks of `configs`, from their checkpoints, so that other tools can load them.

        `write` fills a folder with what a trial has kept whose network only a user's code can call.
        """

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        """Attach files and folders (report, tables) to the study; a repeated path replaces the earlier one."""

    def close(self) -> Sequence[str]:
        """Sync once more and leave no run as RUNNING; later calls do nothing.

        Returns what could not be shown, as one line for the user each.
        """


class Several:
    """Passes every call on to several trackers, or to none."""

    def __init__(self, *trackers: Tracker) -> None:
        self.trackers = trackers

    def sync(self) -> None:
        for tracker in self.trackers:
            tracker.sync()

    def log_models(
        self, configs: Sequence[TrialConfig], *, data_dir: Path | None = None, write: WriteFiles | None = None
    ) -> None:
        for tracker in self.trackers:
            tracker.log_models(configs, data_dir=data_dir, write=write)

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        for tracker in self.trackers:
            tracker.log_artifacts(paths)

    def close(self) -> Sequence[str]:
        return [line for tracker in self.trackers for line in tracker.close()]


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
