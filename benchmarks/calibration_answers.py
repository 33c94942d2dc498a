"""Rows on the answer of a search, verdicts, fronts and effects, by the functions that the reports call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import scipy
from calibration_rows import Row, average, generator, rate, repetitions

from ablate.results.comparison.verdicts import HARMFUL, NON_INFERIOR, SUPERIOR, adjust, claims_of, margin_p, p_two_sided
from ablate.results.front.answer import compare_with_best, unselected_best
from ablate.results.statistics.intervals import metric_interval, smallest_effect, t_interval
from ablate.results.statistics.looks import ERROR, holm, share_of

SEEDS, NETWORKS, ACCURACY = 5, 6, "test_accuracy"
EQUAL = np.zeros(NETWORKS)
LAW = -4 * np.exp(-np.arange(NETWORKS) * 2 / 3)  # quality that saturates with size, in standard deviations of a seed


def pages(name: str, truth: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Yield the values [networks, seeds] of n confirmations; half of a seed's variance is shared by the networks."""
    random = generator(name)
    for _ in range(n):
        shared = random.standard_normal(SEEDS)
        yield truth[:, None] + shared + random.standard_normal((len(truth), SEEDS))


def answers(share: float) -> Iterator[Row]:
    """Differences that do not exist, and non-inferiority at the margin, in the answer of a search."""
    n, setting = repetitions(3_000, share), f"{NETWORKS} equal networks, {SEEDS} seeds"
    hits = []
    for values in pages("equal networks", EQUAL, n):
        found = compare_with_best(values) or ()
        hits.append(any(row.verdict == "worse" for row in found))
    yield rate("answer of a search: a difference that does not exist", setting, hits, (0.0, 0.05))
    for gap, others in ((1.0, NETWORKS - 1), (1.0, 1)):
        truth, hits = np.array([0.0] + [-gap] * others), []
        for values in pages(f"margin {others}", truth, n):
            found = compare_with_best(values, margin=gap) or ()
            hits.append(any(row.verdict == "non-inferior" for row in found[1:]))
        what = "answer of a search: non-inferior at a true loss of one margin"
        yield rate(what, f"{others + 1} networks, {SEEDS} seeds", hits, (0.0, 0.05))


def best_networks(share: float) -> Iterator[Row]:
    """Interval and bias of the number that the answer gives for the best network, and of the plain one."""
    n, error = repetitions(3_000, share), math.sqrt(2 / SEEDS)
    for name, truth in (("equal networks", EQUAL), ("networks under a law", LAW)):
        fair, plain, bias = [], [], []
        for values in pages(name, truth, n):
            best = int(values.mean(axis=1).argmax())
            for hits, found in ((fair, unselected_best(values)), (plain, t_interval(values[best].tolist()))):
                hits.append(found.low <= truth[best] <= found.high)
            bias.append((unselected_best(values).mean - truth[best]) / error)
        setting = f"{NETWORKS} {name}, {SEEDS} seeds"
        yield rate("number of the best network: coverage", setting, fair, (0.94, 0.98))
        yield rate("its own mean, chosen by it (not used): coverage", setting, plain, (0.80, 0.94))
        yield average("number of the best network: bias in standard errors", setting, np.array(bias), (-0.1, 0.1))


def unlike_networks(share: float) -> Iterator[Row]:
    """Coverage of the best network's number where its seeds are neither normal nor alike, and near 1."""
    laws: dict[str, tuple[float, str, Callable[[np.ndarray], np.ndarray]]] = {
        "one network varies 5 times": (0.0, "", lambda z: z * np.where(np.arange(len(z)) == 0, 5, 1)[:, None]),
        "heavy tails (t3)": (0.0, "", lambda z: t3(z)),
        "skewed (lognormal, log sd 0.5)": (0.0, "", lambda z: math.exp(0.125) - np.exp(0.5 * z)),
        "accuracy .93, seeds' sd .01": (0.93, ACCURACY, lambda z: np.minimum(0.93 + 0.01 * z, 1)),
        "accuracy .99, seeds' sd .003": (0.99, ACCURACY, lambda z: np.minimum(0.99 + 0.003 * z, 1)),
        "accuracy .99, lognormal errors, log sd 0.5": (
            1 - 0.01 * math.exp(0.125), ACCURACY, lambda z: 1 - 0.01 * np.exp(0.5 * z),
        ),
    }  # fmt: skip
    for (name, (truth, metric, law)), (networks, seeds) in itertools.product(laws.items(), ((6, 3), (20, 10))):
        random = generator("unlike networks", name, networks, seeds)
        found = (
            unselected_best(law(random.standard_normal((networks, seeds))), metric, samples=10_000 if metric else None)
            for _ in range(repetitions(1_500, share))
        )
        hits = [number.low <= truth <= number.high for number in found]
        yield rate(
            "number of the best network: coverage", f"{networks} networks, {seeds} seeds, {name}", hits, (0.93, 1)
        )


def t3(normal: np.ndarray) -> np.ndarray:
    """Return values of Student's t with three degrees of freedom at the quantiles of normal ones."""
    return np.asarray(scipy.special.stdtrit(3, scipy.special.ndtr(normal)))


def near_one(share: float) -> Iterator[Row]:
    """Coverage of the mean by the reports' interval for an accuracy near 1: lognormal errors."""
    for seeds in (3, 5, 10, 20):
        for spread in (0.1, 0.5, 1.0):
            shape = (repetitions(10_000, share), seeds)
            accuracy = 1 - 0.01 * np.exp(spread * generator("near one", seeds, str(spread)).standard_normal(shape))
            found = [metric_interval(ACCURACY, values) for values in accuracy.tolist()]
            mean = 1 - 0.01 * math.exp(spread**2 / 2)
            hits = [interval.low <= mean <= interval.high for interval in found]
            setting = f"{seeds} seeds, log sd {spread:g}"
            yield rate("interval of lognormal errors: coverage of the mean", setting, hits, (0.94, 0.98))


def verdict_rules(share: float) -> Iterator[Row]:
    """Verdicts on equal arms by the rules of the reports."""
    random, hits = generator("verdicts"), []
    for _ in range(repetitions(2_000, share)):
        differences = random.standard_normal((10, SEEDS)) - random.standard_normal(SEEDS)
        adjusted = adjust([p_two_sided(row) for row in differences])
        named = [claims_of(float(row.mean()), p, {}) for row, p in zip(differences, adjusted, strict=True)]
        hits.append(any({SUPERIOR, HARMFUL} & set(claims) for claims in named))
    yield rate("verdict superior or harmful on an equal arm", "10 equal arms, one baseline, 5 seeds", hits, (0.0, 0.05))


def looks(share: float) -> Iterator[Row]:
    """Verdicts on equal arms whose seeds are extended until one is superior or harmful, and the power of each look."""
    for seeds, arms in itertools.product(((3, 5, 10), (5, 10, 20), tuple(range(3, 11))), (1, 10)):
        random, paid, unpaid = generator("looks", arms, *seeds), [], []
        for _ in range(repetitions(1_000, share)):
            differences = random.standard_normal((arms, seeds[-1])) - random.standard_normal(seeds[-1]) * (arms > 1)
            p = [[p_two_sided(row[:count]) for row in differences] for count in seeds]
            paid.append(any(min(adjust(each, look=look)) < ERROR for look, each in enumerate(p, start=1)))
            unpaid.append(any(min(holm(each)) < ERROR for each in p))
        setting = f"{arms} equal arm{'s' * (arms > 1)}, looks at {', '.join(map(str, seeds))} seeds"
        yield rate("extended until a verdict appears, each look at 5% (not used)", setting, unpaid, (0.1, 0.2))
        yield rate("extended until a verdict appears", setting, paid, (0.0, 0.05))
    for look, effect in ((1, smallest_effect(10)), (2, smallest_effect(10, level=1 - ERROR * share_of(2)))):
        samples = generator("power of a look", look).standard_normal((repetitions(5_000, share), 10)) + effect
        hits = [adjust([p_two_sided(row)], look=look)[0] < ERROR for row in samples]
        yield rate("power of a look at its effect", f"look {look}, 10 seeds, {effect:.2f} sd(d)", hits, (0.79, 0.81))


def verdict_families(share: float) -> Iterator[Row]:
    """Power of the verdict at the effect that is said to be detectable, and non-inferiority over a family."""
    for arms, seeds in itertools.product((5, 14), (5, 10)):
        random, level = generator("detectable", arms, seeds), 1 - ERROR * share_of(1) / arms
        hits = []
        for _ in range(repetitions(2_000, share)):
            differences = random.standard_normal((arms, seeds))
            differences[0] += smallest_effect(seeds, level=level)
            hits.append(adjust([p_two_sided(row) for row in differences])[0] < ERROR)
        yield rate(
            "verdict at the smallest detectable effect: power", f"{arms} arms, {seeds} seeds", hits, (0.79, 0.83)
        )
    for familywise, target in ((False, (0.2, 0.3)), (True, (0.0, ERROR))):
        random, hits = generator("family of margins"), []
        for _ in range(repetitions(2_000, share)):
            arms = random.standard_normal((10, SEEDS)) - random.standard_normal(SEEDS) - 1.0
            p = [margin_p(row, 1.0)[NON_INFERIOR] for row in arms]
            hits.append(min(adjust(p, family=familywise)) < ERROR)
        setting = f"10 arms at the margin, {SEEDS} seeds, {'familywise' if familywise else 'each row by itself'}"
        yield rate("non-inferiority claimed of any arm at the margin", setting, hits, target)


def redundant_pairs(share: float) -> Iterator[Row]:
    """What leaving one part out, and the interaction, say of f = .60 + .20 where one of two parts is there."""
    truth = np.array([0.80, 0.80, 0.80, 0.60])  # complete, without a, without b, bare
    values = truth + 0.01 * generator("redundant").standard_normal((repetitions(20_000, share), len(truth)))
    whole, first, second, bare = values.T
    setting = "two parts of which one is enough, seed sd 0.01"
    yield average("redundant pair: gain of a part that is left out", setting, whole - first, (0.0, 0.0))
    yield average("redundant pair: interaction", setting, whole - first - second + bare, (-0.20, -0.20))
