"""Rows on the curve of error against size: what its intervals cover, when it warns, and the test of equal exponents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy
from calibration_rows import Row, generator, rate, repetitions

from ablate.results.front.curve import Curve, Network, ends, fit_networks, slope_difference
from ablate.results.front.fitted import Fit

Law = Callable[[np.ndarray], np.ndarray]
SMALLEST, FIRST = 1000.0, 0.15  # the smallest size and the error there
REPETITIONS = 400
FIT = Fit(dataset="simulated", metric="test_accuracy", size="params")
COVERED, BEYOND_FLOOR = (0.92, 1.0), (0.88, 1.0)  # in general; beyond the sizes of a law with a floor


@dataclass(frozen=True, kw_only=True)
class World:
    """A simulated study. A floor is a share of the error at the largest size; seeds and scatter are in log error."""

    sizes: int = 8
    decades: float = 1.5
    exponent: float = 0.3
    floor: float = 0.0
    scatter: float = 0.05
    seeds: int = 5
    noise: float = 0.08
    samples: int | None = 1000  # None: errors without sampling noise, as on one fixed set of samples
    law: Law | None = None

    @property
    def grid(self) -> np.ndarray:
        """The sizes."""
        return SMALLEST * np.logspace(0, self.decades, self.sizes)

    def error(self, size: np.ndarray | float) -> np.ndarray:
        """Return the law's error at a size; its mean exponent over the sizes is `exponent`."""
        if self.law is not None:
            return np.asarray(self.law(np.asarray(size)))
        largest, span = SMALLEST * 10**self.decades, math.log(10) * self.decades
        last = FIRST * math.exp(-self.exponent * span)
        inner = math.log((math.exp(self.exponent * span) - self.floor) / (1 - self.floor)) / span
        return np.asarray(last * (self.floor + (1 - self.floor) * (np.asarray(size) / largest) ** -inner))

    def measured(self, random: np.random.Generator, size: np.ndarray, true: np.ndarray) -> list[Network]:
        """Return networks of these true errors, measured.

        What makes a sample hard is shared by seeds to three quarters, and of that four fifths by networks.
        """
        k, n, m = len(size), self.seeds, self.samples
        sd = self.noise * random.uniform(0.5, 1.5, (k, 1))
        each = np.minimum(true[:, None] * np.exp(sd * random.standard_normal((k, n)) - sd**2 / 2), 0.95)
        if m is None:
            return [Network(size=s, errors=e) for s, e in zip(size, each, strict=True)]
        common, own = random.standard_normal((1, 1, m)), random.standard_normal((k, 1, m))
        hard = math.sqrt(0.6) * common + math.sqrt(0.15) * own + math.sqrt(0.25) * random.standard_normal((k, n, m))
        wrong = (hard < scipy.special.ndtri(each)[:, :, None]).astype(np.float64)
        return [
            Network(size=s, errors=e.mean(axis=1), samples=e.mean(axis=0)) for s, e in zip(size, wrong, strict=True)
        ]

    def drawn(self, random: np.random.Generator) -> list[Network]:
        """Return one study."""
        true = self.error(self.grid) * np.exp(self.scatter * random.standard_normal(self.sizes))
        return self.measured(random, self.grid, true)


WORLDS: dict[str, World] = {
    "8 sizes over 1.5 decades, 5 seeds, 1,000 samples, scatter 5%": World(),
    "scatter 0": World(scatter=0),
    "scatter 15%": World(scatter=0.15),
    "4 sizes": World(sizes=4),
    "4 sizes over .5 decades": World(sizes=4, decades=0.5),
    "4 sizes, scatter 15%": World(sizes=4, scatter=0.15),
    "6 sizes": World(sizes=6),
    "12 sizes": World(sizes=12),
    "15 sizes over 3 decades": World(sizes=15, decades=3.0),
    "8 sizes over .5 decades": World(decades=0.5),
    "3 seeds": World(seeds=3),
    "3 seeds of sd 20%": World(seeds=3, noise=0.2),
    "10 seeds": World(seeds=10),
    "300 samples": World(samples=300),
    "300 samples, scatter 15%": World(samples=300, scatter=0.15),
    "10,000 samples": World(samples=10_000),
    "these samples only": World(samples=None),
    "floor, half of the error at the largest": World(floor=0.5),
    "floor of a half, 4 sizes": World(floor=0.5, sizes=4),
    "floor of a half, scatter 15%": World(floor=0.5, scatter=0.15),
    "floor of .8": World(floor=0.8),
    "floor of .8, 12 sizes over 3 decades": World(floor=0.8, sizes=12, decades=3.0),
    "1 seed": World(seeds=1),
    "300 samples, an error of .4% at the largest size": World(samples=300, decades=2.5, exponent=0.63),
}


def covers(draws: np.ndarray, true: float | np.ndarray) -> bool:
    """Return whether the 95% interval of draws has the true value."""
    _, low, high = ends(draws)
    return bool(low <= float(true) <= high)


def hits(world: World, curve: Curve, random: np.random.Generator) -> dict[str, bool]:
    """Return what the intervals of one curve cover."""
    low, middle, high = world.grid[0], math.sqrt(world.grid[0] * world.grid[-1]), world.grid[-1]
    network = world.error(middle) * math.exp(world.scatter * random.standard_normal())
    return {
        "exponent": covers(
            curve.slope(low, high), math.log(world.error(low) / world.error(high)) / math.log(high / low)
        ),
        "law at the smallest size": covers(curve.error(low), world.error(low)),
        "law at the middle": covers(curve.error(middle), world.error(middle)),
        "law at the largest size": covers(curve.error(high), world.error(high)),
        "law at three times the largest": covers(curve.error(3 * high), world.error(3 * high)),
        "true error of a new network": covers(curve.error(middle, network=True), network),
        "size for an error inside": covers(curve.size_for(float(world.error(middle))), middle),
        "size for an error at twice the largest": covers(curve.size_for(float(world.error(2 * high))), 2 * high),
    }


def curve_coverage(share: float) -> Iterator[Row]:
    """Coverage of the intervals of laws that are power laws, with or without a floor."""
    for name, world in WORLDS.items():
        found = []
        for repetition in range(repetitions(250 if world.samples == 10_000 else REPETITIONS, share)):
            random = generator("curves", name, repetition)
            found.append(hits(world, fit_networks(world.drawn(random), world.samples), random))
        for what in found[0]:
            beyond = what.endswith(("times the largest", "twice the largest"))
            target = BEYOND_FLOOR if world.floor and beyond else COVERED
            yield rate(f"curve, 95%: coverage of the {what}", name, [each[what] for each in found], target)


def selected_fronts(share: float) -> Iterator[Row]:
    """Coverage where a search chose the networks: the front of 60 trials by 1,000 validation samples."""
    for scatter, floor in ((0.0, 0.0), (0.05, 0.0), (0.15, 0.0), (0.05, 0.5)):
        world, found = World(scatter=scatter, floor=floor), []
        for repetition in range(repetitions(REPETITIONS, share)):
            random = generator("selected", repetition, str(scatter), str(floor))
            size = np.sort(SMALLEST * 10 ** (world.decades * random.random(60)))
            true = world.error(size) * np.exp(scatter * random.standard_normal(60))
            seen = random.binomial(1000, true) / 1000
            chosen = np.flatnonzero(np.r_[True, seen[1:] < np.minimum.accumulate(seen)[:-1]])
            if len(chosen) < 5:
                continue
            networks = world.measured(random, size[chosen], true[chosen])
            curve, left_out = fit_networks(networks, 1000), int(random.integers(1, len(chosen) - 1))
            low, high = curve.smallest, curve.largest
            slope = math.log(world.error(low) / world.error(high)) / math.log(high / low)
            rest = fit_networks(networks[:left_out] + networks[left_out + 1 :], 1000)
            at = rest.error(size[chosen][left_out], network=True)
            found.append((covers(curve.slope(low, high), slope), covers(at, true[chosen][left_out])))
        setting = f"front of 60 trials, scatter {100 * scatter:g}%" + (f", floor of {floor:g}" if floor else "")
        exponent, network = zip(*found, strict=True)
        yield rate("curve of a chosen front: coverage of the exponent", setting, exponent, (0.9, 1.0))
        yield rate(
            "curve of a chosen front: coverage of the true error of a network left out", setting, network, (0.88, 1.0)
        )


def broken(first: float, second: float, decades: float) -> World:
    """Return two power laws that meet in the middle."""
    middle = SMALLEST * 10 ** (decades / 2)
    at = FIRST * 10 ** (-first * decades / 2)
    return World(decades=decades, law=lambda n: at * (n / middle) ** np.where(n < middle, -first, -second))


def stepped(height: float, decades: float) -> World:
    """Return a power law that falls by a share of the error in the middle."""
    middle = SMALLEST * 10 ** (decades / 2)
    return World(decades=decades, law=lambda n: FIRST * (n / SMALLEST) ** -0.3 * np.where(n < middle, 1.0, 1 - height))


U_SHAPE = World(law=lambda n: FIRST * np.exp(0.6 * (np.log10(n / SMALLEST) - 0.75) ** 2 * 4 - 1.35))
BROKEN: dict[str, tuple[World, tuple[float, float]]] = {
    "exponents .2 then .5 over 3 decades": (broken(0.2, 0.5, 3.0), (0.97, 1.0)),
    "exponents .1 then .4 over 3 decades": (broken(0.1, 0.4, 3.0), (0.97, 1.0)),
    "exponents .1 then .5 over 1.5 decades": (broken(0.1, 0.5, 1.5), (0.88, 1.0)),
    "a step of 60% over 3 decades": (stepped(0.6, 3.0), (0.95, 1.0)),
    "a step of 40% over 1.5 decades": (stepped(0.4, 1.5), (0.85, 1.0)),
    "an error that falls, then rises": (U_SHAPE, (0.97, 1.0)),
    "a step of 33% over 3 decades (a known limit)": (stepped(0.33, 3.0), (0.45, 0.9)),
}


def broken_laws(share: float) -> Iterator[Row]:
    """How often a curve of a law of another kind comes with a warning."""
    for name, (world, target) in BROKEN.items():
        for sizes in (4, 8):
            found = []
            for repetition in range(repetitions(200, share)):
                random = generator("broken", name, sizes, repetition)
                simulated = World(sizes=sizes, decades=world.decades, law=world.law)
                found.append(bool(replace(FIT, networks=tuple(simulated.drawn(random)), count=1000).warnings))
            yield rate("law of another kind: a warning", f"{name}, {sizes} sizes", found, target)


def equal_exponents(share: float) -> Iterator[Row]:
    """How often the exponents of two data sets are called different at 5%."""
    for sizes, other, target in (
        (4, 0.3, (0.0, 0.05)),
        (8, 0.3, (0.0, 0.05)),
        (12, 0.3, (0.0, 0.05)),
        (8, 0.4, (0.4, 1.0)),
        (8, 0.5, (0.9, 1.0)),
    ):
        found = []
        for repetition in range(repetitions(200, share)):
            random = generator("equal exponents", sizes, str(other), repetition)
            pair = [fit_networks(World(sizes=sizes, exponent=each).drawn(random), 1000) for each in (0.3, other)]
            compared = slope_difference(*pair)
            found.append(compared is not None and compared[1] < 0.05)
        what = "equal exponents" if other == 0.3 else f"exponents .3 and {other:g}"
        yield rate(f"{what}: called different at 5%", f"{sizes} sizes", found, target)
