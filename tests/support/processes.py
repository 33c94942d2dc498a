"""Processes of this machine: which carry a mark, and whether they have ended."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def have_ended(pids: Iterable[int]) -> bool:
    """Wait for the end of processes, a minute at most, and return whether all have: Ray leaves some for a while."""
    left, deadline = set(pids), time.monotonic() + 60
    while (left := {pid for pid in left if is_alive(pid)}) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not left


def marked(mark: str) -> dict[int, str]:
    """Return the command lines of the living processes with `mark`, as NAME=VALUE, in their environment, by pid."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes() and is_alive(int(place.name)):
                found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    return found


def signal_other_thread(pid: int, number: int) -> None:
    """Send a signal to a thread of a process that does not block it and is not its main one."""
    blocked = {}
    for place in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended
            blocked[place.name] = int(re.findall(r"SigBlk:\s*(\w+)", (place / "status").read_text())[0], 16)
    del blocked[str(pid)]
    thread = min(int(name) for name, mask in blocked.items() if not mask >> (number - 1) & 1)
    assert ctypes.CDLL(None).tgkill(pid, thread, number) == 0
