"""What the next trials of a search are expected to bring, from the trials that have ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import moocore
import numpy as np
from numpy.typing import NDArray

from ablate.base.randomness import stream
from ablate.core.objectives import loss, losses, may_stand
from ablate.tuning.state.trial_progress import TrialProgress, loss_matrix

if TYPE_CHECKING:
    from ablate.study import Study

DRAWS = 100
PATIENCE = 2  # times `within` trials end before the first estimate


def expected_gain(study: Study, dataset: str, ended: Sequence[TrialProgress], within: int) -> float:
    """Return how much the next `within` trials are expected to gain, infinity before it can be estimated.

    The larger of two numbers: what the last `within` trials gained, and what as many of all trials gained, drawn at
    random (the mean of DRAWS keyed draws). Were the trials independent draws, the second one would not be below the
    gain of further ones in the mean, because what a set adds to a larger set is no more (the hypervolume is
    submodular). The first one sees a sampler that still improves. `ended` are in order of number.

    The gain is a share of the hypervolume; with one objective, the change of its best value, in log10 if it has a log
    axis. An objective without a reference has the worst trial's value as such.
    """
    stands = may_stand(
        study.objectives, study.constraints, [t.state for t in ended], lambda name: [t.metric(name) for t in ended]
    )
    values = ([trial.metric(objective.metric) for objective in study.objectives] for trial in ended)
    points = loss_matrix((losses(study.objectives, row) for row in values), len(study.objectives))
    points[~np.array(stands, dtype=bool)] = math.nan
    references = [None if o.reference is None else loss(o, o.reference) for o in study.objectives]
    return gain_of_next(points, within, references, stream(study.seed, dataset, 0, "gain", len(ended)))


def gain_of_next(
    points: NDArray[np.float64], within: int, references: Sequence[float | None], random: np.random.Generator
) -> float:
    """Return the expected gain of the next `within` trials, from the losses [n, m] of those before (NaN: none)."""
    known = points[~np.isnan(points).any(axis=1)]
    if len(points) < PATIENCE * within or not len(known):
        return math.inf
    worst = known.max(axis=0)
    reference = np.array([w if given is None else given for given, w in zip(references, worst, strict=True)])
    left_out = [np.arange(len(points) - within, len(points))]
    left_out += [random.choice(len(points), within, replace=False) for _ in range(DRAWS)]
    gains = [_gain(points, out, reference) for out in left_out]
    return max(gains[0], float(np.mean(gains[1:])))


def _gain(points: NDArray[np.float64], out: NDArray[np.int64], reference: NDArray[np.float64]) -> float:
    """Return what the rows `out` of points [n, m] add to the others; a row of NaN adds nothing."""
    every, without = (_value(rows, reference) for rows in (points, np.delete(points, out, axis=0)))
    if points.shape[1] == 1:
        return every - without
    return (every - without) / every if every > 0 else math.inf


def _value(points: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Return the hypervolume of points [n, m], or minus the least loss with one objective."""
    known = points[~np.isnan(points).any(axis=1)]
    if points.shape[1] == 1:
        return -float(known.min()) if len(known) else -math.inf
    return float(moocore.hypervolume(known, ref=reference))
