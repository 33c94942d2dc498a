"""The driver's local Ray: started on this machine with a long timeout, watched, and ended with the study."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ray

from ablate.base.errors import AblateError, ClusterLostError, ResourceError
from ablate.base.redaction import error_text
from ablate.base.scratch import scratch_folder
from ablate.execution import ray_private
from ablate.execution.gcs_watchdog import end_process
from ablate.execution.ray_private import CONNECTING, GCS_WAIT, METRICS, OUTER, RAYLET_WAIT, WORKER_SETTINGS

START_SECONDS = 180  # Ray waits 30 s, which a busy machine exceeds
END_SECONDS = 20.0  # `ray.shutdown` takes 2 s, and has no limit while a raylet is frozen
LOOPBACK = ("127.0.0.1", "localhost")
NO_PROXY = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
BASE_BYTES = 21  # a Unix socket's path has at most 107 bytes; Ray and the folder's name take the rest


@contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Set environment variables inside the block, unset those that are None, and restore the former values."""
    former = {name: os.environ.get(name) for name in values}
    _put(values)
    try:
        yield
    finally:
        _put(former)


def _put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def after(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` in a thread if the block takes longer than `seconds`."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def own_ray(check: Callable[[], None]) -> Iterator[None]:
    """Start a Ray on this machine that other users cannot reach, and end it after the block.

    It listens on 127.0.0.1 only and requires a token, which is in the environment of this process and its children. Its
    session lies in a folder of mode 0700. `check` is called while its raylet starts, and may raise KeyboardInterrupt.

    Raises ClusterLostError if it does not start in time ($RAY_raylet_start_wait_time_s, else START_SECONDS), and
    ResourceError if it cannot start at all.
    """
    waits = _waits()
    with (
        environment(**CONNECTING, **waits, **WORKER_SETTINGS, **dict.fromkeys(OUTER), **_no_proxy(), **{METRICS: "0"}),
        _own_token(),
        scratch_folder("ray", base=_base()) as folder,
    ):
        try:
            with after(2 * int(waits[RAYLET_WAIT]), _leave):
                ray_private.start(folder, seconds=int(waits[RAYLET_WAIT]), check=check)
        except Exception as error:
            raise _explain_failed_start(error) from error
        try:
            yield
        except ClusterLostError:
            ray_private.kill()
            raise
        finally:
            with after(END_SECONDS, ray_private.kill):
                ray.shutdown()


def _waits() -> dict[str, str]:
    """Return the seconds that Ray waits for its processes; raise ResourceError if a variable is no whole number."""
    waits = {name: os.environ.get(name, str(START_SECONDS)) for name in (RAYLET_WAIT, GCS_WAIT)}
    for name, value in waits.items():
        if not re.fullmatch(r"[1-9][0-9]{0,8}", value):
            raise ResourceError(f"{name}={value}: this must be a whole number of seconds from 1. Unset it.")
    return waits


def _no_proxy() -> dict[str, str]:
    """Return the variables by which the processes of a Ray on this machine reach each other without a proxy."""
    former = {name: os.environ.get(name, "") for name in NO_PROXY}
    return {name: ",".join([*filter(None, [value]), *LOOPBACK]) for name, value in former.items()}


def _leave() -> None:
    """End this process, which waits without a limit for an answer of its Ray's GCS."""
    ray_private.kill()
    end_process(_explain_failed_start(TimeoutError("its GCS does not answer")))


def _explain_failed_start(error: Exception) -> AblateError:
    """Return the error to raise for one of `ray.init`, which raises a bare Exception if a process is late."""
    text = error_text(error, first_line=True).rstrip(".")
    if isinstance(error, OSError | ValueError) and not isinstance(error, TimeoutError):
        return ResourceError(f"Ray does not start on this machine: {text}. Type --executor local to do without it.")
    return ClusterLostError(
        f"Ray did not start on this machine: {text}. Run the same command again, or type --executor local to do"
        " without it."
    )


@contextmanager
def _own_token() -> Iterator[None]:
    """Make Ray require a new token inside the block, and read its authentication variables again."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        with environment(**token):
            ray_private.read_authentication()
            yield
    finally:
        ray_private.read_authentication()


def _base() -> Path:
    """Return the folder for the session: $RAY_TMPDIR or the temporary folder, or /tmp if their path is too long."""
    base = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()).absolute()
    return base if base.is_dir() and len(os.fsencode(base)) <= BASE_BYTES else Path("/tmp")
