"""Starts or joins a Ray cluster, and checks it against the request before anything starts."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.base.errors import ClusterLostError, ResourceError
from ablate.base.redaction import error_text
from ablate.base.waiting import after
from ablate.execution.gcs_watchdog import end_process
from ablate.execution.own_ray import OwnRay, environment, not_started, own_ray
from ablate.execution.ray_private import job_config, read_authentication

CONNECT_SECONDS = 10.0
JOIN_SECONDS = 60.0  # wait for nodes of a remote cluster to join, for example after its head was replaced
LEAVE_SECONDS = 60.0  # `ray.shutdown` has no limit while the raylet of this machine is frozen
END_SECONDS = 20.0  # the same for a Ray of the study's own
EPSILON = 1e-6
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what a raylet prints here; ablate reports a dead worker itself
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # a runtime environment of the current folder, under `uv run`
    "RAY_CLIENT_MODE": None,
}
SAME_TOKEN = "Are RAY_AUTH_MODE and the token (RAY_AUTH_TOKEN or ~/.ray/auth_token) those of the cluster?"

logger = logging.getLogger("ablate")


class TooFewError(ResourceError):
    """The present nodes hold no trial, or fewer GPUs than requested; more may join."""


@dataclass(frozen=True, kw_only=True)
class SlotPlan:
    """How many trials run at a time, and the CPUs and GPUs of each."""

    slots: int
    cpus: float
    gpus: float

    @property
    def threads(self) -> int:
        """Number of threads of one trial: its whole CPUs, at least one."""
        return max(1, int(self.cpus + EPSILON))

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one trial, so that Ray starts as many on a node as can run there.

        A GPU share below one is rounded up to 1/2, 1/3, …, because a share never spans two GPUs.
        """
        gpus = self.gpus if self.gpus >= 1 or not self.gpus else 1 / _gpu_slots(1, self.gpus)
        return {"CPU": self.cpus, **({"GPU": gpus} if gpus else {})}


@contextmanager
def silence_logger(name: str) -> Iterator[None]:
    """Silence one of Ray's loggers inside the block."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How this process is connected to Ray: the address of its GCS, and the study's own Ray if it is one.

    `shared` is true if this process was connected before, and stays so.
    """

    address: str
    own: OwnRay | None = None
    shared: bool = False


@contextmanager
def ray_session(address: str | None, *, check: Callable[[], None] = lambda: None) -> Iterator[Connection]:
    """Start a local Ray, or join the one at `address`; end or leave it after the block.

    Ray is imported inside the block, with its settings. Without an address, the pointer that an
    earlier `ray start` left behind is ignored. If this process is already connected to a Ray, that one is used and
    stays connected. `check` is called while a local Ray starts, and may raise KeyboardInterrupt. Raises ResourceError
    if no cluster answers, and the errors of `own_ray`.
    """
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        yield Connection(address=ray.get_runtime_context().gcs_address, shared=True)
        return
    if address is not None:
        _check_address(address)
    ours = _own(check) if address is None else _join(address)
    with silence_logger("ray"), environment(**QUIET), ours as connection:
        yield connection


@contextmanager
def _own(check: Callable[[], None]) -> Iterator[Connection]:
    with own_ray(check) as own:
        try:
            with after(JOIN_SECONDS, lambda: end_process(not_started("its GCS does not answer"))):
                ray = _init(f"[::ffff:127.0.0.1]:{own.port}")  # Ray reads 127.0.0.1 as the outer address
        except Exception as error:
            raise not_started(error_text(error, first_line=True).rstrip(".")) from error
        try:
            yield Connection(address=f"127.0.0.1:{own.port}", own=own)
        except ClusterLostError:
            own.kill()
            raise
        finally:
            with after(END_SECONDS, own.kill):
                ray.shutdown()


@contextmanager
def _join(address: str) -> Iterator[Connection]:
    with environment(**_token_of_user()):
        read_authentication()
        try:
            with after(JOIN_SECONDS + LEAVE_SECONDS, lambda: end_process(_silent(address))):
                ray = _init(address)
        except Exception as error:  # also of a RAY_RUNTIME_ENV_HOOK
            text = error_text(error, first_line=True).rstrip(".")
            said = f"--address {address}: no Ray cluster can be joined there: {text}. {SAME_TOKEN}"
            raise ResourceError(said) from error
        try:
            yield Connection(address=ray.get_runtime_context().gcs_address)
        finally:
            with after(LEAVE_SECONDS, lambda: end_process(_raylet_silent(address))):
                ray.shutdown()


def _init(address: str) -> Any:
    """Join the Ray at `address` with its output silenced, and return Ray's module."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, job_config=job_config())
    return ray


def _token_of_user() -> dict[str, str]:
    """Return the variable by which Ray uses the token of this user, if there is one."""
    given = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    found = given or (Path.home() / ".ray" / "auth_token").is_file()
    return {"RAY_AUTH_MODE": "token"} if found and "RAY_AUTH_MODE" not in os.environ else {}


def _silent(address: str) -> ClusterLostError:
    return ClusterLostError(f"--address {address}: its GCS does not answer. Is an http_proxy in the way? {SAME_TOKEN}")


def _raylet_silent(address: str) -> ClusterLostError:
    return ClusterLostError(
        f"the raylet that this machine runs for the Ray cluster at {address} has not answered for {LEAVE_SECONDS:.0f}"
        " s; what was committed is kept. Run the same command again once it answers"
    )


def _check_address(address: str) -> None:
    """Raise ResourceError if nothing listens at `address`; Ray itself would give up after two minutes."""
    if address.startswith("ray://"):
        raise ResourceError(
            f"--address {address}: the Ray Client is not supported. Give HOST:6379 on a machine of the cluster, "
            "or submit the command as a Ray job."
        )
    place = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    if address == "auto" and not place:
        return  # Ray finds what `ray start` started here, or says at once that there is none
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        raise ResourceError(f"--address {address}: not of the form HOST:PORT, and not 'auto'.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        reason = error_text(error, place)
        raise ResourceError(
            f"--address {address}: nothing answers at {place} ({reason}). Is the cluster up?"
        ) from error


def node_resources() -> list[Mapping[str, float]]:
    """Return the declared resources of every live node."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def plan(
    nodes: Sequence[Mapping[str, float]],
    *,
    gpus: int,
    gpus_per_trial: float,
    cpus_per_trial: float | None,
    grows: bool = False,
) -> SlotPlan:
    """Return the slots that fit on `nodes`; if none, raise ResourceError with the resources found and what to type.

    A cluster that `grows` may have fewer GPUs than `gpus` at the start. Without `cpus_per_trial` a trial holds one CPU,
    or less if GPUs would otherwise be idle for lack of CPUs.
    """
    has_cpus, has_gpus = (sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU"))
    here = f"the cluster has {_count(has_gpus, 'GPU')} and {_count(has_cpus, 'CPU')} on {_count(len(nodes), 'node')}"
    if gpus > has_gpus and not (grows and has_gpus):
        some = f"--gpus {int(has_gpus)} to use those, or " if has_gpus >= 1 else ""
        raise TooFewError(f"--gpus {gpus}: {here}. Type {some}--gpus 0 to train on CPUs.")
    share = gpus_per_trial if gpus else 0.0
    if gpus and not (0 < share < 1 or (share >= 1 and share == int(share))):
        raise ResourceError(
            f"--gpus-per-trial {share:g}: a trial gets part of one GPU (0.25, 0.5) or a whole number of GPUs."
        )
    on_gpus = [_gpu_slots(node.get("GPU", 0.0), share) for node in nodes] if gpus else []
    wanted = _gpu_slots(gpus, share) if gpus else None
    if gpus and not (wanted and sum(on_gpus)):
        largest = max((int(node.get("GPU", 0)) for node in nodes), default=0)
        raise TooFewError(
            f"--gpus-per-trial {share:g}: {here}, and no trial can hold so many on one node within --gpus {gpus}. "
            f"Type --gpus-per-trial {min(largest, gpus)}."
        )
    cpus = 1.0 if cpus_per_trial is None else cpus_per_trial
    if cpus_per_trial is None and wanted is not None:
        crowded = (node.get("CPU", 0.0) / slots for node, slots in zip(nodes, on_gpus, strict=True) if slots)
        cpus = min(1.0, max(0.01, math.floor(min(crowded) * 100) / 100))
    slots = slots_on(nodes, cpus=cpus, share=share, gpus=gpus)
    if slots < 1:
        largest_cpus = max((node.get("CPU", 0.0) for node in nodes), default=0.0)
        raise TooFewError(
            f"--cpus-per-trial {cpus:g}: {here}, and no node holds one trial. Type --cpus-per-trial {largest_cpus:g}."
        )
    return SlotPlan(slots=slots, cpus=cpus, gpus=share)


def wait_for_nodes(make: Callable[[], SlotPlan], *, seconds: float, check: Callable[[], None]) -> SlotPlan:
    """Return the plan of `make` as soon as enough nodes have joined; raise its TooFewError after `seconds`.

    `check` is called while waiting; its exceptions propagate.
    """
    deadline, told = time.monotonic() + seconds, False
    while True:
        check()
        try:
            return make()
        except TooFewError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            if not told:
                logger.warning("%s Waiting up to %.0f s for more nodes to join.", error, seconds)
                told = True
            time.sleep(min(1.0, left))


def slots_on(nodes: Sequence[Mapping[str, float]], *, cpus: float, share: float, gpus: int) -> int:
    """Return how many trials with `cpus` CPUs and a GPU share `share` fit on `nodes`, using at most `gpus` GPUs."""
    fits = [math.floor(node.get("CPU", 0.0) / cpus + EPSILON) if cpus > 0 else math.inf for node in nodes]
    if not gpus:
        return int(sum(fits))
    on_gpus = [_gpu_slots(node.get("GPU", 0.0), share) for node in nodes]
    return int(min(sum(map(min, fits, on_gpus)), _gpu_slots(gpus, share)))


def most_slots(nodes: Sequence[Mapping[str, float]], held: SlotPlan, *, gpus: int, most_nodes: int) -> int:
    """Return how many trials fit on `most_nodes` nodes like the largest of `nodes`, using at most `gpus` GPUs."""
    largest = max(slots_on([node], cpus=held.cpus, share=held.gpus, gpus=gpus) for node in nodes)
    return min(most_nodes * largest, _gpu_slots(gpus, held.gpus)) if gpus else most_nodes * largest


def _gpu_slots(gpus: float, share: float) -> int:
    """Return the trials that fit on one node; a fraction never spans two GPUs, so 0.4 gives two per GPU."""
    if share < 1:
        return int(gpus) * math.floor(1 / share + EPSILON)
    return math.floor(gpus / share + EPSILON)


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" + ("" if number == 1 else "s")
