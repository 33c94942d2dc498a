"""The default scheduler: it stops a trial that even a good end would leave behind what is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ablate.core.trial import Decision, TrialState
from ablate.tuning.state.curves import Array, Curves, Remaining

LOOKS = (8, 4, 2)  # parts of the training: a trial is looked at after one of each
TOLERANCE = 2.0  # standard deviations of a difference between two reports
OPEN, KEPT, BROKEN, FAILED = range(4)  # not complete; complete and on its bounds, or not; failed


@dataclass(kw_only=True)
class Look:
    """The trials that have been looked at after one part of their training; rows are in order of arrival."""

    curves: Curves
    _row_of: dict[int, int] = field(default_factory=dict)
    _unbent: dict[int, int] = field(default_factory=dict)  # the epoch of each trial without a third report
    _told: int = 0  # how many of the trials that have ended are known here
    _states: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, dtype=np.int8))
    _rows: Array = field(default_factory=lambda: np.empty((0, 6, 0)))  # level, end, bend; by column

    def add(self, number: int, epoch: int) -> bool:
        """Add a trial at its newest report; return False if it was added before."""
        if number in self._row_of:
            return False
        row = self._row_of[number] = len(self._row_of)
        level = self.curves.by_number[number].level(epoch)
        if row == len(self._states):
            more = max(row, 64)
            self._states = np.append(self._states, np.zeros(more, dtype=np.int8))
            self._rows = np.concatenate(
                [self._rows.reshape(-1, 6, level.shape[1]), np.empty((more, 6, level.shape[1]))]
            )
        self._states[row] = OPEN
        self._rows[row, :4], self._rows[row, 4:] = level, math.nan
        self._unbent[number] = epoch
        return True

    def hear(self, number: int) -> None:
        """Take in that a trial has made one more report: perhaps the third, which tells how its curve bends."""
        if number in self._unbent and (bend := self.curves.by_number[number].bend(self._unbent[number])) is not None:
            self._rows[self._row_of[number], 5] = bend
            del self._unbent[number]

    def may_win(self, number: int, epoch: int) -> bool:
        """Return whether nothing that is known would dominate a trial that ends as well as can be expected."""
        self._refresh()
        row, count, objectives = self._row_of[number], len(self._row_of), self.curves.objectives
        states, levels, ends = self._states[:count], self._rows[:count, :4], self._rows[:count, 4]
        finished = (states == KEPT) | (states == BROKEN)
        share = epoch / self.curves.by_number[number].length
        remaining = Remaining.after(share, levels[finished], ends[finished], objectives)
        optimistic = remaining.optimistic(levels[row]) - TOLERANCE * _deviations(self._rows[:count, 5])
        kept = ends[states == KEPT, :objectives]
        if np.isnan(optimistic[:objectives]).any() or (optimistic[objectives:] > 0).any():
            return not len(kept)
        forecasts = remaining.forecasts(levels)
        unfinished = (states == OPEN) & (forecasts[:, objectives:] <= 0).all(axis=1)
        unfinished[row] = False
        rivals, own = np.vstack([kept, forecasts[unfinished, :objectives]]), optimistic[:objectives]
        return not ((rivals <= own).all(axis=1) & (rivals < own).any(axis=1)).any()

    def _refresh(self) -> None:
        """Take in how trials have ended since."""
        for number in self.curves.ended[self._told :]:
            self.hear(number)
            row, curve = self._row_of.get(number), self.curves.by_number[number]
            if row is not None and curve.state is TrialState.COMPLETE:
                end = self._rows[row, 4] = curve.end()
                self._states[row] = KEPT if self.curves.keeps_bounds(end) else BROKEN
            elif row is not None and curve.state is TrialState.FAIL:
                self._states[row] = FAILED
        self._told = len(self.curves.ended)


def _deviations(bends: Array) -> Array:
    """Return the standard deviation [columns] of a difference between two trials with `bends` [n, columns].

    It is sqrt(2) times that of one report, which the median absolute deviation tells: a curvature that all trials
    have cancels. 0 where nothing is known.
    """
    known = bends[~np.isnan(bends).any(axis=1)]
    if not len(known):
        return np.zeros(bends.shape[1])
    found: Array = np.median(np.abs(known - np.median(known, axis=0)), axis=0) * math.sqrt(2) / 0.6745
    return found


class Forecast:
    """Looks at a trial after an eighth, a quarter and half of its epochs, and stops it if it can hardly win.

    The best end that a trial may still reach follows from its own last improvement and from how much the study's
    finished trials improved after the same look (`Remaining`), with two standard deviations of the noise. The trial is
    stopped if a rival would dominate even that, or if it would break a bound that a complete trial keeps. Rivals are
    complete trials and the forecasts of others at the same look, as far as they keep the bounds. The first report is
    never a look.
    """

    def __init__(self, curves: Curves) -> None:
        self._curves = curves
        self._looks = {part: Look(curves=curves) for part in LOOKS}

    def observe(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> None:
        """Add the report to its look, if it reaches one."""
        self._enter(number, epoch, epochs)

    def decide(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> Decision:
        """Add the report to its look and say whether the trial may still win."""
        look = self._enter(number, epoch, epochs)
        return Decision.CONTINUE if look is None or look.may_win(number, epoch) else Decision.STOP

    def _enter(self, number: int, epoch: int, epochs: int) -> Look | None:
        """Return the look that the report enters, or None if it enters none."""
        entered = None
        if epoch != self._curves.by_number[number].epochs[0] and epoch < epochs:
            part = next((part for part in reversed(LOOKS) if epoch >= math.ceil(epochs / part)), None)
            entered = self._looks[part] if part and self._looks[part].add(number, epoch) else None
        for look in self._looks.values():
            look.hear(number)
        return entered
