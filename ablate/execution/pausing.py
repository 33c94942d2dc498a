"""A request to pause, which reaches all workers of a run through the cluster's key-value store."""

from __future__ import annotations

import threading

from ray.exceptions import RayError

from ablate.execution.ray_private import has_flag, set_flag

POLL_SECONDS = 0.5


def request_pause(token: str) -> None:
    """Ask every worker of the run `token` to pause."""
    set_flag(_flag(token))


def watch(token: str, pause: threading.Event) -> None:
    """Set `pause` once it is requested; in a thread, so that an unresponsive cluster does not stop training."""
    while not pause.wait(POLL_SECONDS):
        try:
            if has_flag(_flag(token)):
                pause.set()
        except (RayError, RuntimeError, ValueError, OSError):
            continue  # retried at the next poll; Ray itself detects an unreachable cluster


def _flag(token: str) -> str:
    return f"ablate-pause-{token}"
