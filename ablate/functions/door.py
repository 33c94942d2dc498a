"""The door through which a running function hands over its reports, and how a study ends the function there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from ablate.base.errors import TrialError


class TrialStoppedError(BaseException):
    """The study has stopped this trial. No Exception, so that `except Exception` around a report does not catch it."""


class TrialPausedError(BaseException):
    """The trial is to pause; what was trained since its last report is trained again."""


class Door:
    """One side is the user's code, in the thread that calls it; the other side takes each report and then decides.

    `hand_over` returns once the trial is to continue.
    """

    def __init__(self, hand_over: Callable[[Any], None]) -> None:
        self.place = ""  # the line of the user's code that made the last report
        self.refused: TrialError | None = None
        self._hand_over = hand_over
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._end: tuple[type[BaseException], str] | None = None

    @property
    def paused(self) -> BaseException | None:
        """What paused the function, if anything has."""
        return None if self._end is None or self._end[0] is not TrialPausedError else TrialPausedError(self._end[1])

    def report(self, value: Any, place: str) -> None:
        """Hand over a report; raise TrialError if it is none, or in another thread or process than the function."""
        try:
            if os.getpid() != self._process or threading.get_ident() != self._thread:
                what = "thread" if os.getpid() == self._process else "process"
                raise TrialError(
                    f"run.report was called in another {what}: call it in the one in which the function itself runs"
                )
            self.check()
            self.place = place
            self._hand_over(value)
        except TrialError as error:
            self.refused = self.refused or error
            raise

    def end(self, kind: type[BaseException], reason: str) -> BaseException:
        """Return what ends the function; it is raised again wherever the function asks, if it was caught."""
        self._end = (kind, reason)
        return kind(reason)

    def check(self) -> None:
        """Raise what has ended the function, if anything has."""
        if self.refused is not None:
            raise self.refused
        if self._end is not None:
            kind, reason = self._end
            raise kind(reason)
