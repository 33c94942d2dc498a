"""A request to pause, which reaches all workers of a run as the name of an actor that waits for ever."""

from __future__ import annotations

import threading
from typing import Any

import ray
from ray.exceptions import RayError

POLL_SECONDS = 0.5
NOWHERE = {"ablate-pause": 1}  # a resource that no node has: the name is known, and no process is started for it


class Request:
    """An actor that no node can hold."""


def request_pause(token: str) -> Any:
    """Ask every worker of the run `token` to pause; the request ends with the object that is returned."""
    return ray.remote(Request).options(name=_name(token), num_cpus=0, resources=NOWHERE).remote()


def watch(token: str, pause: threading.Event) -> None:
    """Set `pause` once it is requested; in a thread, so that an unresponsive cluster does not stop training."""
    while not pause.wait(POLL_SECONDS):
        try:
            ray.get_actor(_name(token))
            pause.set()
        except (RayError, RuntimeError, ValueError, OSError):
            continue  # retried at the next poll; Ray itself detects an unreachable cluster


def _name(token: str) -> str:
    return f"ablate-pause-{token}"
