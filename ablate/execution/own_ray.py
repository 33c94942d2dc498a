"""A Ray of the driver's own on this machine: started with patience, watched, ended with the study."""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient  # type: ignore[attr-defined]
from ray.job_config import JobConfig

from ablate.errors import AblateError, ClusterLostError, ResourceError
from ablate.scratch import scratch_folder

OBJECT_STORE_BYTES = 256 * 2**20  # only configurations and reports pass through it
POLL_SECONDS = 0.1
START_SECONDS = 180  # Ray waits 30 s, which a busy machine exceeds
RAYLET_WAIT, GCS_WAIT = "RAY_raylet_start_wait_time_s", "RAY_gcs_server_port_wait_time_s"  # Ray's own names
CLOSED = {"RAY_enable_metrics_collection": "0"}  # its exporter listens on all interfaces, without a token
BASE_BYTES = 21  # of the 107 that a Unix socket's path may have, Ray and the folder's own name take the rest
NEEDED = {ray_constants.PROCESS_TYPE_GCS_SERVER: "GCS", ray_constants.PROCESS_TYPE_RAYLET: "raylet"}


def init_options() -> dict[str, Any]:
    """Return what every `ray.init` is given: silence, and no modules from our current folder in the workers.

    Ray would put that folder first on their `sys.path`; what a study needs from it comes with each assignment.
    """
    return {"log_to_driver": False, "logging_level": logging.CRITICAL, "job_config": JobConfig(_client_job=True)}


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables inside the block and put the former values back."""
    former = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def own_ray(check: Callable[[], None]) -> Iterator[None]:
    """Start a Ray on this machine that other users cannot reach, and end it after the block.

    `check` is called while its raylet starts, and what it raises is passed on.

    It listens on 127.0.0.1 only and asks for a token that is in the environment of this process and its children. Its
    session lies in a folder of mode 0700.
    Raises ClusterLostError where it does not start in time ($RAY_raylet_start_wait_time_s, else START_SECONDS), and
    ResourceError where it cannot start at all.
    """
    seconds = int(os.environ.get(RAYLET_WAIT, START_SECONDS))
    waits = {name: os.environ.get(name, str(seconds)) for name in (RAYLET_WAIT, GCS_WAIT)}
    with environment(**waits, **CLOSED), _own_token(), scratch_folder("ray", base=_base()) as folder:
        try:
            with _patient(seconds, check), _on_loopback():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=str(folder),
                    **init_options(),
                )
        except Exception as error:
            raise _not_started(error) from error
        try:
            yield
        except ClusterLostError:
            _kill()
            raise
        finally:
            ray.shutdown()


def own_resources() -> Mapping[str, float]:
    """Return what a Ray that is started here would declare, counted by Ray itself without starting one."""
    spec = ResourceAndLabelSpec(object_store_memory=OBJECT_STORE_BYTES)
    return dict(spec.resolve(is_head=True, node_ip_address="127.0.0.1").to_resource_dict())  # type: ignore[no-untyped-call]


def is_own() -> bool:
    """Return whether this process started the Ray that it is connected to."""
    node = ray._private.worker._global_node
    return node is not None and bool(node.all_processes)


def _kill() -> None:
    """End the processes of our own Ray at once: `ray.shutdown` waits for ever for the answer of a frozen raylet."""
    node = ray._private.worker._global_node
    if node is not None:
        node.kill_all_processes(check_alive=False, allow_graceful=False)


def ended_part() -> str | None:
    """Return the name of a process that our own Ray needs and that has ended, or None."""
    node = ray._private.worker._global_node
    if node is None:
        return None
    return next((NEEDED[name] for name, _ in node.dead_processes() if name in NEEDED), None)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or the name of its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


def _not_started(error: Exception) -> AblateError:
    """Return what to raise for an error of `ray.init`, which raises a bare Exception where a process is late."""
    text = first_line(error)
    if isinstance(error, OSError | ValueError) and not isinstance(error, TimeoutError):
        return ResourceError(f"Ray does not start on this machine: {text}. Type --executor local to do without it.")
    return ClusterLostError(
        f"Ray did not start on this machine: {text}. Run the same command again, or type --executor local to do"
        " without it."
    )


@contextmanager
def _own_token() -> Iterator[None]:
    """Let Ray ask for a fresh token inside the block; what Ray has cached of the environment is read again."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        with environment(**token):
            _read_authentication()
            yield
    finally:
        _read_authentication()


def _read_authentication() -> None:
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray keep 127.0.0.1 as its node's address, which it replaces by an outer one otherwise."""
    former = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = former


def _base() -> Path:
    """Return where the session's folder goes: $RAY_TMPDIR or the temporary folder, or /tmp where these are too long."""
    base = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()).absolute()
    return base if base.is_dir() and len(os.fsencode(base)) <= BASE_BYTES else Path("/tmp")


@contextmanager
def _patient(seconds: int, check: Callable[[], None]) -> Iterator[None]:
    """Let Ray wait up to `seconds` for its raylet, as long as that runs and `check` does not raise.

    Ray's own 30 s are a constant in `ray._private.node.Node`, and it does not look at the process.
    """
    ask, begin, deadline = services.get_node, services.start_raylet, time.monotonic() + seconds
    begun: list[Any] = []

    def start_raylet(*arguments: Any, **named: Any) -> Any:
        check()
        begun.append(begin(*arguments, **named))
        return begun[-1]

    def get_node(gcs_address: str, node_id: str) -> Any:
        client = GcsClient(address=gcs_address)
        while not any(known.hex() == node_id for known in client.get_all_node_info()):
            check()
            for code in (raylet.process.poll() for raylet in begun):
                if code is not None:
                    raise ClusterLostError(f"its raylet has ended with exit code {code}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"its raylet has not registered within {seconds} s")
            time.sleep(POLL_SECONDS)
        return ask(gcs_address, node_id)  # type: ignore[no-untyped-call]

    services.get_node, services.start_raylet = get_node, start_raylet
    try:
        yield
    finally:
        services.get_node, services.start_raylet = ask, begin
