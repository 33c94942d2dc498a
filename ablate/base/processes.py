"""The identity of a process across machines and boots."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process, identified across machines: `place` is the scope of its pid, `started` distinguishes reused pids."""

    host: str
    place: str
    pid: int
    started: str


def this_process() -> Process:
    """Return the identity of the running process."""
    pid = os.getpid()
    return Process(host=socket.gethostname(), place=this_place(), pid=pid, started=_started(pid) or "")


def is_gone(*, place: str, pid: int, started: str | None) -> bool:
    """Return whether a process is certainly gone; False for a process of another place, which cannot be checked."""
    if place != this_place():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    now = _started(pid)
    return now is not None and bool(started) and now != started


def this_place() -> str:
    """Return the scope of a pid: one boot of one machine and one pid namespace (containers share host names)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"host {socket.gethostname()}"


def _started(pid: int) -> str | None:
    """Start time of `pid` in clock ticks since boot (proc(5), field 22); "gone" for a zombie, None where unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "gone" if fields[0] in "ZX" else fields[19]
