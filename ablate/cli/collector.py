"""When Python's garbage collector runs: rarely in a short command, as usual in a driver."""

from __future__ import annotations

import atexit
import gc
import sys

USUAL = gc.get_threshold()
RARE = (200_000, *USUAL[1:])  # objects; with 700, `ablate status` collects 400 times, a third of its time


def collect_rarely() -> None:
    """Collect garbage seldom from now on, and no more when the process ends.

    A command imports libraries of many objects, which all live until it ends.
    """
    gc.set_threshold(*RARE)
    atexit.unregister(_keep_all)
    atexit.register(_keep_all)


def collect_as_usual() -> None:
    """Collect garbage as often as Python does; a driver calls this, because trials may leave tensors in cycles."""
    gc.set_threshold(*USUAL)


def _keep_all() -> None:
    """Leave nothing to the interpreter's last collections; bindings that torch imports report what they do not find."""
    if "torch" not in sys.modules:
        gc.freeze()
