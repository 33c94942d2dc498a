"""The schedulers: they decide which trials continue past a rung, as reports arrive (docs/search.md)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import moocore
import numpy as np
from numpy.typing import NDArray

from ablate.errors import RequestError, did_you_mean
from ablate.trial import Decision
from ablate.tuning.trial_progress import loss_matrix


@dataclass(frozen=True, kw_only=True)
class SchedulerRequest:
    """The arguments from which a scheduler is built, one per data set; `min_epochs` counts training epochs."""

    name: str
    objectives: int
    reduction: int
    min_epochs: int
    options: Mapping[str, Any] = field(default_factory=dict)


class Scheduler(Protocol):
    """Receives every report except a trial's last one, in commit order.

    `losses` are the objectives turned so that smaller is better (NaN where unknown). `epochs` is the trial's full
    length. The state of a scheduler must depend on the calls alone: after a restart `observe` is called for each stored
    report, in commit order.
    """

    def observe(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> None:
        """Record a report whose decision has been made."""

    def decide(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> Decision:
        """Record a report and return whether its trial continues."""


def build_none(request: SchedulerRequest) -> Scheduler:
    """Return the scheduler that never stops a trial."""
    if request.options:
        name = next(iter(request.options))
        raise RequestError(f"scheduler {request.name}: unknown option {name!r}; it takes none")
    return Unscheduled()


def build_asha(request: SchedulerRequest) -> Scheduler:
    """Return asynchronous successive halving, which ranks by fronts if there are several objectives."""
    unknown = sorted(set(request.options) - {"keep_front"})
    if unknown:
        hint = did_you_mean(unknown[0], ["keep_front"])
        raise RequestError(f"scheduler {request.name}: unknown option {unknown[0]!r}. {hint}")
    keep_front = request.options.get("keep_front", True)
    if not isinstance(keep_front, bool):
        raise RequestError(f"scheduler {request.name}: keep_front must be true or false, got {keep_front!r}")
    return Asha(reduction=request.reduction, min_epochs=request.min_epochs, keep_front=keep_front)


class Unscheduled:
    """Never stops a trial."""

    def observe(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> None:
        """Ignore the report."""

    def decide(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> Decision:
        """Return CONTINUE."""
        return Decision.CONTINUE


class Asha:
    """Asynchronous successive halving, by fronts if there are several objectives.

    Sources: Li et al. 2020 (arXiv 1810.05934); for fronts, Schmucker et al. 2021 (arXiv 2106.12639).

    Rungs are at min_epochs * reduction^k epochs, before a trial's end. Each rung measures a trial once, by its first
    report there. The trial continues if fewer than max(1, n // reduction) of the n trials that the rung has seen so
    far, itself included, are strictly better. Better means a smaller loss. With several objectives it means a lower
    non-dominated rank and, within a rank, a larger crowding distance (Deb et al. 2002), which is infinite for the best
    and the worst trial on each objective. With `keep_front`, a trial that no trial of the rung dominates always
    continues. A trial with a NaN is worse than all trials without one.
    """

    def __init__(self, *, reduction: int, min_epochs: int, keep_front: bool = True) -> None:
        self.reduction = reduction
        self.min_epochs = min_epochs
        self.keep_front = keep_front
        self._rungs: dict[int, dict[int, tuple[float, ...]]] = defaultdict(dict)

    def observe(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> None:
        """Add the report to its rung, if it reaches one."""
        self._enter(number, epoch, losses, epochs)

    def decide(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> Decision:
        """Add the report to its rung and compare it with the reports there."""
        rung = self._enter(number, epoch, losses, epochs)
        if rung is None:
            return Decision.CONTINUE
        rank, better = standing(rung, number)
        kept = better < max(1, len(rung) // self.reduction) or (self.keep_front and rank == 0)
        return Decision.CONTINUE if kept else Decision.STOP

    def _enter(
        self, number: int, epoch: int, losses: tuple[float, ...], epochs: int
    ) -> dict[int, tuple[float, ...]] | None:
        level = None
        rung = self.min_epochs
        while rung <= epoch and rung < epochs:
            level, rung = rung, rung * self.reduction
        if level is None or number in self._rungs[level]:
            return None
        self._rungs[level][number] = losses
        return self._rungs[level]


def standing(entries: Mapping[int, tuple[float, ...]], number: int) -> tuple[int, int]:
    """Return entry `number`'s non-dominated rank among `entries`, from 0, and how many are strictly better."""
    own = entries[number]
    sound = {n: values for n, values in entries.items() if not any(math.isnan(v) for v in values)}
    if number not in sound:
        return 1, len(sound)
    if len(own) == 1:
        better = sum(values < own for values in sound.values())
        return better, better
    points = loss_matrix(sound.values(), len(own))
    mine = list(sound).index(number)
    ranks = np.asarray(moocore.pareto_rank(points))
    peers = ranks == ranks[mine]
    distance = crowding_distance(points[peers])
    place = int(peers[:mine].sum())
    return int(ranks[mine]), int((ranks < ranks[mine]).sum() + (distance > distance[place]).sum())


def crowding_distance(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the crowding distance [n] of points [n, m] of one front (Deb et al. 2002, section III-B).

    It is infinite for the best and the worst point on each objective; equal points share one distance.
    """
    distinct, places = np.unique(points, axis=0, return_inverse=True)
    distance = np.zeros(len(distinct))
    for column in distinct.T:
        order = np.argsort(column, kind="stable")
        sorted_column = column[order]
        width = sorted_column[-1] - sorted_column[0]
        inside = (sorted_column[2:] - sorted_column[:-2]) / width if width > 0 else 0.0
        distance[order[1:-1]] += inside
        distance[(column == sorted_column[0]) | (column == sorted_column[-1])] = np.inf
    return np.asarray(distance[places.reshape(-1)])
