"""When Python's garbage collector runs: rarely in a short command, as usual in a driver, and not at the end."""

from __future__ import annotations

import atexit
import gc

USUAL = gc.get_threshold()
RARE = (200_000, *USUAL[1:])  # objects; with 700, `ablate status` collects 400 times, a third of its time


def collect_rarely() -> None:
    """Collect garbage seldom from now on, and no more when the process ends.

    A command imports libraries of a million objects, which all live until it ends.
    """
    gc.set_threshold(*RARE)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)  # the interpreter's last collections then have nothing to look at


def collect_as_usual() -> None:
    """Collect garbage as often as Python does; a driver calls this, because trials may leave tensors in cycles."""
    gc.set_threshold(*USUAL)
