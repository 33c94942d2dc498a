"""Acts while a block of code takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LATE = 2.0  # seconds after which a user is told what a command computes


@contextmanager
def after(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` in a thread if the block takes longer than `seconds`."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
