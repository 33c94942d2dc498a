"""One study at a time in a process: random generators, environment, Ray and the processes of user code are shared."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ablate.base.errors import RequestError

_RUNNING: dict[int, tuple[int, str]] = {}  # by process: the thread that runs a study, and its name


def is_busy() -> bool:
    """Return whether this process runs a study."""
    return os.getpid() in _RUNNING


@contextmanager
def only_study(name: str) -> Iterator[None]:
    """Run the block as the only study of this process; a block of the same study in the same thread may be inside.

    Raises RequestError, with nothing changed, if this process runs a study already.
    """
    process, own = os.getpid(), (threading.get_ident(), name)  # a fork has no study of its own
    try:
        held = _RUNNING.setdefault(process, own)  # one atomic step
        if held != own:
            raise RequestError(f"this process runs study {held[1]!r} already: a second one needs a process of its own")
        yield
    finally:
        if _RUNNING.get(process) is own:
            del _RUNNING[process]
