"""The schedulers: they decide which trials continue past a rung, as reports arrive (docs/searching.md)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import moocore
import numpy as np
from numpy.typing import NDArray

from ablate.base.errors import RequestError
from ablate.core.trial import Decision
from ablate.tuning.state.curves import Curves
from ablate.tuning.state.trial_progress import loss_matrix
from ablate.tuning.stopping.forecast import Forecast


@dataclass(frozen=True, kw_only=True)
class SchedulerRequest:
    """The arguments from which a scheduler is built, one per data set; `min_epochs` counts training epochs.

    `curves` has the reports of all search trials up to now, the one that is decided about included.
    """

    name: str
    curves: Curves
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
    """Return one that never stops a trial."""
    _take_no_options(request)
    return Unscheduled()


def build_forecast(request: SchedulerRequest) -> Scheduler:
    """Return the default scheduler."""
    _take_no_options(request)
    return Forecast(request.curves)


def build_asha(request: SchedulerRequest) -> Scheduler:
    """Return asynchronous successive halving."""
    _take_no_options(request)
    return Asha(reduction=request.reduction, min_epochs=request.min_epochs)


def _take_no_options(request: SchedulerRequest) -> None:
    if request.options:
        name = next(iter(request.options))
        raise RequestError(f"scheduler {request.name}: unknown option {name!r}; it takes none")


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
    and the worst trial on each objective. A trial with a NaN is worse than all trials without one.
    """

    def __init__(self, *, reduction: int, min_epochs: int) -> None:
        self.reduction = reduction
        self.min_epochs = min_epochs
        self._rungs: dict[int, Rung] = defaultdict(Rung)

    def observe(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> None:
        """Add the report to its rung, if it reaches one."""
        self._enter(number, epoch, losses, epochs)

    def decide(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> Decision:
        """Add the report to its rung and compare it with the reports there."""
        level = self._enter(number, epoch, losses, epochs)
        if level is None:
            return Decision.CONTINUE
        rung = self._rungs[level]
        kept = rung.count_better(losses) < max(1, len(rung) // self.reduction)
        return Decision.CONTINUE if kept else Decision.STOP

    def _enter(self, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> int | None:
        """Return the epoch of the rung that the report enters, or None if it enters none."""
        level = None
        rung = self.min_epochs
        while rung <= epoch and rung < epochs:
            level, rung = rung, rung * self.reduction
        return None if level is None or not self._rungs[level].add(number, losses) else level


class Rung:
    """The losses that trials had when they reached a rung."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self._sound: list[tuple[float, ...]] = []  # of the trials without a NaN

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int, losses: tuple[float, ...]) -> bool:
        """Add a trial; return False if it was measured before."""
        if number in self._numbers:
            return False
        self._numbers.add(number)
        if not any(math.isnan(value) for value in losses):
            self._sound.append(losses)
        return True

    def count_better(self, losses: tuple[float, ...]) -> int:
        """Return how many trials are strictly better than the one that was added last, whose losses these are."""
        if any(math.isnan(value) for value in losses):
            return len(self._sound)
        if len(losses) == 1:
            return sum(other < losses for other in self._sound)
        points = loss_matrix(self._sound, len(losses))
        ranks = np.asarray(moocore.pareto_rank(points))
        peers = ranks == ranks[-1]
        distance = crowding_distance(points[peers])
        return int((ranks < ranks[-1]).sum() + (distance > distance[-1]).sum())


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
