"""What Ctrl-C and SIGTERM do to a command that drives a study."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ablate.base.errors import RESUMABLE
from ablate.cli.terminal import errors


@contextmanager
def interruptible() -> Iterator[None]:
    """Run a driver in the block; after an interruption, print the command that continues and exit."""
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _leave)  # executors take it over, to pause their trials first
        yield
    except KeyboardInterrupt as interruption:  # here, because Typer would end every one of them with 130 and no word
        number = interruption.args[0] if interruption.args else signal.SIGINT
        from ablate.studies.homes import command_to_continue

        told = f"ablate: interrupted; nothing is lost. To continue: {command_to_continue(sys.argv[1:])}"
        errors.say(told)
        sys.exit(RESUMABLE if number == signal.SIGTERM else 128 + int(number))


def _leave(number: int, _frame: FrameType | None) -> None:
    """Exit as Ctrl-C does, so that the driver releases its study on the way out."""
    raise KeyboardInterrupt(signal.Signals(number))
