"""Rules of early stopping that are measured beside `asha` and are not in it (benchmarks/front_kept.py)."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from ablate.core.trial import Decision
from ablate.tuning.stopping.schedulers import Asha, FrontAsha

Losses = tuple[float, ...]


class ByDominance:
    """The rule that `asha` had first: what no other trial at the rung dominates continues, whatever the noise."""

    def __init__(self, *, reduction: int, min_epochs: int) -> None:
        self.reduction, self.min_epochs = reduction, min_epochs
        self.rungs: dict[int, dict[int, Losses]] = defaultdict(dict)
        self._strict = Asha(reduction=reduction, min_epochs=min_epochs)

    def observe(self, *, number: int, epoch: int, losses: Losses, epochs: int) -> None:
        """Record a report."""
        self.decide(number=number, epoch=epoch, losses=losses, epochs=epochs)

    def decide(self, *, number: int, epoch: int, losses: Losses, epochs: int) -> Decision:
        """Stop a trial if the strict rule stops it and another one at its rung dominates it."""
        level = self.level(epoch)
        if level is not None:
            self.rungs[level].setdefault(number, losses)
        decision = self._strict.decide(number=number, epoch=epoch, losses=losses, epochs=epochs)
        spared = level is not None and not dominated(self.rungs[level], np.array(self.rungs[level][number]))
        return Decision.CONTINUE if spared else decision

    def level(self, epoch: int) -> int | None:
        """Return the last rung that an epoch has reached."""
        if epoch < self.min_epochs:
            return None
        level = self.min_epochs
        while level * self.reduction <= epoch:
            level *= self.reduction
        return level


class ByLastReport(FrontAsha):
    """The rule that `asha` had next: the forecast is the last report plus half of its change since half of the epochs.

    Its tolerance was 1.5.
    """

    def _measured(self, number: int, losses: Losses) -> Losses:
        reports = self._reports[number]
        epoch, last = reports[-1]
        old = next((values for past, values in reversed(reports) if past <= (epoch + 1) / 2 and past < epoch), last)
        changes = (now - then for now, then in zip(last, old, strict=True))
        return tuple(now + (d / 2 if math.isfinite(d) else 0) for now, d in zip(last, changes, strict=True))


def dominated(rivals: dict[int, Losses], point: NDArray[np.float64]) -> bool:
    """Return whether a rival is nowhere worse than `point` and somewhere better."""
    points = np.array(list(rivals.values()))
    return bool(((points <= point).all(axis=1) & (points < point).any(axis=1)).any())
