"""The head of a cluster may be gone: Ray would end the driver after a minute, with exit code 1 and no word of it."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ablate.errors import ClusterLostError

KNOCK_SECONDS = 2.0
LOST_SECONDS = 45.0  # Ray itself bears a silence of 60 s
LEAVE_SECONDS = 52.0


class Lifeline:
    """Knocks at the GCS of a cluster from a thread of its own.

    `leave` ends the process where the main thread waits for an answer of Ray's that will not come.
    """

    def __init__(self, address: str, *, leave: Callable[[int], object] = os._exit) -> None:
        self.address = address
        self._leave = leave
        self._answered = time.monotonic()
        self._over = threading.Event()

    def answers(self) -> bool:
        """Return whether the GCS answered just now; raise ClusterLostError where it has not for LOST_SECONDS."""
        if self._silent() > LOST_SECONDS:
            raise self._error()
        return self._silent() < 3 * KNOCK_SECONDS

    def watch(self) -> None:
        """Knock until the end."""
        while not self._over.wait(KNOCK_SECONDS):
            if self._knock():
                self._answered = time.monotonic()
            elif self._silent() > LEAVE_SECONDS:
                print(f"ablate: {self._error()}", file=sys.stderr, flush=True)  # as the command line does
                self._leave(ClusterLostError.exit_code)
                return

    def end(self) -> None:
        """Knock no more."""
        self._over.set()

    def _knock(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()
        except OSError:
            return False
        return True

    def _silent(self) -> float:
        return time.monotonic() - self._answered

    def _error(self) -> ClusterLostError:
        return ClusterLostError(
            f"the Ray cluster at {self.address} has not answered for {LOST_SECONDS:.0f} s; what was committed stands."
            " Run the same command again once there is a cluster"
        )


@contextmanager
def lifeline(address: str) -> Iterator[Lifeline]:
    """Watch the GCS at `address` inside the block, and beyond it where it is lost: leaving Ray may wait for it too."""
    line = Lifeline(address)
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
