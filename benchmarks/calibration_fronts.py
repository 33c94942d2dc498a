"""Rows on networks with unequal seeds and probabilities of fronts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from calibration_rows import Row, average, generator, rate, repetitions

from ablate.results.front.answer import compare_with_best, unselected_best
from ablate.results.front.front_uncertainty import draw_means
from ablate.results.statistics.two_way import lay_out

SHARES = (0.0, 0.5, 0.9)  # of a seed's variance that all networks share
SEED_SD, BINS = 0.015, 5
FRONT, ABOUT = "P(front)", "P(front) of draws about the means (not used)"
LAW, EQUAL = "scattered about a law", "almost equal (a known limit above .4)"
CLOSE = "close to a law (a known limit)"
CHOSEN, TRIED = "a front that a search chose (said too low)", 60  # networks tried on one seed
NOT_USED = (ABOUT,)
FEW = 100  # statements below which a bin has no row
Values = np.ndarray


def seeded(random: np.random.Generator, truth: Values, seeds: int, share: float) -> Values:
    """Return values [networks, seeds] of seed variance 1, of which all networks share a part."""
    own, common = random.standard_normal((len(truth), seeds)), random.standard_normal(seeds)
    return truth[:, None] + math.sqrt(share) * common + math.sqrt(1 - share) * own


def unequal_seeds(share: float) -> Iterator[Row]:
    """The answer of a search where equal networks have unequal seeds: given or random."""
    for shared in SHARES:
        few = np.array([3, 20, 20, 20])
        given = "4 equal networks, 3, 20, 20 and 20 seeds"
        yield from answer_rows(given, shared, share, lambda v, _, few=few: without(v, few), 4)
        yield from answer_rows("6 equal networks, 3 to 20 seeds at random", shared, share, at_random, 6)


def answer_rows(name: str, shared: float, share: float, cut: object, networks: int) -> Iterator[Row]:
    """Yield the rows of pages of equal networks whose values `cut` leaves out."""
    random, worse, covered, bias = generator("unequal", name, str(shared)), [], [], []
    for _ in range(repetitions(1_000, share)):
        values = cut(seeded(random, np.zeros(networks), 20, shared), random)  # type: ignore[operator]
        worse.append(any(row.verdict == "worse" for row in compare_with_best(values) or ()))
        number = unselected_best(values)
        covered.append(number.low <= 0 <= number.high)
        bias.append(number.mean * math.sqrt(10))
    setting = f"{name}, {shared:g} of the variance shared"
    yield rate("unequal seeds: a difference that does not exist", setting, worse, (0.0, 0.05))
    yield rate("unequal seeds, number of the best network: coverage", setting, covered, (0.94, 0.98))
    yield average("unequal seeds, number of the best network: bias, unit sd/√10", setting, np.array(bias), (-0.2, 0.2))


def without(values: Values, counts: Values) -> Values:
    """Return `values` with NaN after the first `counts` [networks] seeds."""
    kept = np.arange(values.shape[1]) < counts[:, None]
    return np.where(kept, values, np.nan)[:, kept.any(axis=0)]


def at_random(values: Values, random: np.random.Generator) -> Values:
    """Return `values` with 3 to all seeds of each network."""
    return without(values, random.integers(3, values.shape[1] + 1, len(values)))


def worlds(random: np.random.Generator, networks: int) -> dict[str, tuple[Values, Values]]:
    """Return costs (log10) and true errors of networks of each world."""
    costs = np.sort(random.uniform(2.5, 5, networks))
    law, noise = 0.02 + 2 * 10 ** (-0.5 * costs), random.standard_normal(networks)
    return {
        LAW: (costs, law + 0.01 * noise),
        "scattered, no law": (costs, 0.1 + 0.01 * noise),
        EQUAL: (costs, 0.1 + 1e-7 * noise),
        "well separated": (costs, 0.1 + 0.1 * random.permutation(networks)),
        CLOSE: (costs, law + 0.003 * noise),
    }


def front_chances(share: float) -> Iterator[Row]:
    """What a stated probability of being on the front is worth: true shares in bins of it."""
    said: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    sizes = itertools.product((6, 20), (3, 5, 10), (0.0, 0.7), range(repetitions(60, share)))
    random = generator("front chances")
    for networks, seeds, shared, _ in sizes:
        for name, (costs, errors) in worlds(random, networks).items():
            losses = SEED_SD * seeded(random, errors / SEED_SD, seeds, shared)
            means, on = losses.mean(axis=1), lowest(errors[None])[0].tolist()
            about = means + math.sqrt(lay_out(losses).residual / seeds) * random.standard_normal((400, networks))
            for what, drawn in ((FRONT, draw_means(losses, costs[:, None], random, draws=400)), (ABOUT, about)):
                said.setdefault((what, name), []).extend(zip(lowest(drawn).mean(axis=0).tolist(), on, strict=True))
    for what in (FRONT, ABOUT):
        own = {name: pairs for (whose, name), pairs in said.items() if whose == what}
        for name in list(own) if what == FRONT else [LAW, EQUAL]:
            yield from bin_rows(what, name, own[name])
        if what != ABOUT:
            four = [pair for name, pairs in own.items() if name != CLOSE for pair in pairs]
            yield from bin_rows(what, "the four other worlds", four)


def chosen_fronts(share: float) -> Iterator[Row]:
    """The same for a front that a search chose: of TRIED networks the best by one seed, then trained on fresh ones."""
    random, said = generator("chosen fronts"), list[tuple[float, bool]]()
    for seeds, shared, _ in itertools.product((3, 5, 10), (0.0, 0.7), range(repetitions(200, share))):
        costs, errors = worlds(random, TRIED)[LAW]
        tried = lowest(SEED_SD * seeded(random, errors / SEED_SD, 1, shared).T)[0]
        costs, errors = costs[tried], errors[tried]
        losses = SEED_SD * seeded(random, errors / SEED_SD, seeds, shared)
        drawn = draw_means(losses, costs[:, None], random, draws=400)
        said += zip(lowest(drawn).mean(axis=0).tolist(), lowest(errors[None])[0].tolist(), strict=True)
    yield from bin_rows(FRONT, CHOSEN, said)


def lowest(losses: Values) -> Values:
    """Return which networks [draws, networks] have a smaller loss than every cheaper one, the cheapest first."""
    before = np.minimum.accumulate(losses, axis=1)[:, :-1]
    return np.column_stack([np.ones(len(losses), dtype=bool), losses[:, 1:] < before])


def bin_rows(what: str, name: str, pairs: list[tuple[float, bool]]) -> Iterator[Row]:
    """Yield the true share of each bin of stated probabilities, the certain ones apart."""
    chances, true = np.array([p for p, _ in pairs]), np.array([hit for _, hit in pairs])
    for k in range(BINS):
        inside = (chances > k / BINS) & (chances <= (k + 1) / BINS) & (chances > 0.01) & (chances < 0.99)
        if inside.sum() >= FEW:
            mean = float(chances[inside].mean())
            limited = name == CLOSE or (name == EQUAL and k > 1) or what in NOT_USED
            slack = 0.45 if what in NOT_USED else 0.35 if limited else 0.05
            above = 0.15 if name == CHOSEN else slack
            target = (round(max(mean - slack, 0), 3), round(min(mean + above, 1), 3))
            setting = f"said {k / BINS:g} to {(k + 1) / BINS:g}, mean {mean:.2f}; {name}"
            yield rate(f"{what}: true share", setting, true[inside], target)
