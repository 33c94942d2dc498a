"""Rows on verdicts after tuning: rows of a comparison that differ by nothing, each tuned on its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from calibration_rows import Row, generator, rate, repetitions
from scipy import stats

from ablate.results.comparison.verdicts import HARMFUL, SUPERIOR, adjust, claims_of, p_two_sided
from ablate.results.statistics.looks import ERROR

CURVES = (0, 5, 20, 100)  # standard deviations of a seed that a value loses over the range
DESIGNS = ((1, 8, 5), (1, 8, 10), (10, 8, 5), (10, 8, 10), (10, 16, 10), (30, 8, 10))  # arms, values, fresh seeds
EFFECT = 2.0  # of the arm whose verdict is the power, in standard deviations of a seed
HALF = math.sqrt(0.5)  # half of the variance of a seed is shared by the rows
RESAMPLED = 200
LIMIT = (0.06, 0.80)


@dataclass(frozen=True, kw_only=True)
class Method:
    """How many tuning seeds a row has, None for as many as fresh seeds, and what the verdict makes of them."""

    name: str
    tuning_seeds: int | None
    resampled: bool = False
    target: tuple[float, float]  # of false verdicts where the tuned value matters


METHODS = (
    Method(name="one tuning seed for all seeds (a known limit)", tuning_seeds=1, target=LIMIT),
    Method(name="3 tuning seeds, in turn for the seeds (a known limit)", tuning_seeds=3, target=(0.0, 0.20)),
    Method(name="3 tuning seeds, resampled (not used)", tuning_seeds=3, resampled=True, target=(0.0, 0.20)),
    Method(name="5 tuning seeds, resampled (not used)", tuning_seeds=5, resampled=True, target=(0.0, 0.08)),
    Method(name="a tuning seed for each seed", tuning_seeds=None, target=(0.0, ERROR)),
)


@dataclass(frozen=True, kw_only=True)
class World:
    """A comparison of a baseline and `arms` whose scores depend in the same way on the tuned value."""

    curve: np.ndarray
    arms: int
    seeds: int
    method: Method

    def study(self, random: np.random.Generator, effect: float) -> list[tuple[np.ndarray, float]]:
        """Return the differences [seeds] of each arm with their p-value; `effect` is what the first arm gains."""
        rows, draws = self.arms + 1, self.method.tuning_seeds or self.seeds
        noise = HALF * random.standard_normal((rows, len(self.curve), draws))
        tuning = self.curve[:, None] + noise + HALF * random.standard_normal(draws)
        if self.method.resampled:
            winners = tuning.mean(axis=2).argmax(axis=1)[:, None]
        else:
            winners = tuning.argmax(axis=1)[:, np.arange(self.seeds) % draws]
        fresh = self.curve[winners] + HALF * random.standard_normal((rows, self.seeds))
        fresh += HALF * random.standard_normal(self.seeds)
        fresh[1] += effect
        differences = fresh[1:] - fresh[:1]
        if not self.method.resampled:
            return [(own, p_two_sided(own)) for own in differences]
        luck = _luck(tuning, random)
        error = np.sqrt(differences.var(axis=1, ddof=1) / self.seeds + luck[1:] + luck[0])
        p = 2 * stats.t.sf(np.abs(differences.mean(axis=1) / error), self.seeds - 1)
        return list(zip(differences, p.tolist(), strict=True))

    def signed(self, random: np.random.Generator, effect: float = 0.0) -> list[bool]:
        """Return for each arm whether it is called superior or harmful."""
        found = self.study(random, effect)
        adjusted = adjust([p for _, p in found])
        return [
            p < ERROR and bool({SUPERIOR, HARMFUL} & set(claims_of(float(own.mean()), p, {})))
            for (own, _), p in zip(found, adjusted, strict=True)
        ]


def _luck(tuning: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the variance of the chosen value's mean score if the tuning seeds are resampled, [rows]."""
    draws = tuning.shape[2]
    chosen = random.integers(0, draws, (RESAMPLED, draws))
    winners = tuning[:, :, chosen].mean(axis=3).argmax(axis=1)
    return np.asarray(np.take_along_axis(tuning.mean(axis=2), winners, axis=1).var(axis=1))


def tuned_verdicts(share: float) -> Iterator[Row]:
    """Share of studies of equal tuned rows with a verdict superior or harmful, and the power beside it."""
    for method, (arms, values, seeds), curve in itertools.product(METHODS, DESIGNS, CURVES):
        world = World(curve=-curve * (np.linspace(0, 1, values) - 0.6) ** 2, arms=arms, seeds=seeds, method=method)
        setting = f"{arms} arm{'s' * (arms > 1)}, {values} values, {seeds} seeds, curve {curve}"
        random = generator("tuned", method.name, setting)
        n = repetitions(2_000 if method.target[1] <= ERROR else 500, share)  # others are not used, or a known limit
        hits = [any(world.signed(random)) for _ in range(n)]
        target = method.target if curve else (0.0, ERROR)  # without a curve any choice is as good
        yield rate(f"equal tuned rows, {method.name}: superior or harmful", setting, hits, target)
        if (arms, values) == (10, 8):
            hits = [world.signed(random, EFFECT)[0] for _ in range(n)]
            yield rate(f"tuned rows, {method.name}: power at {EFFECT:g} sd", setting, hits, (0.0, 1.0))
