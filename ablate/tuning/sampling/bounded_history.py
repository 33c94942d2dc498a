"""Limits the trials that a sampler models, so that a suggestion costs the same however long the search is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from ablate.core.config import LARGEST as LONGEST  # of a trial, in epochs
from ablate.core.objectives import best_first

MOST = 500  # finished trials that a sampler models
BEST, EXTREME, NEWEST = 0.3, 0.02, 0.2  # shares of these: the best, the best on each objective, the last by number
RUNNING = 0.5  # unfinished trials that it models, as a share of these: the last by number
COLUMNS = 4  # number, class, order within the class, key of the sample; the losses follow
FEASIBLE, PRUNED, VIOLATING, OPEN, IGNORED = range(5)  # TPE's order of classes; an open trial is unfinished


@dataclass(kw_only=True)
class BoundedHistory:
    """Chooses which trials a sampler sees; up to `most` finished ones and half as many unfinished ones it sees all.

    Of more unfinished ones it sees the newest. Of more finished ones it sees `most`: the best, the best on each
    objective, the newest, and a sample of the others. The best are in the order in which TPE prefers them: complete
    trials by non-dominated rank, then pruned ones, then those that violate a constraint. Of a rank that does not fit,
    trials are taken at even distances along the first objective. `keys` gives each trial, in the order of their
    numbers, a key; the sample has those with the smallest. So the choice follows from the trials alone, and changes
    little between suggestions. `finished` and `running` count all trials that end in an answer and all unfinished ones.
    """

    objectives: int
    keys: np.random.Generator
    most: int = MOST
    _rows: NDArray[np.float64] = field(init=False)
    _row_of: dict[int, int] = field(default_factory=dict)
    finished: int = 0
    running: int = 0

    def __post_init__(self) -> None:
        self._rows = np.empty((0, COLUMNS + self.objectives))

    @property
    def good(self) -> int | None:
        """How many trials TPE takes as good ones if there are several objectives; None while the sampler sees all.

        Optuna takes a tenth of those that it sees. Of a bounded history that would be too few to cover the front, so a
        tenth of all trials is taken, as long as the best ones are shown.
        """
        return None if self.finished <= self.most else min(math.ceil(0.1 * self.finished), int(BEST * self.most))

    def put(self, trial: FrozenTrial) -> None:
        """Add a trial, or replace the one with its number; trials are added in increasing order of number."""
        row = self._row_of.get(trial.number)
        if row is None:
            row = self._row_of[trial.number] = len(self._row_of)
            if row == len(self._rows):
                more = np.empty((max(row, 64), self._rows.shape[1]))
                more[:, 3] = self.keys.random(len(more))
                self._rows = np.concatenate([self._rows, more])
        else:
            self.finished -= self._rows[row, 1] < OPEN
            self.running -= self._rows[row, 1] == OPEN
        kind, score, losses = _standing(trial, self.objectives)
        self._rows[row, :3] = trial.number, kind, score
        self._rows[row, COLUMNS:] = losses
        self.finished += kind < OPEN
        self.running += kind == OPEN

    def chosen(self) -> list[int] | None:
        """Return the numbers of the trials that the sampler sees, in rising order; None if it sees all."""
        most_running = int(RUNNING * self.most)
        if self.finished <= self.most and self.running <= most_running:
            return None
        rows = self._rows[: len(self._row_of)]
        picked = self._of_finished(rows)
        picked[np.flatnonzero(rows[:, 1] == OPEN)[max(self.running - most_running, 0) :]] = True
        return [int(number) for number in rows[picked, 0]]

    def _of_finished(self, rows: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which finished trials the sampler sees."""
        kinds = rows[:, 1]
        finished = np.flatnonzero(kinds < OPEN)
        picked = kinds < OPEN
        if len(finished) <= self.most:
            return picked
        picked[:] = False
        picked[self._best(rows, finished)] = True
        feasible = np.flatnonzero(kinds == FEASIBLE)
        for losses in rows[feasible, COLUMNS:].T:
            picked[feasible[_least(losses, int(EXTREME * self.most))]] = True
        picked[finished[len(finished) - int(NEWEST * self.most) :]] = True
        rest = finished[~picked[finished]]
        picked[rest[_least(rows[rest, 3], max(self.most - int(picked.sum()), 0))]] = True
        return picked

    def _best(self, rows: NDArray[np.float64], finished: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the places of the best finished trials in TPE's order; equal ones in order of number."""
        count = int(BEST * self.most)
        if int((rows[finished, 1] == FEASIBLE).sum()) > count:
            finished = finished[rows[finished, 1] == FEASIBLE]
        feasible = rows[finished, 1] == FEASIBLE
        order, ranks = best_first(rows[finished, 1], rows[finished, 2], rows[finished][:, COLUMNS:])
        if self.objectives == 1:
            return finished[order[:count]]
        cut = ranks[order[count]]
        last = np.flatnonzero(feasible & (ranks == cut))  # the rank that does not fit as a whole
        if not feasible[order[count]] or len(last) < 2:
            return finished[order[:count]]
        better = finished[feasible & (ranks < cut)]
        along = last[np.argsort(rows[finished[last], COLUMNS], kind="stable")]
        even = np.linspace(0, len(along) - 1, count - len(better)).round().astype(int)
        return np.concatenate([better, finished[along[even]]])


def _least(values: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Return the places of the `count` least values in rising order; of equal ones the first."""
    if count < len(values):
        near = np.flatnonzero(values <= np.partition(values, count)[count])
        return near[np.argsort(values[near], kind="stable")[:count]]
    return np.argsort(values, kind="stable")


def _standing(trial: FrozenTrial, objectives: int) -> tuple[int, float, list[float]]:
    """Return a trial's class, its order within the class and its losses, as TPE reads them."""
    unknown = [np.inf] * objectives
    if not trial.state.is_finished():
        return OPEN, 0.0, unknown
    if trial.state is TrialState.FAIL:
        return IGNORED, 0.0, unknown
    violation = sum(v for v in trial.constraints.values() if v > 0)
    if violation > 0:
        return VIOLATING, violation, unknown
    if trial.state is TrialState.COMPLETE:
        return FEASIBLE, 0.0, list(trial.values)
    if not trial.intermediate_values:
        return PRUNED, LONGEST + 1.0, unknown
    step, value = max(trial.intermediate_values.items())
    return PRUNED, LONGEST - float(step), [value if not np.isnan(value) else np.inf] * objectives
