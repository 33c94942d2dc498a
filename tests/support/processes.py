"""Whether a process has ended."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def have_ended(pids: Iterable[int]) -> bool:
    """Wait a minute at most for the end of processes, and return whether all have ended; Ray does not wait for it."""
    left, deadline = set(pids), time.monotonic() + 60
    while (left := {pid for pid in left if is_alive(pid)}) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not left
