"""How much each searched setting decides a metric: shares of variance of a surrogate over the whole space.

A random forest is fitted to all trials of the search. Of its predictions over draws of the space, not over the trials
that the sampler chose, the first-order and total shares of variance are Sobol's (Jansen's estimators, Computer Physics
Communications 1999). A permutation test says which settings the trials tell from chance. What is right how often:
docs/measured/calibration.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.base.randomness import stream
from ablate.study.space import Choices, FloatRange, IntRange, Range, Space

LEAST = 60  # trials; below, the setting that matters is not first in 80% of simulated studies
LEVEL = 0.01  # of the test of each setting: above it the setting is not told from chance
PERMUTATIONS = 99
DRAWS, TREES = 512, 128  # of the shares
TEST_DRAWS, TEST_TREES = 64, 12  # of the test, whose statistic and null are computed alike
TREE_TRIALS = 512  # that each tree of the test draws at most: its time does not grow with the search
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Importance:
    """The importance of one setting: its `first`-order and `total` share of the variance over the space, 0 to 1.

    `p` is that of the permutation test; `active` counts the trials in which the setting was searched.
    """

    parameter: str
    first: float
    total: float
    p: float
    active: int

    @property
    def is_told(self) -> bool:
        """Whether the setting's influence is told from chance."""
        return self.p <= LEVEL


@dataclass(frozen=True, kw_only=True)
class Importances:
    """The importances for one objective from `trials`, the largest total first; none of too few trials."""

    metric: str
    rows: tuple[Importance, ...]
    trials: int

    @property
    def order(self) -> tuple[str, ...]:
        """The settings, the most important first."""
        return tuple(row.parameter for row in self.rows)


def importances(
    metric: str,
    losses: Sequence[float],
    settings: Sequence[Mapping[str, Any]],
    space: Space,
    *,
    study_seed: int,
    dataset: str,
) -> Importances:
    """Return the importance of each setting for a metric's losses [n], in any unit.

    `settings` [n] are the active settings of each trial. Trials whose loss is not finite do not enter. A setting with
    one value has no importance and is not listed.
    """
    kept = [place for place, value in enumerate(losses) if math.isfinite(value)]
    values, chosen = np.array([losses[place] for place in kept]), [settings[place] for place in kept]
    names = [name for name, spec in space.ranges.items() if spec.count() != 1 and any(name in own for own in chosen)]
    if len(values) < LEAST or not names or values.min() == values.max():
        return Importances(metric=metric, trials=len(kept), rows=())
    rng = stream(study_seed, dataset, 0, "importance", metric)
    table = np.array([_encoded(space, own) for own in chosen])
    first, total, variance = _shares(table, values, _blocks(space, names, rng, DRAWS), TREES, len(kept))
    blocks = _blocks(space, names, rng, TEST_DRAWS)
    drawn, reached = min(len(kept), TREE_TRIALS), np.ones(len(names))
    true = _shares(table, values, blocks, TEST_TREES, drawn)[1]
    for _ in range(PERMUTATIONS):
        reached += _shares(table, rng.permutation(values), blocks, TEST_TREES, drawn)[1] >= true
    p = reached / (PERMUTATIONS + 1)
    rows = [
        Importance(
            parameter=name,
            first=float(min(max(first[i] / variance, 0.0), 1.0)) if variance else 0.0,
            total=float(min(total[i] / variance, 1.0)) if variance else 0.0,
            p=float(p[i]),
            active=sum(name in own for own in chosen),
        )
        for i, name in enumerate(names)
    ]
    ordered = tuple(sorted(rows, key=lambda row: (-row.total, row.parameter)))
    return Importances(metric=metric, trials=len(kept), rows=ordered)


def _shares(table: Values, values: Values, blocks: Values, trees: int, drawn: int) -> tuple[Values, Values, float]:
    """Return the first-order and total variances [settings] of a forest over `blocks`, and the whole variance.

    Each of its `trees` learns from `drawn` trials, with replacement.
    """
    from sklearn.ensemble import RandomForestRegressor

    forest: Any = RandomForestRegressor  # scikit-learn has no types
    forest = forest(trees, min_samples_leaf=2, random_state=0, max_samples=drawn).fit(table, values)
    one, two, *swapped = forest.predict(blocks.reshape(-1, blocks.shape[2])).reshape(len(blocks), -1)
    variance = float(np.var(np.concatenate([one, two])))
    first = np.array([variance - ((two - each) ** 2).mean() / 2 for each in swapped])
    return first, np.array([((one - each) ** 2).mean() / 2 for each in swapped]), variance


def _blocks(space: Space, names: Sequence[str], rng: np.random.Generator, draws: int) -> Values:
    """Return the columns of two draws of the space and of the first with one setting of the second, [2 + n, draws]."""
    one, two = (
        [{name: _value(spec, u) for (name, spec), u in zip(space.ranges.items(), row, strict=True)} for row in units]
        for units in rng.random((2, draws, len(space.ranges)))
    )
    swapped = ([{**a, name: b[name]} for a, b in zip(one, two, strict=True)] for name in names)
    encoded = (np.array([_encoded(space, space.active(v)) for v in block]) for block in chain((one, two), swapped))
    return np.array([*encoded])  # lists of all blocks at once would take 150 MB for 40 settings


def _value(spec: Range, unit: float) -> Any:
    if isinstance(spec, Choices):
        return spec.choices[int(unit * len(spec.choices))]
    assert isinstance(spec, FloatRange | IntRange)
    low, high = spec.bounds
    count = spec.count()
    if count is not None and not spec.log:
        return low + (high - low) * int(unit * count) / max(count - 1, 1)
    return low * (high / low) ** unit if spec.log else low + unit * (high - low)


def _encoded(space: Space, values: Mapping[str, Any]) -> list[float]:
    """Return settings as columns: a number on its range's scale, one column for each choice, -1 if not searched."""
    found: list[float] = []
    for name, spec in space.ranges.items():
        if isinstance(spec, Choices):
            place = spec.index(values[name]) if name in values else -1
            found += [float(place == each) for each in range(len(spec.choices))]
        else:
            assert isinstance(spec, FloatRange | IntRange)
            found.append(_place(spec, values[name]) if name in values else -1.0)
    return found


def _place(spec: FloatRange | IntRange, value: float) -> float:
    """Return where a value lies in its range, 0 to 1."""
    low, high, at = (math.log(x) if spec.log else float(x) for x in (*spec.bounds, value))
    return (at - low) / (high - low) if high > low else 0.0
