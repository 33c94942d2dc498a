"""What a tracker is: something that shows the ledger's trials elsewhere, and never gets in a study's way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ablate.trial import TrialConfig

SYNC_SECONDS = 3.0


class Tracker(Protocol):
    """Projects the ledger onto another place; the ledger stays the only record.

    Every method may be called from any thread, may be repeated, and never raises because the other place
    does not answer: it says so once through `logging`, keeps what it owes and catches up in a later call.
    """

    def sync(self) -> None:
        """Bring the other place up to what the ledger says now; cheap when nothing changed."""

    def log_models(self, configs: Sequence[TrialConfig], *, data_dir: Path | None = None) -> None:
        """Offer the trained networks of `configs`, from their checkpoints, for loading elsewhere."""

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        """Attach files and folders (report, tables) to the study; a repeated path replaces the earlier one."""

    def close(self) -> Sequence[str]:
        """Sync once more and leave nothing marked as running; later calls do nothing.

        Returns what could not be shown, one line for the user each.
        """


@contextmanager
def sync_periodically(sync: Callable[[], None]) -> Iterator[None]:
    """Call `sync` every SYNC_SECONDS from a thread of its own inside the block, so that it never delays a trial."""
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
