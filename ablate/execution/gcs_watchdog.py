"""Detects that the cluster of a study is gone, which Ray reports late, without a message, or never."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ablate.base.errors import AblateError, ClusterLostError

KNOCK_SECONDS = 2.0  # between two connections
LOST_SECONDS = 45.0  # Ray itself waits 60 s for an answer
LEAVE_SECONDS = 52.0  # without an answer, until this process ends itself


class GcsWatchdog:
    """Connects to the GCS of a cluster at intervals in a thread, and checks the processes of a local Ray.

    `ended` returns which process of the local Ray has ended, or None. `leave` ends this process if the
    main thread waits for an answer of Ray that will not come.
    """

    def __init__(
        self, address: str, *, ended: Callable[[], str | None] = lambda: None, leave: Callable[[int], object] = os._exit
    ) -> None:
        self.address = address
        self._ended = ended
        self._leave = leave
        self._answered = time.monotonic()
        self._ended_since: float | None = None
        self._over = threading.Event()

    def answers(self) -> bool:
        """Return whether the GCS has answered recently.

        Raises ClusterLostError if it has not answered for LOST_SECONDS, or if a process of the local Ray has ended.
        """
        if (part := self._ended()) is not None:
            raise own_ray_lost(part)
        if self._silent() > LOST_SECONDS:
            raise self._error()
        return self._silent() < 3 * KNOCK_SECONDS

    def watch(self) -> None:
        """Connect at intervals until `end` is called."""
        while not self._over.wait(KNOCK_SECONDS):
            if self._knock():
                self._answered = time.monotonic()
            if (error := self._overdue()) is not None:
                end_process(error, leave=self._leave)
                return

    def end(self) -> None:
        """Stop `watch`."""
        self._over.set()

    def _knock(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()
        except OSError:
            return False
        return True

    def _overdue(self) -> ClusterLostError | None:
        """Return the error that the main thread should have raised some time ago, or None."""
        if self._silent() > LEAVE_SECONDS:
            return self._error()
        if (part := self._ended()) is None:
            return None
        self._ended_since = self._ended_since or time.monotonic()
        late = time.monotonic() - self._ended_since > LEAVE_SECONDS - LOST_SECONDS
        return own_ray_lost(part) if late else None

    def _silent(self) -> float:
        return time.monotonic() - self._answered

    def _error(self) -> ClusterLostError:
        return ClusterLostError(
            f"the Ray cluster at {self.address} has not answered for {LOST_SECONDS:.0f} s; what was committed is kept."
            " Run the same command again once there is a cluster"
        )


def own_ray_lost(reason: str) -> ClusterLostError:
    """Return the error for a Ray that this process started and that can no longer train."""
    return ClusterLostError(
        f"the Ray of this study has ended ({reason}); what was committed is kept. Run the same command again"
    )


def end_process(error: AblateError, *, leave: Callable[[int], object] = os._exit) -> None:
    """Print the error as the command line does and end this process, whose main thread waits for Ray."""
    print(f"ablate: {error}", file=sys.stderr, flush=True)
    leave(error.exit_code)


@contextmanager
def gcs_watchdog(address: str, *, ended: Callable[[], str | None]) -> Iterator[GcsWatchdog]:
    """Watch the cluster inside the block, and after it if the cluster is lost: leaving Ray may hang too.

    `address` is that of the GCS; `ended` is as for GcsWatchdog.
    """
    line = GcsWatchdog(address, ended=ended)
    thread = threading.Thread(target=line.watch, name="lifeline", daemon=True)
    thread.start()
    lost = False
    try:
        yield line
    except ClusterLostError:
        lost = True
        raise
    finally:
        if not lost:
            line.end()
            thread.join()
