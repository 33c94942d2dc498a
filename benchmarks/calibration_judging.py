"""Rows on judging changes: campaigns of candidates whose true gain is known, many campaigns side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from calibration_intervals import covered
from calibration_rows import Row, average, generator, rate, repetitions
from scipy.special import stdtr

from ablate.base.judging import Pool, Rule, Sample, compare, is_far_behind
from ablate.tuning.stages.candidate_runs import EARLY, WINDOW

Arms = Callable[[np.random.Generator, np.ndarray], np.ndarray]
CAMPAIGNS, NULLS, PROBED, WIDTH = 1_000, 100, 50, 64
FALSE_KEEP, NOTHING = "judging: a campaign with a false keep", f"{NULLS} candidates without effect"
EFFECTS = (1.0, 2.0)  # of the candidates that are tried as number PROBED, in standard deviations of a run


def smooth_arms(*, r: float = 0.0, spread: float = 0.0, residuals: np.ndarray | None = None) -> Arms:
    """Return arms whose seeds correlate by `r` and are normal, or drawn from `residuals` of variance 1.

    The arms' sd is lognormal: its median is 1, and the sd of its logarithm is `spread`.
    """

    def draw(random: np.random.Generator, seeds: np.ndarray) -> np.ndarray:
        noise = random.standard_normal(seeds.shape) if residuals is None else random.choice(residuals, seeds.shape)
        own = math.sqrt(r) * seeds + math.sqrt(1 - r) * noise
        return np.asarray(np.exp(spread * random.standard_normal((len(seeds), 1))) * own)

    return draw


@dataclass(kw_only=True)
class Campaigns:
    """Campaigns side by side, [campaigns] or [campaigns, seeds]; each ends with its first keep."""

    random: np.random.Generator
    number: int
    arms: Arms
    rule: Rule
    child: float = 0.0  # correlation of a candidate's seeds with those of the best looking one
    is_one_order: bool = False  # whether all candidates have the same order of seeds
    drift: float = 0.0  # what each candidate gains over the one before by the time of its runs, in sd of a run
    pool: Pool = field(init=False)
    reference_runs: np.ndarray = field(init=False)
    is_over: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Draw the seeds' common part and the runs of the reference."""
        self.pool = Pool(**{each.name: np.zeros(self.number) for each in fields(Pool)})
        self.ended_runs = np.zeros(self.number)  # of the reference in earlier windows
        self.open_window()
        self.is_over = np.zeros(self.number, dtype=bool)
        self.best, self.best_gain = np.zeros_like(self.seeds), np.zeros(self.number)

    def open_window(self) -> None:
        """Draw other seeds, and the reference's runs on them."""
        self.seeds = self.random.standard_normal((self.number, WIDTH))
        self.still = self.arms(self.random, self.seeds)
        self.reference, self.age = self.still, np.zeros_like(self.still)
        self.reference_runs = np.full(self.number, self.rule.reference_runs(1))

    def pass_time(self, k: int) -> None:
        """Begin candidate k: after a whole window with other seeds; the reference's next runs are trained now."""
        if self.rule.alpha < 1 and k > 1 and (k - 1) % WINDOW == 0:
            self.ended_runs += self.reference_runs
            self.open_window()
            self.best[:], self.best_gain[:], self.age[:] = 0.0, 0.0, k
        self.age = np.where(np.arange(WIDTH) < self.reference_runs[:, None], self.age, k)
        self.reference = self.still + self.drift * self.age

    def candidate(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the next candidate on every seed, and its order of seeds: those of the reference first, at random."""
        values = self.arms(self.random, self.seeds)
        has_parent = self.child * self.best.any(axis=1, keepdims=True)
        values = has_parent * self.best + np.sqrt(1 - has_parent**2) * values
        place = np.arange(WIDTH)
        keys = self.random.random((self.number, WIDTH)) * (not self.is_one_order)
        is_known = place < self.reference_runs[:, None]
        return values, np.argsort(np.where(is_known, keys, 1 + place), axis=1, kind="stable")

    def judge(self, values: np.ndarray, order: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return of candidate k whether it is kept, after how many runs it ends, and its gain then.

        The reference's runs grow with those of the candidate.
        """
        own, shared = (Sums(np.take_along_axis(each, order, axis=1)) for each in (values, self.reference))
        reference = Sums(self.reference)
        kept, runs, gains = (np.zeros(self.number, dtype=kind) for kind in (bool, int, float))
        at = np.flatnonzero(~self.is_over)
        for n in range(1, self.rule.most + 1):
            self.reference_runs[at] = np.maximum(self.reference_runs[at], self.rule.reference_runs(n))
            pool = Pool(**{each.name: getattr(self.pool, each.name)[at] for each in fields(Pool)})
            ends = own.sample(at, n), shared.sample(at, n).mean, reference.sample(at, self.reference_runs[at])
            found = compare(*ends, pool, rule=self.rule)
            z = found.gain / found.se
            kept[at] = stdtr(found.df, -z) < self.rule.rate(k) * self.rule.share(n)
            runs[at], gains[at] = n, found.gain
            at = at[~kept[at] & (z >= self.rule.hopeless(found.precision))]
        return kept, runs, gains

    def end(self, values: np.ndarray, order: np.ndarray, runs: np.ndarray) -> None:
        """Add a candidate that has ended after `runs` runs to the pool."""
        at = np.flatnonzero(runs)
        inside = np.arange(WIDTH) < runs[at, None]
        own, shared = (np.take_along_axis(each, order, axis=1)[at] for each in (values, self.reference))
        own, shared = (np.where(inside, x - np.mean(x, 1, keepdims=True, where=inside), 0.0) for x in (own, shared))
        added = {"squares": own**2, "paired": own**2, "shared": shared**2, "cross": own * shared}
        for name, products in added.items():
            getattr(self.pool, name)[at] += products.sum(axis=1)
        self.pool.df[at] += runs[at] - 1
        self.pool.pairs[at] += runs[at] - 1


class Sums:
    """The first runs of an arm, for any number of them, [campaigns, seeds]."""

    def __init__(self, values: np.ndarray) -> None:
        self.sums, self.squares = values.cumsum(axis=1), (values**2).cumsum(axis=1)

    def sample(self, at: np.ndarray, n: int | np.ndarray) -> Sample:
        """Return the first n runs of the campaigns `at`."""
        mean = self.sums[at, n - 1] / n
        return Sample(n=n, mean=mean, squares=np.maximum(self.squares[at, n - 1] - n * mean**2, 0.0))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What some campaigns of candidates without effect ended with, and the candidates tried as number PROBED."""

    false_keep: np.ndarray  # [campaigns]
    all_in: np.ndarray  # runs for each candidate, the reference's among them, [campaigns without a keep]
    kept: dict[float, np.ndarray]  # by effect: [campaigns that had not ended]
    gains: dict[float, np.ndarray]  # at the keep


def run_campaigns(campaigns: Campaigns, *, nulls: int = NULLS) -> Outcome:
    """Judge candidates without effect, and as number PROBED each of EFFECTS too, whose runs leave no trace."""
    spent = np.zeros(campaigns.number)
    kept, gains = dict[float, np.ndarray](), dict[float, np.ndarray]()
    for k in range(1, nulls + 1):
        campaigns.pass_time(k)
        values, order = campaigns.candidate()
        values = values + campaigns.drift * k
        for effect in EFFECTS if k == PROBED else ():
            before = campaigns.reference_runs.copy()
            found, _, gain = campaigns.judge(values + effect, order, k)
            campaigns.reference_runs = before
            kept[effect], gains[effect] = found[~campaigns.is_over], gain[found]
        found, runs, gain = campaigns.judge(values, order, k)
        spent += runs
        campaigns.end(values, order, runs)
        campaigns.is_over = campaigns.is_over | found
        is_best = (runs > 0) & (gain > campaigns.best_gain)
        campaigns.best[is_best], campaigns.best_gain[is_best] = values[is_best], gain[is_best]
    all_in = ((spent + campaigns.ended_runs + campaigns.reference_runs) / nulls)[~campaigns.is_over]
    return Outcome(false_keep=campaigns.is_over, all_in=all_in, kept=kept, gains=gains)


def normal_changes(share: float) -> Iterator[Row]:
    """False keeps, cost, power and closing of campaigns with normal seeds."""
    for r in (0.0, 0.5, 0.9):
        random = generator("judging", str(r))
        found = run_campaigns(campaigns(random, share, arms=smooth_arms(r=r)))
        nulls, tried = f"{NOTHING}, r = {r:g}", f"candidate {PROBED} of {{:g}} sd, r = {r:g}"
        yield rate(FALSE_KEEP, nulls, found.false_keep, (0.0, 0.05))
        yield average("judging: runs of a candidate, with its part of the reference's", nulls, found.all_in, (0.0, 3.7))
        for effect, least in zip(EFFECTS, (0.4, 0.8), strict=True):
            yield rate("judging: power", tried.format(effect), found.kept[effect], (least, 1.0))
        flattery = found.gains[1.0] - 1.0
        yield average("judging: gain at a keep less the true gain, in sd", tried.format(1), flattery, (0.0, 0.25))
        pairs = math.sqrt(2 - 2 * r) * random.standard_normal((repetitions(20_000, share), 8))
        closing = f"8 paired seeds, r = {r:g}"
        yield rate("judging: coverage of the closing interval", closing, covered(pairs, 0.0), (0.94, 0.96))


def other_changes(share: float) -> Iterator[Row]:
    """False keeps of arms with unequal spread, of an agent that overfits to the seeds, and in mode `explore`."""
    for drift, r in ((0.006, 0.0), (0.006, 0.9), (0.02, 0.0)):
        found = run_campaigns(
            campaigns(generator("drift", str(drift), str(r)), share, arms=smooth_arms(r=r), drift=drift)
        )
        words, limit = (" (a known limit)", 0.2) if drift > 0.006 else ("", 0.05)
        setting = f"{NOTHING}, runs that drift by {drift * NULLS:g} sd, r = {r:g}"
        yield rate(FALSE_KEEP + words, setting, found.false_keep, (0.0, limit))
    unequal = campaigns(generator("judging unequal"), share, arms=smooth_arms(spread=0.5))
    yield rate(FALSE_KEEP, f"{NOTHING}, sd of log sd 0.5", run_campaigns(unequal).false_keep, (0.0, 0.05))
    for child, is_one_order in ((0.5, False), (0.8, False), (0.95, False), (0.8, True)):
        random = generator("judging agent", str(child), int(is_one_order))
        found = run_campaigns(campaigns(random, share, child=child, is_one_order=is_one_order))
        setting = f"{NOTHING}, seeds correlated by {child:g} with the best looking one's"
        words, target = (", one order of seeds (not used)", (0.04, 0.15)) if is_one_order else ("", (0.0, 0.05))
        yield rate(FALSE_KEEP, setting + words, found.false_keep, target)
    for r, target in ((0.0, (0.3, 0.45)), (0.5, (0.1, 0.35))):
        explore = campaigns(generator("explore", str(r)), share, arms=smooth_arms(r=r), rule=Rule.of(mode="explore"))
        found, nulls = run_campaigns(explore), f"{NOTHING}, r = {r:g}"
        yield rate("judging, explore (no claim): a campaign with a false step", nulls, found.false_keep, target)
        what = "judging, explore: runs of a candidate, with its part of the reference's"
        yield average(what, nulls, found.all_in, (0.0, 2.0))


def collapsing_changes(share: float) -> Iterator[Row]:
    """A change that loses 2 sd because one seed in 20 collapses, asked whether it is worse by more than 1 sd."""
    judged = campaigns(generator("judging collapse"), share)
    run_campaigns(judged, nulls=PROBED - 1)
    values, order = judged.candidate()
    fell = judged.random.random(values.shape) < 0.05
    kept, _, _ = judged.judge(values - 40 * fell + 1.0, order, PROBED)
    setting = f"candidate {PROBED} loses 2 sd, by 40 sd in one seed of 20; margin 1 sd"
    yield rate("judging: kept as not worse (a known limit)", setting, kept[~judged.is_over], (0.08, 0.25))


def first_runs(share: float) -> Iterator[Row]:
    """The first run of a candidate beside 8 of the champion: is it stopped early, and what part of it is trained?

    Runs have the correlations with their end that recorded curves of digits have at a third and at two thirds, .4 and
    .76, and in between that of a Markov chain; a candidate differs by the same number of sd throughout.
    """
    for effect, lost, trained in ((1.0, (0.0, 0.02), (0.97, 1.0)), (0.0, (0.06, 0.1), (0.94, 0.98)),
                                  (-2.0, (0.5, 0.8), (0.5, 0.75)), (-5.0, (0.95, 1.0), (0.33, 0.45))):  # fmt: skip
        random = generator("judging early", str(effect))
        early, new = random.standard_normal((2, repetitions(20_000, share), 9))
        late = 0.4 / 0.76 * early + math.sqrt(1 - (0.4 / 0.76) ** 2) * new
        ended = [is_far_behind(each[:, 0] + effect, each[:, 1:], limit)
                 for each, (_, limit) in zip((early, late), EARLY, strict=True)]  # fmt: skip
        setting = f"a true difference of {effect:g} sd, 8 runs of the champion known"
        yield rate("judging: a first run is stopped early", setting, ended[0] | ended[1], lost)
        parts = np.where(ended[0], 1 / 3, np.where(ended[1], 2 / 3, 1.0))
        yield average("judging: part of a first run that is trained", setting, parts, trained)


def campaigns(random: np.random.Generator, share: float, **given: Any) -> Campaigns:
    """Return a share of the campaigns of a whole run; the default is claims about arms with normal seeds."""
    number = repetitions(CAMPAIGNS, share)
    return Campaigns(random=random, number=number, **({"arms": smooth_arms(), "rule": Rule.of()} | given))
