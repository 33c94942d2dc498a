"""Rules of early stopping that are measured beside `asha` and are not in it (benchmarks/front_kept.py)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ablate.trial import Decision
from ablate.tuning.schedulers import Asha, FrontAsha, Scheduler, SchedulerRequest
from ablate.tuning.trial_progress import loss_matrix


class ByDominance(Asha):
    """The rule that `asha` had first: what no other trial at the rung dominates continues, whatever the noise."""

    def _continues(self, level: int, number: int) -> bool:
        rung = self._rungs[level]
        own = np.array(rung[number])
        points = loss_matrix(rung.values(), len(own))
        return super()._continues(level, number) or not ((points <= own).all(axis=1) & (points < own).any(axis=1)).any()


class InStrata(FrontAsha):
    """Rivals are of similar size: only those at most `width` of the sizes' range smaller can dominate a trial."""

    width = 0.3

    def _may_be_on_front(self, level: int, number: int) -> bool:
        rung = self._rungs[level]
        sizes = [losses[1] for losses in rung.values()]
        lowest = rung[number][1] - self.width * (max(sizes) - min(sizes))
        self._rungs[level] = {n: losses for n, losses in rung.items() if losses[1] >= lowest}
        try:
            return super()._may_be_on_front(level, number)
        finally:
            self._rungs[level] = rung


class SecondChance(FrontAsha):
    """Stops a trial that would continue with twice the tolerance only if it fails again, at 1.7 times the epoch."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._again: dict[int, int] = {}  # by trial: the epoch of its second look

    def decide(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> Decision:
        """Decide as FrontAsha, and look again at trials that were close."""
        decision = super().decide(number=number, epoch=epoch, losses=losses, epochs=epochs)
        self._rungs[-epoch][number] = self._rungs.get(epoch, {}).get(number, losses)  # what a second look compares
        if decision is Decision.STOP:
            level = max(rung for rung in self._rungs if 0 < rung <= epoch)
            self.tolerance *= 2
            close = self._may_be_on_front(level, number)
            self.tolerance /= 2
            if close and (again := math.ceil(1.7 * level)) < epochs:
                self._again[number] = again
                return Decision.CONTINUE
        elif self._again.get(number) == epoch:
            self._bends[-epoch] = self._bends[max(rung for rung in self._bends if 0 < rung <= epoch)]
            return Decision.CONTINUE if self._continues(-epoch, number) else Decision.STOP
        return decision


def build_by_dominance(request: SchedulerRequest) -> Scheduler:
    """Return ByDominance, as a study file names it: `rung_variants:build_by_dominance`."""
    return ByDominance(reduction=request.reduction, min_epochs=request.min_epochs)
