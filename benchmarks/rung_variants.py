"""Rules of early stopping that are measured beside `asha` and are not in it (benchmarks/front_kept.py)."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from ablate.core.trial import Decision
from ablate.tuning.schedulers import TOLERANCE, Asha, bend, forecast

Losses = tuple[float, ...]


class ByDominance:
    """The rule that `asha` had first: what no other trial at the rung dominates continues, whatever the noise."""

    def __init__(self, *, reduction: int, min_epochs: int) -> None:
        self.reduction, self.min_epochs = reduction, min_epochs
        self.rungs: dict[int, dict[int, Losses]] = defaultdict(dict)
        self._strict = Asha(reduction=reduction, min_epochs=min_epochs)
        self._reports: dict[int, list[tuple[int, Losses]]] = defaultdict(list)

    def observe(self, *, number: int, epoch: int, losses: Losses, epochs: int) -> None:
        """Record a report."""
        self.decide(number=number, epoch=epoch, losses=losses, epochs=epochs)

    def decide(self, *, number: int, epoch: int, losses: Losses, epochs: int) -> Decision:
        """Stop a trial if the strict rule stops it and `spares` does not hold."""
        self._reports[number].append((epoch, losses))
        values, level = self.values(number), self.level(epoch)
        if level is not None:
            self.rungs[level].setdefault(number, values)
        decision = self._strict.decide(number=number, epoch=epoch, losses=values, epochs=epochs)
        spared = decision is Decision.STOP and level is not None and self.spares(level, number)
        return Decision.CONTINUE if spared else decision

    def level(self, epoch: int) -> int | None:
        """Return the last rung that an epoch has reached."""
        if epoch < self.min_epochs:
            return None
        level = self.min_epochs
        while level * self.reduction <= epoch:
            level *= self.reduction
        return level

    def values(self, number: int) -> Losses:
        """Return what is compared of a trial's newest report."""
        return self._reports[number][-1][1]

    def spares(self, level: int, number: int) -> bool:
        """Return whether a trial that the strict rule stops continues."""
        return not dominated(self.rungs[level], np.array(self.rungs[level][number]))


class Tolerant(ByDominance):
    """FrontAsha from its parts, for the variants to change."""

    tolerance = TOLERANCE

    def values(self, number: int) -> Losses:
        """Return the forecast."""
        return forecast(self._reports[number])

    def spares(self, level: int, number: int) -> bool:
        """Return whether no rival dominates the trial after it is improved by the tolerance."""
        improved = np.array(self.rungs[level][number]) - self.tolerance * self._deviation(level)
        return not dominated(self.rivals(level, number), improved)

    def rivals(self, level: int, number: int) -> dict[int, Losses]:
        """Return the trials that can dominate a trial at a rung."""
        return self.rungs[level]

    def _deviation(self, level: int) -> NDArray[np.float64]:
        bends = []
        for number in self.rungs[level]:
            reports = self._reports[number]
            entered = next(place for place, (epoch, _) in enumerate(reports) if self.level(epoch) == level)
            last = max(entered, 2)
            if last < len(reports):
                bends.append(bend(reports[last - 2 : last + 1]))
        spread = np.array(bends) if bends else np.zeros((1, 2))
        return np.asarray(np.median(np.abs(spread - np.median(spread, axis=0)), axis=0) * math.sqrt(2) / 0.6745)


class InStrata(Tolerant):
    """Rivals are of similar size: only those at most `width` of the sizes' range smaller can dominate a trial."""

    width = 0.3

    def rivals(self, level: int, number: int) -> dict[int, Losses]:
        """Return the trials that are not much smaller."""
        rung = self.rungs[level]
        sizes = [losses[1] for losses in rung.values()]
        lowest = rung[number][1] - self.width * (max(sizes) - min(sizes))
        return {n: losses for n, losses in rung.items() if losses[1] >= lowest}


class SecondChance(Tolerant):
    """Stops a trial that would continue with twice the tolerance only if it fails again, at 1.7 times the epoch."""

    def __init__(self, *, reduction: int, min_epochs: int) -> None:
        super().__init__(reduction=reduction, min_epochs=min_epochs)
        self._again: dict[int, int] = {}  # by trial: the epoch of its second look
        self._looks: dict[int, dict[int, Losses]] = defaultdict(dict)  # by epoch: losses as reported

    def decide(self, *, number: int, epoch: int, losses: Losses, epochs: int) -> Decision:
        """Decide as FrontAsha, and look again at trials that were close."""
        decision = super().decide(number=number, epoch=epoch, losses=losses, epochs=epochs)
        level, looks = self.level(epoch), self._looks[epoch]
        looks[number] = losses
        if level is None or (decision is Decision.CONTINUE and self._again.get(number) != epoch):
            return decision
        if decision is Decision.CONTINUE:
            improved = np.array(losses) - self.tolerance * self._deviation(level)
            return Decision.STOP if dominated(looks, improved) else Decision.CONTINUE
        improved = np.array(self.rungs[level][number]) - 2 * self.tolerance * self._deviation(level)
        again = math.ceil(1.7 * level)
        if again >= epochs or dominated(self.rungs[level], improved):
            return Decision.STOP
        self._again[number] = again
        return Decision.CONTINUE


def dominated(rivals: dict[int, Losses], point: NDArray[np.float64]) -> bool:
    """Return whether a rival is nowhere worse than `point` and somewhere better."""
    points = np.array(list(rivals.values()))
    return bool(((points <= point).all(axis=1) & (points < point).any(axis=1)).any())
