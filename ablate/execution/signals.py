"""Handles SIGINT and SIGTERM: running trials get a grace time, and no signal interrupts a commit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SOON = 1e-3  # seconds; a timer of 0 would be none


class Interruption:
    """Records a signal until `check()`; the grace time ends after `grace_seconds`, or with a second signal.

    Inside `breakable()` the end of the grace time raises KeyboardInterrupt at once. Outside the main thread Python
    allows no signal handlers, so no signal is recorded. A signal that the process was started to ignore (nohup) stays
    ignored. The former handlers are restored after the block.
    """

    def __init__(self, grace_seconds: float = 0.0) -> None:
        self._grace_seconds = grace_seconds
        self._signal: signal.Signals | None = None
        self._deadline = float("inf")
        self._raise = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            kept = {number: signal.getsignal(number) for number in SIGNALS}
            self._former = {number: former for number, former in kept.items() if former is not signal.SIG_IGN}
            self._former[signal.SIGALRM] = signal.getsignal(signal.SIGALRM)
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        if self._former:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, former in self._former.items():
            signal.signal(number, former if former is not None else signal.SIG_DFL)

    def listen(self) -> None:
        """Install the handlers, also after a library such as `ray.init` has replaced them inside the block."""
        for number in self._former:
            signal.signal(number, self._arrived)

    def ask(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Act as on a first signal; any thread may call it."""
        if self._signal is None:
            self._deadline = time.monotonic() + self._grace_seconds
            self._signal = number
            if self._former:
                signal.setitimer(signal.ITIMER_REAL, max(self._grace_seconds, SOON))

    @property
    def arrived(self) -> bool:
        """Whether a signal has arrived: trials should pause."""
        return self._signal is not None

    @property
    def overdue(self) -> bool:
        """Whether the grace time is over."""
        return time.monotonic() >= self._deadline

    def check(self) -> None:
        """Raise KeyboardInterrupt(signal) if one has arrived."""
        if self._signal is not None:
            raise KeyboardInterrupt(self._signal)

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """Let the end of the grace time interrupt this block: for training, whose checkpoints are atomic."""
        if self.overdue:
            self.check()
        self._raise = True
        try:
            yield
        finally:
            self._raise = False

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGALRM or self._signal is not None:
            self._deadline = time.monotonic()
        else:
            self.ask(signal.Signals(number))
        if self._raise and self.overdue:
            self._raise = False
            self.check()
