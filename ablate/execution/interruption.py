"""SIGINT and SIGTERM as one KeyboardInterrupt that never lands in the middle of a commit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Remembers a signal until `check()`; inside `at_once()` it is raised where it arrives.

    Outside the main thread, where Python allows no signal handlers, it never fires. A signal that the process
    was told to ignore (nohup) stays ignored. After the block the former handlers are back.
    """

    def __init__(self) -> None:
        self._signal: signal.Signals | None = None
        self._raise = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            kept = {number: signal.getsignal(number) for number in SIGNALS}
            self._former = {number: former for number, former in kept.items() if former is not signal.SIG_IGN}
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former if former is not None else signal.SIG_DFL)

    def listen(self) -> None:
        """Take the signals, also back from a library that has taken them inside the block, as `ray.init` does."""
        for number in self._former:
            signal.signal(number, self._arrived)

    def check(self) -> None:
        """Raise KeyboardInterrupt(signal) if one has arrived."""
        if self._signal is not None:
            raise KeyboardInterrupt(self._signal)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal break into this block: for training, whose checkpoints are atomic."""
        self.check()
        self._raise = True
        try:
            yield
        finally:
            self._raise = False

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)
        if self._raise:
            self._raise = False
            self.check()
