"""The driver's local Ray: a separate process starts it, watches it, and ends it with the study."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path

from ablate.base.errors import ClusterLostError, ResourceError
from ablate.base.redaction import error_text
from ablate.base.scratch import scratch_folder
from ablate.execution import ray_process
from ablate.execution.ray_private import read_authentication

START_SECONDS = 180  # Ray itself waits 30 s, which a busy machine exceeds
PATIENCE_SECONDS = 25.0  # after which a start that has failed was late, and is tried again
POLL_SECONDS = 0.1
START_WAIT = "RAY_raylet_start_wait_time_s"  # the user's own limit
OBJECT_STORE_BYTES = 256 * 2**20  # only configurations and reports pass through it
LOOPBACK = ("127.0.0.1", "localhost")
NO_PROXY = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
BASE_BYTES = 17  # a Unix socket's path has at most 107 bytes; Ray and the folder's name take the rest
# Unset for a Ray of the study's own; under PYTHONOPTIMIZE the raylet of Ray 2.60 ends at its start.
OUTER = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_NAMESPACE", "RAY_RUNTIME_ENV_HOOK", "PYTHONOPTIMIZE")
SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # 127.0.0.1 stays the node's address
    "RAY_enable_metrics_collection": "0",  # its exporter would listen on all interfaces, without a token
    "RAY_prestart_worker_first_driver": "0",  # Tune's workers have a runtime environment; these have none
}
NEEDED = {"gcs_server": "GCS", "raylet": "raylet"}  # by the names of their programs


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


def cpus_here() -> int:
    """Return how many CPUs this process may use: its affinity, at most its control group's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no quota ("max"), or no control groups of version 2
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, math.floor(int(quota) / int(period)))
    return max(1, count)


@dataclass(frozen=True, kw_only=True)
class OwnRay:
    """A Ray of this driver's: the process that has started it and leads its session, and the port of its GCS."""

    process: subprocess.Popen[str]
    port: int = 0

    def ended(self) -> str | None:
        """Return which process that this Ray needs has ended, or None."""
        if (code := self.process.poll()) is not None:
            return f"its starter has ended with exit code {code}"
        pid = self.process.pid
        with suppress(OSError):  # this process or a child has just ended, or there is no such file here
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                name, _, rest = Path(f"/proc/{child}/stat").read_text().partition("(")[2].rpartition(")")
                if name in NEEDED and (fields := rest.split())[0] == "Z":
                    code = os.waitstatus_to_exitcode(int(fields[-1]))
                    return f"its {NEEDED[name]} has ended with exit code {code}"
        return None

    def kill(self) -> None:
        """Kill all processes of this Ray, also a frozen raylet; workers end when their raylet has."""
        with suppress(ProcessLookupError), self.process:
            os.killpg(self.process.pid, signal.SIGKILL)


@contextmanager
def own_ray(check: Callable[[], None]) -> Iterator[OwnRay]:
    """Start a Ray on this machine that other users cannot reach, and kill it after the block.

    It listens on 127.0.0.1 only and requires a token, which is in the environment of this process and its children. Its
    session lies in a folder of mode 0700. `check` is called while it starts, and may raise KeyboardInterrupt.

    Raises ClusterLostError if it does not start in time ($RAY_raylet_start_wait_time_s, else START_SECONDS), and
    ResourceError if it cannot start at all.
    """
    seconds = _seconds()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    direct = {name: ",".join([*filter(None, [os.environ.get(name)]), *LOOPBACK]) for name in NO_PROXY}
    with environment(**dict.fromkeys(OUTER), **direct, **token), scratch_folder("ray", base=_base()) as folder:
        read_authentication()
        ahead = threading.Thread(target=import_module, args=("ablate.execution.tune_adapter",), daemon=True)
        ahead.start()  # Ray and Tune, while Ray starts
        ours = _start(folder, seconds, check)
        try:
            yield ours
        finally:
            ours.kill()
    read_authentication()


def _start(folder: Path, seconds: int, check: Callable[[], None]) -> OwnRay:
    options = json.dumps({"object_store_memory": OBJECT_STORE_BYTES, "num_cpus": cpus_here()})
    command = [sys.executable, "-P", ray_process.__file__, options]
    settings = os.environ | SETTINGS | {"RAY_TMPDIR": str(folder)}
    deadline = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=settings,
            start_new_session=True,  # a signal to the group of the driver would end Ray before trials have paused
        )
        ours = OwnRay(process=process)
        try:
            found = _answer(ours, deadline, check)
        except BaseException as error:
            ours.kill()
            if isinstance(error, TimeoutError):
                raise not_started(f"its raylet has not registered within {seconds} s") from None
            raise
        if "address" in found:
            return OwnRay(process=process, port=int(found["address"].rpartition(":")[2]))
        ours.kill()
        text = error_text(RuntimeError(found["error"]), first_line=True).rstrip(".")
        if found["machine"]:
            raise ResourceError(f"Ray does not start on this machine: {text}. Type --executor local to do without it.")
        if time.monotonic() - begun < PATIENCE_SECONDS:
            raise not_started(text)


def _answer(ours: OwnRay, deadline: float, check: Callable[[], None]) -> dict[str, str]:
    """Return what the process prints once Ray has started or failed; raise TimeoutError at `deadline`."""
    output = ours.process.stdout
    assert output is not None
    while not wait([output.fileno()], POLL_SECONDS):
        check()
        if (ended := ours.ended()) is not None:
            raise not_started(ended)
        if time.monotonic() > deadline:
            raise TimeoutError
    line = output.readline()
    found: dict[str, str] = json.loads(line) if line else {"error": "it has ended without a word", "machine": ""}
    return found


def not_started(text: str) -> ClusterLostError:
    """Return the error for a Ray of this driver's that cannot be used, for the reason `text`."""
    return ClusterLostError(
        f"Ray did not start on this machine: {text}. Run the same command again, or type --executor local to do"
        " without it."
    )


def _seconds() -> int:
    """Return the seconds that Ray has to start; raise ResourceError if the variable is no whole number."""
    value = os.environ.get(START_WAIT, str(START_SECONDS))
    if not re.fullmatch(r"[1-9][0-9]{0,8}", value):
        raise ResourceError(f"{START_WAIT}={value}: this must be a whole number of seconds from 1. Unset it.")
    return int(value)


def _base() -> Path:
    """Return the folder for the session: $RAY_TMPDIR or the temporary folder, or /tmp if their path is too long."""
    base = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()).absolute()
    return base if base.is_dir() and len(os.fsencode(base)) <= BASE_BYTES else Path("/tmp")
