"""Ends a process with everything that it has started, also what left its group or session."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PDEATHSIG, SUBREAPER = 1, 36  # options of prctl(2) on Linux


def end_with_parent(parent: int, number: int = signal.SIGKILL, *, adopts: bool = True) -> None:
    """Let the kernel send this process a signal when its parent ends.

    If it `adopts`, the kernel also makes it the parent of those of its descendants whose own parent has ended. `parent`
    is the process that was to be the parent; if another one is, it has ended already, and so does this one.
    """
    with suppress(OSError, AttributeError):
        control = ctypes.CDLL(None).prctl
        control(PDEATHSIG, number)
        if adopts:
            control(SUBREAPER, 1)
    if os.getppid() != parent:
        os._exit(1)


def children(process: int) -> tuple[int, ...]:
    """Return the processes that a process has started and that have not ended; of all its threads."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return tuple(found)


def descendants(process: int) -> tuple[int, ...]:
    """Return the children of a process, their children, and so on."""
    found = list(children(process))
    for each in found:  # grows while it is read
        found += children(each)
    return tuple(found)


def end_all(process: int) -> None:
    """Kill a process, its group and its descendants, until none is left."""
    kill([process], signal.SIGSTOP)  # so that it starts none meanwhile
    end_descendants(process)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    kill([process], signal.SIGKILL)


def end_descendants(process: int) -> None:
    """Kill the descendants of a process, until none is left."""
    doomed: set[int] = set()
    while found := set(descendants(process)) - doomed:
        kill(found, signal.SIGSTOP)
        doomed |= found
    kill(doomed, signal.SIGKILL)


def signal_name(number: int) -> str:
    """Return `SIGKILL`, or `signal 99` for one without a name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def kill(processes: Iterable[int], number: int) -> None:
    """Send a signal to those of the processes that are there and may get it."""
    for each in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each, number)
