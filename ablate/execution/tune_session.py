"""Connects the Search of a run to Ray Tune: hands out packs, commits their outcomes, pauses them and counts slots.

Nothing here imports Tune.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from ablate.base.errors import ClusterLostError
from ablate.base.redaction import error_text
from ablate.execution.autoscaling import NodeRequest
from ablate.execution.executor import Turn
from ablate.execution.gcs_watchdog import own_ray_lost
from ablate.execution.pack_run import Assignment
from ablate.execution.packing import Packing, RunningPack
from ablate.execution.pausing import request_pause
from ablate.execution.signals import Interruption

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

    from ablate.tuning import Search

COUNT_SECONDS = 5.0  # between two counts of the packs that fit on the nodes
PROBE_SECONDS = 2.0
REMIND_SECONDS = 60.0  # between two warnings while no node can hold a trial

TRIAL_RUNNING = "RUNNING"  # Tune's status of a trial whose worker has begun

logger = logging.getLogger("ablate.execution")


class StopTune(BaseException):
    """Leaves Tune at once: this Ray is left next.

    After an Exception Tune waits for workers to finish their epoch; its regular end writes the state of every trial to
    disk (4 s per 1000 trials).
    """


class Left(Exception):  # noqa: N818
    """Leaves Tune so that it removes its workers: this Ray stays."""


@dataclass(kw_only=True)
class TuneSession:
    """The Search of a run and its running packs, each a trial of Tune's; Tune's objects find it by token.

    Tune pickles and copies its searcher and scheduler. They hold only a token, so that the Search, with its lock and
    its ledger connection, is never copied. `slots` counts the workers that fit on the live nodes, and `answers` says
    whether the cluster answers. `own` is true if this process started the Ray, which no other node can join, and
    `shared` if it stays connected to it afterwards. Tune is `left` for a `cause`, an error of the driver, or because
    the search is over.
    """

    search: Search
    packing: Packing
    assign: Callable[[RunningPack], Assignment]
    on_event: Callable[[], None]
    interruption: Interruption
    slots: Callable[[], int]
    answers: Callable[[], bool]
    own: bool
    shared: bool = False
    request: NodeRequest | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    running: dict[str, RunningPack] = field(default_factory=dict)
    controller: Any = None
    pausing: bool = False
    left: bool = False
    cause: BaseException | None = None
    _reporting: dict[str, Any] = field(default_factory=dict)  # actors, which Tune forgets
    _asked: Any = None  # the request to pause ends with this object
    _fit: int | None = None
    _count_at: float = 0.0
    _remind_at: float = 0.0

    def __post_init__(self) -> None:
        self.packing.slots = self._places  # counted here, so that no event waits for a cluster that does not answer

    def turn(self, controller: Any) -> None:
        """Check the cluster and the lease between two events; after a signal, pause the trials, then leave.

        Raises StaleDriverError, ClusterLostError, or KeyboardInterrupt once every trial has paused or the grace time is
        over.
        """
        self.controller = controller
        self._count()
        self.search.check()
        if not self.interruption.arrived:
            return
        if not self.pausing:
            self.pausing = True
            self._asked = request_pause(self.token)
        begun = {t.trial_id for t in controller.get_trials() if t.status == TRIAL_RUNNING}
        if not begun & set(self.running) or self.interruption.overdue:
            for trial_id in set(self.running) - begun:
                self.packing.pause(self.running[trial_id])
            self.interruption.check()

    def suggest(self, trial_id: str) -> Assignment | None:
        """Return an assignment, or None while running trials must end first.

        At most as many packs run as fit on the live nodes. Tune gives the actor of an ended trial to the newest trial,
        so a trial of a lost node would otherwise wait for a place until the end of the study.

        Raises StopTune if nothing runs and there is nothing to hand out: the search is over or stopped.
        """
        if len(self.running) >= self._places():
            return None
        pack = None if self.pausing else self.packing.begin()
        if pack is None:
            if not self.running:
                raise StopTune
            return None
        self.running[trial_id] = pack
        self.on_event()
        return self.assign(pack)

    def take(self, trial: Trial, turn: Turn) -> bool:
        """Commit what a worker has returned and return whether its pack continues.

        The worker learns which trials have ended, and which join them, before its next step. While trials pause, none
        joins, and a pack continues until each of its trials has written a checkpoint.
        """
        pack = self.running[trial.trial_id]
        actor: Any = trial.temporary_state.ray_actor
        self._reporting[trial.trial_id] = actor
        ended = self.packing.take(pack, turn)
        if self.pausing:
            ended += self.packing.pause(pack)
        joined = () if self.pausing else self.packing.fill(pack)
        if pack.members and (ended or joined):
            actor.change.remote(ended, joined)  # Tune itself sends a worker nothing between two steps
        self.on_event()
        return bool(pack.members)

    def died(self, trial_id: str, reason: str) -> None:
        """Report to the search the trials whose process died; each is retried from its checkpoint or ends as FAIL."""
        self._count_at = 0.0
        message = f"its process died: {reason}"
        for key in self.running[trial_id].members:
            logger.warning("trial %s failed: %s", key, message)
            self.search.fail(key, message, kind="died")
        self.on_event()

    def ended(self, trial_id: str) -> None:
        """Free the slot of a trial that Tune has released."""
        self.running.pop(trial_id, None)
        self._reporting.pop(trial_id, None)

    def _places(self) -> int:
        """Return how many packs fit, but at least one, which waits if there is no node."""
        self._count()
        return max(1, self._fit or 0)

    def _count(self) -> None:
        """Every COUNT_SECONDS, while the cluster answers, count the packs that fit and repeat the request for nodes.

        Raises ClusterLostError if the cluster is gone, or if the local Ray has no live node left.
        """
        now = time.monotonic()
        if not self.answers() or now < self._count_at:
            return
        before, self._fit = self._fit, self.slots()
        self._count_at = now + COUNT_SECONDS
        if self.request is not None:
            self.request.ask(self.packing.workers())
        if self._fit == 0 and self.own:
            raise own_ray_lost("it has no live node")
        if self._fit == 0 and now >= self._remind_at:
            logger.warning("no live node of the Ray cluster holds a trial; waiting for a node to join")
            self._remind_at = now + REMIND_SECONDS
        elif before not in (None, self._fit):
            logger.warning("the cluster has changed: %d at a time, not %d", self._fit, before)

    def leave(self, cause: BaseException) -> None:
        """Note why Tune is left; kill the workers of a Ray that stays: Tune would wait."""
        self.left = True
        self.cause = None if isinstance(cause, StopTune) else cause
        for actor in self._actors().values() if self.shared else ():
            ray.kill(actor)

    def way_out(self) -> BaseException:
        """Return what leaves Tune."""
        return Left() if self.shared else StopTune()

    def lost_a_worker(self, error: BaseException) -> bool:
        """Report the trials whose workers Ray has killed to free memory, and return whether there are any.

        Tune knows RayActorError only, and gives up at this one. The trials of the other workers are handed out again.
        """
        asked = {trial_id: actor.get_current_ip_pid.remote() for trial_id, actor in self._actors().items()}
        ray.wait([*asked.values()], num_returns=len(asked), timeout=PROBE_SECONDS) if asked else None
        gone = {}
        for trial_id, answer in asked.items():
            try:
                ray.get(answer, timeout=0)
            except (RayActorError, GetTimeoutError):  # Tune has stopped it, or it trains
                continue
            except RayError as killed:
                gone[trial_id] = error_text(killed, first_line=True)
        if not gone:
            return False
        if self.shared:
            raise ClusterLostError(f"Ray has killed a worker: {error_text(error, first_line=True)}") from error
        for trial_id, pack in self.running.items():
            if trial_id in gone:
                self.died(trial_id, gone[trial_id])
            else:
                for key in pack.members:
                    self.search.pause(key)
        return True

    def _actors(self) -> dict[str, Any]:
        """Return the actors of the running packs that have one."""
        trials = [] if self.controller is None else self.controller.get_trials()
        begun = {trial.trial_id: trial.temporary_state.ray_actor for trial in trials if trial.trial_id in self.running}
        return {trial_id: actor for trial_id, actor in begun.items() if actor is not None} | self._reporting

    def release(self) -> None:
        """Drop the request for nodes."""
        if self.request is not None and self.answers():
            self.request.drop()
