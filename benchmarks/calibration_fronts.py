"""Rows on networks with unequal seeds, probabilities of fronts and picks, and the hypervolume."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import scipy
from calibration_rows import Row, average, generator, rate, repetitions

from ablate.results.front.answer import compare_with_best, unselected_best
from ablate.results.front.front_uncertainty import draw_means, volume
from ablate.results.front.picking import Bound, keeping_probabilities
from ablate.results.statistics.two_way import lay_out

SHARES = (0.0, 0.5, 0.9)  # of a seed's variance that all networks share
CORNER = np.array([0.4, 5.5])
SEED_SD, BINS = 0.015, 5
FRONT, ABOUT = "P(front)", "P(front) of draws about the means (not used)"
PICK, FRESH, ALONE = "ablate pick, mean", "ablate pick, fresh training", "ablate pick, t of the picked seeds (not used)"
LAW, EQUAL = "scattered about a law", "almost equal (a known limit above .4)"
CLOSE = "close to a law (a known limit)"
NOT_USED = (ABOUT, ALONE)
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
    """What a stated probability of being on the front, or of keeping a bound, is worth: true shares in bins of it."""
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
            asked = float(np.quantile(errors, random.uniform(0.1, 0.9)) + 0.02 * random.standard_normal())
            bound = Bound(metric="", op="<=", bound=asked, asked="")
            if (kept := np.flatnonzero(means <= asked)).size:
                pick = int(kept[0])
                order = [pick, *(i for i in range(networks) if i != pick)]
                fresh, mean = keeping_probabilities(losses[order], costs[order, None], bound, random) or (0.0, 0.0)
                alone = (asked - means[pick]) / (losses[pick].std(ddof=1) / math.sqrt(seeds))
                holds = bool(errors[pick] <= asked)
                said.setdefault((PICK, name), []).append((mean, holds))
                said.setdefault((ALONE, name), []).append((float(scipy.special.stdtr(seeds - 1, alone)), holds))
                new = bool(errors[pick] + SEED_SD * random.standard_normal() <= asked)
                said.setdefault((FRESH, name), []).append((fresh, new))
    for what in (FRONT, PICK, FRESH, ABOUT, ALONE):
        own = {name: pairs for (whose, name), pairs in said.items() if whose == what}
        for name in {FRONT: list(own), ABOUT: [LAW, EQUAL]}.get(what, ()):
            yield from bin_rows(what, name, own[name])
        if what != ABOUT:
            four = [pair for name, pairs in own.items() if name != CLOSE for pair in pairs]
            yield from bin_rows(what, "the four other worlds", four)


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
            slack = 0.35 if limited else 0.05
            target = (round(max(mean - slack, 0), 3), round(min(mean + slack, 1), 3))
            setting = f"said {k / BINS:g} to {(k + 1) / BINS:g}, mean {mean:.2f}; {name}"
            yield rate(f"{what}: true share", setting, true[inside], target)


def hypervolumes(share: float) -> Iterator[Row]:
    """Bias of the hypervolume and coverage of its interval."""
    for name, networks in itertools.product((LAW, EQUAL), (6, 20, 30)):
        for shared in SHARES:
            random, hits, bias, plain = generator("hypervolume", name, networks, str(shared)), [], [], []
            for repetition in range(repetitions(300, share)):
                costs, errors = worlds(random, networks)[name]
                losses = SEED_SD * seeded(random, errors / SEED_SD, (3, 5, 10)[repetition % 3], shared)
                true = volume(errors, costs[:, None], CORNER)
                drawn = [
                    volume(row, costs[:, None], CORNER) for row in draw_means(losses, costs[:, None], random, draws=200)
                ]
                low, high = np.quantile(drawn, (0.025, 0.975))
                hits.append(low <= true <= high)
                bias.append(np.mean(drawn) / true - 1)
                plain.append(volume(losses.mean(axis=1), costs[:, None], CORNER) / true - 1)
            setting = f"{networks} networks {name.partition(' (')[0]}, 3 to 10 seeds, {shared:g} of the variance shared"
            yield rate("hypervolume: coverage", setting, hits, (0.92, 1.0))
            yield average("hypervolume: bias as a share", setting, np.array(bias), (-0.01, 0.01))
            if shared == 0:
                yield average(
                    "hypervolume of the means (not used): bias as a share", setting, np.array(plain), (-0.01, 0.05)
                )
