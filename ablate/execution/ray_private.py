"""Every private API of Ray that ablate uses, and why the public API is not enough.

`tests/execution/test_ray_private.py` fails when Ray changes one of them, and when another file uses one.

- `JobConfig(_client_job)`: `ray.init` puts the driver's current folder first on the workers' `sys.path` without it.
- `ray.init(_node_ip_address, _temp_dir)` and `ray_constants.ENABLE_RAY_CLUSTER`: a Ray that only this machine reaches.
  Ray replaces 127.0.0.1 by an outer address unless the last is False.
- `ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV`: under `uv run`, Ray makes a runtime environment of the current folder,
  which it does not upload for such a job. The variable of this name is read when Ray is imported.
- `client_mode_hook`: RAY_CLIENT_MODE is read when Ray is imported, and makes each call start a Ray Client.
- `Config.initialize`, `AuthenticationTokenLoader.reset_cache`: Ray reads RAY_AUTH_MODE and its token once per process.
- `maybe_enable_token_auth_if_token_available`: lets a process use ~/.ray/auth_token where RAY_AUTH_MODE is not set, as
  Ray's own commands do.
- `services.canonicalize_bootstrap_address_or_die`: resolves `auto` before `ray.init` waits two minutes for it.
- `services.start_raylet`, `services.get_node`, `GcsClient.get_all_node_info`: Ray waits 30 s for its raylet, a
  constant, and does not notice that it has ended.
- `services.start_api_server`, `utils.get_dashboard_dependency_error`: with `include_dashboard=False` too, Ray starts a
  server of the dashboard, waits for it, and imports its libraries here. Without both it starts in 3 s instead of 7.5.
- `services.ConsolePopen`: starts Ray's processes in the process group of the driver. A signal to the group, as
  `timeout` sends it, would end them before trials have paused.
- `Node.start_monitor`, `Node.start_log_monitor`: processes for an autoscaler, which a Ray of one machine lacks, and for
  printing workers' output here (`log_to_driver=False`). Their start takes .8 s of CPU time.
- `worker._global_node`: `all_processes`, `dead_processes` and `kill_all_processes` of a Ray that this process started;
  `ray.shutdown` waits forever for a frozen raylet. `PROCESS_TYPE_GCS_SERVER` and `PROCESS_TYPE_RAYLET` name them.
- `ResourceAndLabelSpec`: the CPUs and GPUs that a Ray would declare here, counted without starting one.
- `ray_logging.stdout_deduplicator.skip_re`: the only filter for what a raylet prints into the driver's output.
- `_internal_kv_put`, `_internal_kv_exists`: the GCS as a key-value store that every worker reaches while it trains.
- `RayActorManager._actor_task_failed`, `RayActorError` of `ray.tune.experiment.trial`: Tune recognises one of the five
  errors that mean that a worker is gone.
- `_ActorClassCache`: makes the actors of Tune's trials from a Trainable, so that every worker imports Tune, and with a
  runtime environment. Workers that wait already have none, so Ray starts another one.
- `StorageContext`, `_TrialInfo`: what Tune sends to each actor. A worker imports Tune to read it.
- `controller._tune_controller._actor_manager.cleanup`: kills the workers of a Tuner that was left by an exception.
- The variables of `TUNE_SETTINGS`, `WORKER_SETTINGS`, `CONNECTING`, `RAYLET_WAIT`, `GCS_WAIT` and `METRICS`: settings
  that have no parameter. Those of `OUTER` describe the Ray or the job that this process is a part of.
- The texts `DEAD_BECAUSE` and `NOT_SET_UP`: errors without a type or attribute to recognise them by.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import client_mode_hook, ray_constants, ray_logging, services, utils
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.node import Node
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient  # type: ignore[attr-defined]
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, WorkerCrashedError
from ray.experimental import internal_kv
from ray.job_config import JobConfig
from ray.util import deregister_serializer, register_serializer

from ablate.base.errors import ClusterLostError

OBJECT_STORE_BYTES = 256 * 2**20  # only configurations and reports pass through it
POLL_SECONDS = 0.1
RAYLET_WAIT, GCS_WAIT = "RAY_raylet_start_wait_time_s", "RAY_gcs_server_port_wait_time_s"
METRICS = "RAY_enable_metrics_collection"  # its exporter listens on all interfaces, without a token
CONNECTING = {  # a raylet tries to connect before its object store listens, and waits a second for the next of 10 tries
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
}
OPTIMIZE = "PYTHONOPTIMIZE"
# Unset for a Ray of the study's own; under PYTHONOPTIMIZE the raylet of Ray 2.60 ends at its start.
OUTER = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_NAMESPACE", ray_constants.RAY_RUNTIME_ENV_HOOK, OPTIMIZE)
DEAD_BECAUSE = "The actor is dead because"
NOT_SET_UP = "Failed to set up runtime environment"
NEEDED = {ray_constants.PROCESS_TYPE_GCS_SERVER: "GCS", ray_constants.PROCESS_TYPE_RAYLET: "raylet"}
WORKER_GONE = (NodeDiedError, ObjectLostError, OutOfMemoryError, WorkerCrashedError)
NEVER_SECONDS = "1e9"
TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": NEVER_SECONDS,
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": NEVER_SECONDS,
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a banner even at verbosity 0
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
WORKER_SETTINGS = {"RAY_CHDIR_TO_TRIAL_DIR": "0", "PL_DISABLE_FORK": "1"}  # what Tune puts into the runtime environment
PENDING_TRIALS = "TUNE_MAX_PENDING_TRIALS_PG"


def join(address: str) -> None:
    """Join the cluster at `address` with Ray's output silenced."""
    use_token()
    _init(address=address)


def start(folder: Path, *, seconds: int, check: Callable[[], None]) -> None:
    """Start a Ray that listens on 127.0.0.1 only and keeps its session in `folder`.

    Ray waits up to `seconds` for its raylet, as long as the raylet runs and `check` does not raise.
    """
    missing = ImportError("ablate starts Ray without its dashboard")
    outside = partial(services.ConsolePopen, process_group=0)
    with (
        _patient(seconds, check),
        _on_loopback(),
        _replaced(services, start_api_server=lambda *_, **__: (None, None), ConsolePopen=outside),
        _replaced(utils, get_dashboard_dependency_error=lambda: missing),
        _replaced(Node, start_monitor=lambda _: None, start_log_monitor=lambda _: None),
    ):
        _init(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder),
        )


def _init(**options: Any) -> None:
    """Call `ray.init` so that workers import no module from the driver's current folder, and without the Ray Client.

    Each Assignment carries the driver's search path, which its worker adds to its own.
    """
    client_mode_hook.is_client_mode_enabled = client_mode_hook.is_client_mode_enabled_by_default = False
    with _replaced(ray_constants, RAY_ENABLE_UV_RUN_RUNTIME_ENV=False):
        ray.init(log_to_driver=False, logging_level=logging.CRITICAL, job_config=JobConfig(_client_job=True), **options)


def use_token() -> None:
    """Use the token of this user, if there is one."""
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def read_authentication() -> None:
    """Make Ray read the token and its mode from the environment again."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def bootstrap_address(address: str) -> str:
    """Return HOST:PORT for an address; "auto" means RAY_ADDRESS or the cluster that `ray start` started here.

    Raises ValueError for an address of another form, ConnectionError if "auto" finds nothing.
    """
    return services.canonicalize_bootstrap_address_or_die(address)


def own_resources() -> Mapping[str, float]:
    """Return the resources that a Ray started here would declare, counted by Ray without starting one."""
    spec = ResourceAndLabelSpec(object_store_memory=OBJECT_STORE_BYTES)
    return dict(spec.resolve(is_head=True, node_ip_address="127.0.0.1").to_resource_dict())  # type: ignore[no-untyped-call]


def _node() -> Any:
    return ray._private.worker._global_node


def is_own() -> bool:
    """Return whether this process started the Ray that it is connected to."""
    node = _node()
    return node is not None and bool(node.all_processes)


def kill() -> None:
    """Kill the processes of the local Ray, also a frozen raylet."""
    if (node := _node()) is not None:
        node.kill_all_processes(check_alive=False, allow_graceful=False)


def ended_part() -> str | None:
    """Return the name of a process that the local Ray needs and that has ended, or None."""
    if (node := _node()) is None:
        return None
    return next((NEEDED[name] for name, _ in node.dead_processes() if name in NEEDED), None)


def set_flag(name: str) -> None:
    """Set a flag of the cluster that all its processes can see."""
    internal_kv._internal_kv_put(name.encode(), b"1")


def has_flag(name: str) -> bool:
    """Return whether a flag of the cluster is set."""
    return bool(internal_kv._internal_kv_exists(name.encode()))


def kill_workers(controller: Any) -> None:
    """Kill the workers of a Tuner that was left by an exception, and release their resources."""
    controller._tune_controller._actor_manager.cleanup()


def raylet_silenced() -> AbstractContextManager[None]:
    """Discard what the raylet prints into the driver's output; ablate reports a dead worker itself."""
    return _replaced(ray_logging.stdout_deduplicator, skip_re=re.compile(""))


@contextmanager
def every_death_known() -> Iterator[None]:
    """Make Tune treat every error that means a lost worker as RayActorError.

    Tune recognises only RayActorError, and ends the whole run for a worker that Ray killed to free memory: one that
    trains, and one that starts, whose first facts a trial then asks for.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.tune.experiment import trial

    manager: Any = RayActorManager
    real = manager._actor_task_failed

    def failed(self: Any, tracked_actor_task: Any, exception: Exception) -> None:
        gone = isinstance(exception, WORKER_GONE)
        real(self, tracked_actor_task, RayActorError(error_msg=str(exception)) if gone else exception)

    with _replaced(manager, _actor_task_failed=failed), _replaced(trial, RayActorError=(RayActorError, *WORKER_GONE)):
        yield


@contextmanager
def actors_of_tune(actor: type) -> Iterator[None]:
    """Let Tune start `actor` for each of its trials, instead of a Trainable, on a worker that does not import Tune.

    Ray starts a worker for each CPU in advance. Actors get these if they need no runtime environment, which is so if
    the workers have WORKER_SETTINGS from this process. Otherwise actors get Tune's, and Ray starts a worker for each.
    """
    from ray.train._internal.storage import StorageContext
    from ray.tune.execution.class_cache import _ActorClassCache
    from ray.tune.experiment.trial import _TrialInfo

    inherited = is_own() and WORKER_SETTINGS.items() <= os.environ.items()
    with_environment, sent = _ActorClassCache.get, (StorageContext, _TrialInfo)

    def get(self: Any, trainable: Any) -> Any:
        if inherited:
            return self._cache.setdefault(actor, ray.remote(actor))
        return with_environment(self, actor)  # type: ignore[no-untyped-call]

    for kind in sent:
        register_serializer(kind, serializer=_nothing, deserializer=_nothing)
    try:
        with _replaced(_ActorClassCache, get=get):
            yield
    finally:
        for kind in sent:
            deregister_serializer(kind)


def _nothing(_: object) -> None:
    return None


def _on_loopback() -> Any:
    """Keep 127.0.0.1 as the address of Ray's node."""
    return _replaced(ray_constants, ENABLE_RAY_CLUSTER=False)


@contextmanager
def _patient(seconds: int, check: Callable[[], None]) -> Iterator[None]:
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

    with _replaced(services, get_node=get_node, start_raylet=start_raylet):
        yield


@contextmanager
def _replaced(place: Any, **values: Any) -> Iterator[None]:
    """Set attributes of `place` inside the block and restore the former values afterwards."""
    former = {name: getattr(place, name) for name in values}
    for name, value in values.items():
        setattr(place, name, value)
    try:
        yield
    finally:
        for name, value in former.items():
            setattr(place, name, value)
