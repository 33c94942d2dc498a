"""The schedulers: they decide which trials continue past a rung, as reports arrive (docs/searching.md)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import moocore
import numpy as np
from numpy.typing import NDArray

from ablate.base.errors import RequestError, did_you_mean
from ablate.core.trial import Decision
from ablate.tuning.state.trial_progress import loss_matrix

TOLERANCE = 2.0  # standard deviations of a difference between two reports


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
    known = ["keep_front", "tolerance"]
    unknown = sorted(set(request.options) - set(known))
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise RequestError(f"scheduler {request.name}: unknown option {unknown[0]!r}. {hint}")
    keep_front = request.options.get("keep_front", True)
    if not isinstance(keep_front, bool):
        raise RequestError(f"scheduler {request.name}: keep_front must be true or false, got {keep_front!r}")
    tolerance = request.options.get("tolerance", TOLERANCE)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise RequestError(f"scheduler {request.name}: tolerance must be a number from 0, got {tolerance!r}")
    if "tolerance" in request.options and (request.objectives == 1 or not keep_front):
        raise RequestError(f"scheduler {request.name}: tolerance needs several objectives and keep_front: true")
    if request.objectives == 1 or not keep_front:
        return Asha(reduction=request.reduction, min_epochs=request.min_epochs)
    return FrontAsha(reduction=request.reduction, min_epochs=request.min_epochs, tolerance=tolerance)


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
        kept = level is None or self._continues(level, self._measured(number, losses))
        return Decision.CONTINUE if kept else Decision.STOP

    def _enter(self, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> int | None:
        """Return the epoch of the rung that the report enters, or None if it enters none."""
        level = None
        rung = self.min_epochs
        while rung <= epoch and rung < epochs:
            level, rung = rung, rung * self.reduction
        if level is None or not self._rungs[level].add(number, self._measured(number, losses)):
            return None
        return level

    def _measured(self, number: int, losses: tuple[float, ...]) -> tuple[float, ...]:
        """Return what a rung keeps of a trial's newest report."""
        return losses

    def _continues(self, level: int, values: tuple[float, ...]) -> bool:
        """Return whether the trial that has just entered a rung with `values` continues."""
        rung = self._rungs[level]
        return rung.count_better(values) < max(1, len(rung) // self.reduction)


class Rung:
    """The losses that trials had when they reached a rung; those of a trial with a NaN are worse than all others."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self._points = np.empty((0, 0))  # of the trials without a NaN in the first `_sound` rows
        self._sound = 0

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def sound(self) -> NDArray[np.float64]:
        """The losses of the trials without a NaN, [n, objectives]."""
        return self._points[: self._sound]

    def add(self, number: int, losses: tuple[float, ...]) -> bool:
        """Add a trial; return False if it was measured before."""
        if number in self._numbers:
            return False
        self._numbers.add(number)
        if not any(math.isnan(value) for value in losses):
            if self._sound == len(self._points):
                more = np.empty((max(self._sound, 64), len(losses)))
                self._points = np.concatenate([self._points, more]) if self._sound else more
            self._points[self._sound] = losses
            self._sound += 1
        return True

    def count_better(self, losses: tuple[float, ...]) -> int:
        """Return how many trials are strictly better than the one that was added last, whose losses these are."""
        if any(math.isnan(value) for value in losses):
            return self._sound
        if len(losses) == 1:
            return int((self.sound[:, 0] < losses[0]).sum())
        points = loss_matrix(self.sound, len(losses))
        ranks = np.asarray(moocore.pareto_rank(points))
        peers = ranks == ranks[-1]
        distance = crowding_distance(points[peers])
        return int((ranks < ranks[-1]).sum() + (distance > distance[-1]).sum())


class FrontAsha(Asha):
    """Asynchronous successive halving that continues what may be on the front.

    It compares forecasts (see `forecast`). A trial also continues while no other one at its rung dominates its
    forecast after that is improved, on each objective, by `tolerance` standard deviations of a difference between two
    trials. The deviation is measured at the rung, by how differently its trials' reports `bend`: noise and curves of
    different shape both count, what all curves have in common does not. A trial with fewer than three reports at a rung
    counts there from its third report on.
    """

    def __init__(self, *, reduction: int, min_epochs: int, tolerance: float = TOLERANCE) -> None:
        super().__init__(reduction=reduction, min_epochs=min_epochs)
        self.tolerance = tolerance
        self._reports: dict[int, list[tuple[int, tuple[float, ...]]]] = defaultdict(list)
        self._bends: dict[int, dict[int, tuple[float, ...]]] = defaultdict(dict)
        self._unmeasured: dict[int, list[int]] = defaultdict(list)  # by trial: its rungs without a bend

    def _enter(self, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> int | None:
        reports = self._reports[number]
        reports.append((epoch, losses))
        level = super()._enter(number, epoch, losses, epochs)
        if level is not None:
            self._unmeasured[number].append(level)
        if len(reports) > 2 and number in self._unmeasured:
            measured = bend(reports[-3:])
            for rung in self._unmeasured.pop(number):
                self._bends[rung][number] = measured
        return level

    def _measured(self, number: int, losses: tuple[float, ...]) -> tuple[float, ...]:
        return forecast(self._reports[number])

    def _continues(self, level: int, values: tuple[float, ...]) -> bool:
        return super()._continues(level, values) or self._may_be_on_front(level, values)

    def _may_be_on_front(self, level: int, own: tuple[float, ...]) -> bool:
        if any(map(math.isnan, own)):
            return False
        points = loss_matrix(self._rungs[level].sound, len(own))
        improved = loss_matrix([own], len(own))[0] - self.tolerance * self._deviation(level, len(own))
        return not ((points <= improved).all(axis=1) & (points < improved).any(axis=1)).any()

    def _deviation(self, level: int, width: int) -> NDArray[np.float64]:
        """Return the standard deviation [width] of a difference between two trials at a rung, 0 where unknown.

        It is sqrt(2) times that of one trial's bend, estimated by the median absolute deviation over 0.6745.
        """
        bends = loss_matrix(self._bends[level].values(), width)
        bends = bends[~np.isnan(bends).any(axis=1)]
        if not len(bends):
            return np.zeros(width)
        return np.asarray(np.median(np.abs(bends - np.median(bends, axis=0)), axis=0) * math.sqrt(2) / 0.6745)


Reports = Sequence[tuple[int, tuple[float, ...]]]  # the epoch and losses of a trial's reports, in order


def forecast(reports: Reports) -> tuple[float, ...]:
    """Return the best losses since half of the epochs, plus a quarter of their change from the best ones before.

    The best of several reports is less noisy than the last one, and a trial that still improves quickly is not compared
    by what it has reached alone. NaN if the last loss is NaN. Costs do not change.
    """
    half = (reports[-1][0] + 1) / 2
    newer = [losses for epoch, losses in reports if epoch >= half]
    older = [losses for epoch, losses in reports[:-1] if epoch <= half] or newer
    return tuple(map(_forecast, zip(*newer, strict=True), zip(*older, strict=True)))


def _forecast(newer: tuple[float, ...], older: tuple[float, ...]) -> float:
    if math.isnan(newer[-1]):
        return math.nan
    best = min(value for value in newer if not math.isnan(value))
    change = best - min((value for value in older if not math.isnan(value)), default=best)
    return best + change / 4 if math.isfinite(change) else best


def bend(reports: Reports) -> tuple[float, ...]:
    """Return how far each loss of the second of three reports is above the line through the other two.

    It is scaled so that its variance is that of one report if the true losses are on a line. Of a cost it is exactly 0.
    """
    (first, a), (second, b), (third, c) = reports
    weight = (second - first) / (third - first)
    scale = math.sqrt(1 + weight**2 + (1 - weight) ** 2)
    return tuple((y - x - weight * (z - x)) / scale for x, y, z in zip(a, b, c, strict=True))


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
