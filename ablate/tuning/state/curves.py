"""The curves of a data set's search trials, and where a trial that has not ended is expected to end."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ablate.core.objectives import constraint_text, losses, violation
from ablate.core.trial import TrialState
from ablate.tuning.state.trial_progress import ReportSummary, TrialProgress, metric_of

if TYPE_CHECKING:
    from ablate.study import Study

Array = NDArray[np.float64]
Read = Literal["best", "last", "best after the first"]
LARGEST = 1e300  # what an infinite loss counts as
HIGH, MIDDLE = 0.75, 0.5  # improvements of the size of the last doubling, expected of each doubling that is left
WEIGHT = 2  # finished trials that the expectation `MIDDLE` weighs as much as
GOOD, QUANTILE = 0.5, 0.75  # the share of finished trials that teach, and which of their improvements is the high one
LEAST = 1e-6  # of the largest gain; a smaller one is rounding


@dataclass(kw_only=True)
class Curve:
    """The reports of one trial of `length` epochs, and how it ended.

    A row has the loss of each objective and the violation of each constraint on a learned metric. `reads` says which
    report counts for each of these columns.
    """

    length: int
    reads: Sequence[Read]
    state: TrialState = TrialState.RUNNING
    epochs: array[int] = field(default_factory=lambda: array("l"))
    _values: array[float] = field(default_factory=lambda: array("d"))
    _levels: dict[int, Array] = field(default_factory=dict)

    def add(self, epoch: int, row: Sequence[float]) -> None:
        """Add a report; one of an epoch that was added before is ignored."""
        if not self.epochs or epoch > self.epochs[-1]:
            self.epochs.append(epoch)
            self._values.extend(row)

    @property
    def rows(self) -> Array:
        """The reports as [t, columns]; an infinity is LARGEST."""
        found = np.frombuffer(self._values, dtype=np.float64).reshape(-1, len(self.reads))
        return np.clip(found, -LARGEST, LARGEST)

    def end(self) -> Array:
        """Return by column the value of the report that counts, as far as the trial has come."""
        rows = self.rows
        best = [_reads_best(column, read) for column, read in zip(rows.T, self.reads, strict=True)]
        found: Array = np.where(best, self.level(self.epochs[-1])[0], rows[-1])
        return found

    def level(self, epoch: int) -> Array:
        """Return [4, columns] at an epoch: value, its last change, least value, its last gain.

        The value is the best so far. Of a column that reads the last report it is the best one since half of the
        epochs, or the highest one if the column rises. The change and the gain are how far the reports since half of
        the epochs are below those before. NaN where no report has a number.
        """
        if epoch not in self._levels:
            count = int(np.searchsorted(np.asarray(self.epochs), epoch, side="right"))
            half = max(int(np.searchsorted(np.asarray(self.epochs), epoch / 2, side="right")), 1)
            columns = [_level(column, half, read) for column, read in zip(self.rows[:count].T, self.reads, strict=True)]
            self._levels[epoch] = np.array(columns).T
        return self._levels[epoch]

    def bend(self, epoch: int) -> Array | None:
        """Return by column how far the second of three reports up to `epoch` is off the line through the others.

        If there are fewer up to `epoch` it is of the first three, and None before they exist. It is scaled so that its
        variance is that of one report if the true values are on a line.
        """
        count = max(int(np.searchsorted(np.asarray(self.epochs), epoch, side="right")), 3)
        if len(self.epochs) < count:
            return None
        first, second, third = self.epochs[count - 3 : count]
        weight = (second - first) / (third - first)
        before, own, after = self.rows[count - 3 : count]
        found: Array = (own - before - weight * (after - before)) / math.sqrt(1 + weight**2 + (1 - weight) ** 2)
        return found


def _reads_best(column: Array, read: Read) -> bool:
    return read == "best" or (read != "last" and not (column[0] <= column).all())


def _level(column: Array, half: int, read: Read) -> tuple[float, float, float, float]:
    known = ~np.isnan(column)
    if not known.any():
        return math.nan, math.nan, math.nan, math.nan
    old, new = column[:half][known[:half]], column[half:][known[half:]]
    old, new = (old if len(old) else new), (new if len(new) else old)
    least = float(new.min())
    best = min(least, float(old.min()))
    if _reads_best(column, read):
        gain = float(old.min()) - best
        return best, gain, best, gain
    gain = max(float(old.min()) - least, 0.0)
    if float(column[known][-1]) > float(old[-1]):
        return float(new.max()), min(float(old.max() - new.max()), 0.0), least, gain
    return least, gain, least, gain


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """What is still to come after a look at trials, in units of their last change (`middle`) and gain (`high`)."""

    middle: Array
    high: Array

    @staticmethod
    def after(share: float, levels: Array, ends: Array, objectives: int) -> Remaining:
        """Learn it from the levels [n, 4, columns] and the ends [n, columns] of finished trials.

        `share` is the part of the training that was seen. Before any trial has finished, each doubling that is left is
        expected to bring MIDDLE of the last one. Of an objective the better half of the trials teaches; of a constraint
        all of them. For a constraint and for a single objective `high` is at least HIGH: slow learners may be best.
        """
        octaves, columns = math.log2(1 / share), levels.shape[2]
        several = (np.arange(columns) < objectives) & (objectives > 1)
        middle = np.full(columns, MIDDLE * octaves)
        high = np.where(several, MIDDLE, HIGH) * octaves
        for place, end in enumerate(ends.T):
            known = np.flatnonzero(~np.isnan(end) & ~np.isnan(levels[:, 0, place]))
            most = math.ceil(GOOD * len(known)) if place < objectives else len(known)
            good = known[end[known].argsort(kind="stable")[:most]]
            if count := len(moved := _ratios(levels[good, :2, place], end[good])):
                middle[place] = (WEIGHT * middle[place] + count * np.median(moved)) / (WEIGHT + count)
            if count := len(gained := _ratios(levels[good, 2:, place], end[good])):
                told, own = np.quantile(gained, QUANTILE), high[place]
                high[place] = (WEIGHT * own + count * told) / (WEIGHT + count) if several[place] else max(own, told)
        return Remaining(middle=middle, high=np.maximum(middle, high))

    def forecasts(self, levels: Array) -> Array:
        """Return the expected ends [n, columns] of trials with `levels` [n, 4, columns]."""
        found: Array = levels[:, 0] - self.middle * levels[:, 1]
        return found

    def optimistic(self, level: Array) -> Array:
        """Return the best end that a trial with `level` [4, columns] is taken to be able to reach, without noise."""
        found: Array = level[2] - self.high * level[3]
        return found


def _ratios(levels: Array, ends: Array) -> Array:
    """Return the rest of the way of trials with levels and changes [n, 2], in units of the change."""
    change = levels[:, 1]
    moves = np.abs(change) > LEAST * np.abs(change).max(initial=0.0)
    found: Array = (levels[moves, 0] - ends[moves]) / change[moves]
    return found


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The curves of the search trials of one data set by number.

    `ended` lists trials in the order of their ends, `outgrown` has those that ended for want of memory.
    """

    study: Study
    by_number: dict[int, Curve] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    outgrown: set[int] = field(default_factory=set)

    @cached_property
    def learned(self) -> tuple[int, ...]:
        """The places of the objectives that trials tell."""
        return tuple(i for i, each in enumerate(self.study.objectives) if each.metric not in self.study.counted)

    @cached_property
    def _bounded(self) -> list[Any]:
        return [each for each in self.study.constraints if each.metric not in self.study.counted]

    @property
    def objectives(self) -> int:
        """The number of objectives, the first columns of a row; the others are violations."""
        return len(self.study.objectives)

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """Which report counts, by column.

        A search judges objectives by the best report. A metric that grows with training, as the number of leaves or the
        time does, is best at its first report. Where several objectives are learned, such a curve counts with its last
        report instead. Constraints are kept at the end of training.
        """
        best: Read = "best" if len(self.learned) < 2 else "best after the first"
        last: list[Read] = ["last"] * len(self._bounded)
        kinds: list[Read] = ["last" if each.metric == "wall_seconds" else best for each in self.study.objectives]
        return (*kinds, *last)

    def add(self, trial: TrialProgress, step: ReportSummary) -> None:
        """Add a report of a search trial."""
        row = self.row(lambda name: metric_of(name, means=step.means, size=trial.size, wall_seconds=step.wall_seconds))
        self._of(trial).add(step.epoch, row)

    def observe(self, trial: TrialProgress, metrics: Mapping[str, float]) -> None:
        """Add a trial of another study, of which the last report is known. It is no rival of this study's trials."""
        curve = self._of(trial)
        curve.add(trial.epoch, self.row(lambda name: metrics.get(name, math.nan)))
        curve.state = trial.state

    def row(self, metric: Callable[[str], float]) -> tuple[float, ...]:
        """Return the losses and violations of a report whose metrics the function `metric` gives by name."""
        values = losses(self.study.objectives, [metric(each.metric) for each in self.study.objectives])
        return (*values, *(violation(each, metric(each.metric)) for each in self._bounded))

    def end(self, trial: TrialProgress) -> None:
        """Record how a trial ended that has reported."""
        curve = self.by_number.get(trial.number)
        if curve is not None and not curve.state.finished:
            curve.state = trial.state
            self.ended.append(trial.number)

    def _of(self, trial: TrialProgress) -> Curve:
        made = self.by_number.get(trial.number)
        if made is None:
            made = self.by_number[trial.number] = Curve(length=trial.config.epochs, reads=self.reads)
        return made

    @cached_property
    def bounds(self) -> tuple[str, ...]:
        """The constraints on learned metrics, as a study file writes them."""
        return tuple(map(constraint_text, self._bounded))

    def row_of(self, number: int) -> list[float]:
        """Return by column what counts of a trial up to now: NaN without a report, and then bounds are broken by 1."""
        curve = self.by_number.get(number)
        if curve is None:
            return [math.nan] * self.objectives + [1.0] * len(self._bounded)
        return [float(value) for value in curve.end()]

    def keeps_bounds(self, row: Array) -> bool:
        """Return whether every objective of a row is a number and every constraint is kept."""
        return bool(not np.isnan(row[: self.objectives]).any() and (row[self.objectives :] <= 0).all())

    def outlooks(self, stopped: Sequence[int], finished: Sequence[int]) -> Array:
        """Return the expected ends [n, columns] of stopped trials, from what the finished ones teach."""
        ends = np.array([self.by_number[number].end() for number in finished]).reshape(-1, len(self.reads))
        found = np.empty((len(stopped), len(self.reads)))
        remaining: dict[float, Remaining] = {}
        for place, number in enumerate(stopped):
            curve = self.by_number[number]
            share = min(curve.epochs[-1] / curve.length, 1.0)
            if share not in remaining:
                others = (self.by_number[each] for each in finished)
                seen = [each.level(max(round(share * each.length), each.epochs[0])) for each in others]
                levels = np.array(seen).reshape(-1, 4, len(self.reads))
                remaining[share] = Remaining.after(share, levels, ends, self.objectives)
            found[place] = remaining[share].forecasts(curve.level(curve.epochs[-1])[None])[0]
        return found
