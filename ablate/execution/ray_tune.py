"""Runs trials on a Ray cluster with Ray Tune; Tune stores nothing, because the ledger is the record."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.base.errors import ResourceError
from ablate.core.code_version import SHORT, CodeVersion
from ablate.execution.cluster import (
    JOIN_SECONDS,
    Connection,
    SlotPlan,
    most_slots,
    node_resources,
    plan,
    ray_session,
    slots_on,
    wait_for_nodes,
)
from ablate.execution.gcs_watchdog import gcs_watchdog
from ablate.execution.own_ray import cpus_here
from ablate.execution.pack_run import Assignment
from ablate.execution.packing import PackExecutor, RunningPack
from ablate.execution.signals import Interruption
from ablate.functions.code.archive import zip_code

if TYPE_CHECKING:
    from ablate.execution.autoscaling import NodeRequest
    from ablate.execution.tune_session import TuneSession
    from ablate.tuning import Search


@dataclass(frozen=True, kw_only=True)
class RayExecutor(PackExecutor):
    """Trains on `gpus` GPUs, `gpus_per_trial` for each trial, or on CPUs when `gpus` is 0.

    `device` "cpu" forces the CPU even if the trial holds a GPU. Without `address` it starts Ray on this machine. With
    `autoscale` it starts on the present nodes and requests more from Ray's autoscaler, up to that number of nodes. The
    workers of a cluster get `code`, the user's packages and files.
    """

    gpus: int = 0
    gpus_per_trial: float = 1.0
    cpus_per_trial: float | None = None
    address: str | None = None
    autoscale: int | None = None
    code: tuple[Path, ...] = ()

    def check(self) -> None:
        """Raise ResourceError if this machine, or the cluster at `address`, cannot hold one trial.

        No Ray is started. A cluster is joined, its nodes are waited for, and it is left again.
        """
        if self.device.startswith("cuda") and not self.gpus:
            raise ResourceError(f"--device {self.device}: no GPU was asked for. Type --gpus 1, or --device cpu.")
        if self.address is None:
            self._plan([{"CPU": cpus_here(), "GPU": _gpus_here() if self.gpus else 0}])
            return
        with ray_session(self.address):
            wait_for_nodes(lambda: self._plan(node_resources()), seconds=JOIN_SECONDS, check=lambda: None)

    def run(self, search: Search, *, on_event: Callable[[], None]) -> None:
        """Run `search` as `Executor.run` describes."""
        with Interruption(self.grace_seconds) as interruption, search.listening(interruption.ask):
            while not self._run(search, interruption, on_event):
                interruption.check()

    def _run(self, search: Search, interruption: Interruption, on_event: Callable[[], None]) -> bool:
        """Run `search` on one Ray, and return False if it must continue on another one."""
        with (
            ray_session(self.address, check=interruption.check) as connection,
            gcs_watchdog(connection.address, ended=connection.own.ended if connection.own else lambda: None) as line,
        ):
            interruption.listen()  # `ray.init` has replaced the handlers
            patience = JOIN_SECONDS if self.address else 0.0
            held = wait_for_nodes(lambda: self._plan(node_resources()), seconds=patience, check=interruption.check)
            session = self._session(search, held, interruption, line.answers, on_event, connection)
            from ablate.execution.tune_adapter import run_tune  # imported while Ray starts

            over = run_tune(session, held, pending=max(held.slots, session.request.most if session.request else 0))
            interruption.check()
            return over

    def _session(
        self,
        search: Search,
        held: SlotPlan,
        interruption: Interruption,
        answers: Callable[[], bool],
        on_event: Callable[[], None],
        connection: Connection,
    ) -> TuneSession:
        import ray

        from ablate.execution.tune_session import TuneSession

        code = ray.put(zip_code(self.code)) if self.code and self.address else None

        @lru_cache(maxsize=2)  # the last two: a worker keeps the code that it has extracted
        def carried(trainable: str) -> Any:
            version = CodeVersion.of(trainable)
            if version is None or not self.address:
                return code
            return ray.put(zip_code([self.versions / tree[:SHORT] for tree in version.trees], every=True))

        return TuneSession(
            search=search,
            packing=self.packing(search),
            assign=lambda pack: self._assignment(pack, held, carried),
            on_event=on_event,
            interruption=interruption,
            answers=answers,
            own=connection.own is not None,
            shared=connection.shared,
            slots=lambda: slots_on(node_resources(), cpus=held.cpus, share=held.gpus, gpus=self.gpus),
            request=self._request(held),
        )

    def _plan(self, nodes: Sequence[Mapping[str, float]]) -> SlotPlan:
        return plan(
            nodes,
            gpus=self.gpus,
            gpus_per_trial=self.gpus_per_trial,
            cpus_per_trial=self.cpus_per_trial,
            grows=self.autoscale is not None,
        )

    def _request(self, held: SlotPlan) -> NodeRequest | None:
        from ablate.execution.autoscaling import NodeRequest

        if self.autoscale is None:
            return None
        most = most_slots(node_resources(), held, gpus=self.gpus, most_nodes=self.autoscale)
        return NodeRequest(most=most, bundle=held.bundle)

    def _assignment(self, pack: RunningPack, held: SlotPlan, carried: Callable[[str], Any]) -> Assignment:
        device = ("cuda" if self.gpus else "cpu") if self.device == "auto" else self.device
        code = carried(next(iter(pack.members.values())).config.trainable)
        return self.assignment(pack, device=device, threads=held.threads, search_path=tuple(sys.path), code=code)


def _gpus_here() -> int:
    """Return how many GPUs of this machine torch, and so a trial, can use."""
    import torch

    return torch.cuda.device_count()
