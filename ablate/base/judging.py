"""The rule that keeps or discards a change after a growing number of runs (docs/measured/calibration_judging.md).

Candidate k of a campaign is compared with the reference after each of its runs. It is kept only at certain numbers of
runs, each of which has a share of the candidate's part of the error rate. By the union bound over candidates and looks,
a campaign in which no candidate is better keeps one with probability at most alpha.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from ablate.base.spending import spend

Runs = NDArray[np.float64]
Number = float | Runs  # an array has one value for each of several campaigns (benchmarks/calibration_judging.py)
Mode = Literal["claims", "explore"]
Effort = Literal["frugal", "normal", "thorough"]
State = Literal["keep", "discard", "undecided", "open"]

EFFORTS: dict[Effort, tuple[float, float]] = {"frugal": (1.5, 0.825), "normal": (1.2, 0.9), "thorough": (1.2, 1.38)}
FEWEST_REFERENCE, ENOUGH_REFERENCE = 4, 64
FEWEST_PAIRS = 4  # degrees of freedom below which the correlation is not used
HIGHEST_CORRELATION = 0.98
ROUNDING = 1e-12  # of a run's value: smaller differences are none, where runs have no spread
TINY = 1e-30


def default_effort(mode: Mode) -> Effort:
    """Return how soon a hopeless candidate is given up in a mode."""
    return "frugal" if mode == "explore" else "normal"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When a candidate is looked at, what each look may spend of the error rate, and when a candidate is hopeless.

    After n runs a candidate is hopeless if its z is below d/2·R - L/(d·R), a sequential probability ratio test of an
    effect of d standard deviations of a run; 1/R is the standard error of its gain in the same unit.
    """

    looks: tuple[int, ...]  # numbers of runs after which a keep is possible
    shares: tuple[float, ...]  # of the looks; they sum to 1
    alpha: float  # error rate of the campaign; in mode `explore` an allowance above 1, not a probability
    expect: float = 50  # candidates that have about equal parts of alpha
    length: int | None = None  # number of candidates, if known beforehand: equal parts for these, none for later ones
    most: int = 32  # runs of a candidate
    discard_slope: float  # d
    discard_log: float  # L
    prior: float = 4  # degrees of freedom that an arm's variance borrows from the campaign
    reference_factor: int = 2  # runs of the reference for each run of a candidate

    @classmethod
    def of(
        cls,
        *,
        mode: Mode = "claims",
        effort: Effort | None = None,
        expect: float = 50,
        length: int | None = None,
        most: int = 32,
    ) -> Rule:
        """Return the rule of a mode; without `effort`, with its `default_effort`."""
        explores = mode == "explore"
        slope, log = EFFORTS[effort or default_effort(mode)]
        return cls(
            looks=(2, 4, 8, 16) if explores else (8, 16, 32, 64, 128, 256),
            shares=(0.3, 0.3, 0.3, 0.1) if explores else (0.2, 0.3, 0.3, 0.1, 0.05, 0.05),
            alpha=5.0 if explores else 0.05,
            expect=expect,
            length=length,
            most=min(most, 16) if explores else most,
            discard_slope=slope,
            discard_log=log,
            reference_factor=1 if explores else 2,
        )

    def with_effort(self, effort: Effort) -> Rule:
        """Return this rule with another line below which a candidate is hopeless."""
        slope, log = EFFORTS[effort]
        return replace(self, discard_slope=slope, discard_log=log)

    def rate(self, k: int) -> float:
        """Return the error rate of candidate k (from 1), at most 1/2."""
        if self.length is not None:
            return min(self.alpha / self.length, 0.5) if k <= self.length else 0.0
        return min(spend(self.alpha, k, expected=self.expect), 0.5)

    def share(self, n: int) -> float:
        """Return the part of a candidate's error rate that the look after n runs has; 0 between looks."""
        return dict(zip(self.looks, self.shares, strict=True)).get(n, 0.0)

    def reference_runs(self, n: int) -> int:
        """Return how many runs the reference needs for a candidate of n runs."""
        return max(min(max(FEWEST_REFERENCE, self.reference_factor * n), ENOUGH_REFERENCE), n)

    def hopeless(self, precision: Number) -> Number:
        """Return the z below which a candidate is discarded; `precision` is R."""
        return self.discard_slope / 2 * precision - self.discard_log / (self.discard_slope * precision)


@dataclass(kw_only=True)
class Pool:
    """The seeds' spread, and their correlation with the reference's, in all arms that have ended; the order is free."""

    squares: Number = 0.0  # about the mean of each arm
    df: Number = 0
    paired: Number = 0.0  # squares of the arms that have runs of the reference on the same seeds
    shared: Number = 0.0  # squares of those runs of the reference
    cross: Number = 0.0
    pairs: Number = 0  # degrees of freedom of the pairs

    def add(self, runs: Runs, shared: Runs | None) -> None:
        """Add an arm that has ended: its runs, and the reference's on the same seeds (None: a former reference)."""
        own = runs - runs.mean()
        self.squares += own @ own
        self.df += len(runs) - 1
        if shared is not None:
            other = shared - shared.mean()
            self.paired += own @ own
            self.shared += other @ other
            self.cross += own @ other
            self.pairs += len(runs) - 1

    def beta(self) -> Number:
        """Return the correlation less one standard error, from 0 to .98; 0 while there are few pairs."""
        r = self.cross / (np.sqrt(self.paired) * np.sqrt(self.shared) + TINY)
        low = r - 1 / np.sqrt(np.maximum(self.pairs, 1))
        return np.where(np.less(self.pairs, FEWEST_PAIRS), 0.0, np.clip(low, 0.0, HIGHEST_CORRELATION))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The runs of an arm as their number, their mean, and the sum of squares about it."""

    n: Number
    mean: Number
    squares: Number

    @classmethod
    def of(cls, runs: Runs) -> Sample:
        """Return the sums of some runs."""
        return cls(n=len(runs), mean=runs.mean(), squares=((runs - runs.mean()) ** 2).sum())


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The gain of a candidate with its standard error and degrees of freedom."""

    gain: Number
    se: Number
    df: Number
    variance: Number  # of one run, pooled over the campaign
    precision: Number  # R: 1 over the standard error in units of a run's standard deviation


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What is known of a candidate after its last run; `gain` and the limits are in the metric's unit."""

    state: State
    runs: int
    reference_runs: int
    gain: float
    se: float
    df: float
    p: float  # of a gain that is no better than -shift
    allowed: float  # p must be below this for a keep; 0 between looks
    bound: float  # lower limit of the gain at level `allowed`; minus infinity between looks
    low: float  # 95% t interval of this comparison alone
    high: float
    need: int | None  # further runs until the look that would keep this gain; None: decided, or no such look
    correlation: float  # that was used: see Pool.beta


def compare(
    candidate: Sample, shared: Number, reference: Sample, pool: Pool, *, rule: Rule, step: Number = TINY
) -> Comparison:
    """Return the gain of a candidate over the reference, whose mean on the candidate's seeds is `shared`.

    The gain is the difference of means, with the shared seeds as a control variate. The variance of each arm is its
    own, moderated by that of all arms of the campaign, which is at least that of rounding to `step`.
    """
    freedom = pool.df + candidate.n - 1 + reference.n - 1
    variance = np.maximum((pool.squares + candidate.squares + reference.squares) / freedom, step**2 / 12)
    beta = pool.beta()
    parts, moderated, freedoms = _parts(beta, candidate.n, reference.n), list[Number](), list[Number]()
    for part, arm in zip(parts, (candidate, reference), strict=True):
        freedoms.append(rule.prior + arm.n - 1)
        moderated.append(part * (rule.prior * variance + arm.squares) / freedoms[-1])
    square = moderated[0] + moderated[1]
    share = moderated[0] / square
    satterthwaite = 1 / (share**2 / freedoms[0] + (1 - share) ** 2 / freedoms[1])
    return Comparison(
        gain=candidate.mean - beta * shared - (1 - beta) * reference.mean,
        se=np.sqrt(square),
        df=np.minimum(freedom, satterthwaite),
        variance=variance,
        precision=1 / np.sqrt(parts[0] + parts[1]),
    )


def judge(
    candidate: Runs, shared: Runs, reference: Runs, pool: Pool, k: int, *, rule: Rule, shift: float = 0.0
) -> Judgement:
    """Return the state of candidate k after its n runs, on a scale where more is better.

    `shared` are the reference's runs on the candidate's seeds, in the same order; `reference` are all of its runs, two
    at least; all values are finite. The candidate must be better than -`shift`: a margin is a positive shift, a least
    gain a negative one.
    """
    n, m = len(candidate), len(reference)
    assert n == len(shared) >= 1, (n, len(shared))
    assert m >= 2, m
    largest = float(max(abs(candidate).max(), abs(reference).max()))
    step = max(ROUNDING * largest, TINY)
    sums = Sample.of(candidate), shared.mean(), Sample.of(reference)
    found = compare(*sums, pool, rule=rule, step=step)
    gain, se, df = float(found.gain), float(found.se), float(found.df)
    z, p, allowed = (gain + shift) / se, float(stdtr(df, -(gain + shift) / se)), rule.rate(k) * rule.share(n)
    is_hopeless = z < rule.hopeless(found.precision)
    state: State = "keep" if p < allowed else "discard" if is_hopeless else "undecided" if n >= rule.most else "open"
    half = float(stdtrit(df, 0.975)) * se
    return Judgement(
        state=state,
        runs=n,
        reference_runs=m,
        gain=gain,
        se=se,
        df=df,
        p=p,
        allowed=allowed,
        bound=gain + float(stdtrit(df, allowed)) * se if allowed else -math.inf,
        low=gain - half,
        high=gain + half,
        need=None if state in ("keep", "discard") else _need(gain + shift, found.variance, pool.beta(), n, k, rule),
        correlation=float(pool.beta()),
    )


def is_far_behind(own: Number, others: NDArray[np.float64], limit: float) -> NDArray[np.bool_]:
    """Return whether a value lies below the mean of `others` [..., n], values of the champion, by more than `limit` sd.

    The sd is theirs and has the error of their mean in it. Student's t takes the place of the normal distribution: one
    of n + 1 runs without a difference is as seldom so far behind as a normal variable is below -`limit`. Equal values
    of the champion tell no sd, so nothing is behind them.
    """
    n = others.shape[-1]
    spread = others.std(axis=-1, ddof=1) * math.sqrt(1 + 1 / n) * stdtrit(n - 1, ndtr(limit))
    return np.asarray((spread > 0) & (others.mean(axis=-1) - own > spread))


def doubt_of_ratio(own: Runs, others: Runs, share: float) -> float:
    """Return the one-sided p-value of a geometric mean that is not below `share` times that of `others`.

    It is the t test on logarithms with one variance, so one value of `own` is enough; two of `others` are needed.
    """
    logs = np.log(np.maximum(own, TINY)), np.log(np.maximum(others, TINY))
    df = len(own) + len(others) - 2
    variance = sum(float(((each - each.mean()) ** 2).sum()) for each in logs) / df
    se = math.sqrt(variance * (1 / len(own) + 1 / len(others)))
    return float(stdtr(df, (logs[0].mean() - logs[1].mean() - math.log(share)) / max(se, TINY)))


def _need(gain: float, variance: Number, beta: Number, n: int, k: int, rule: Rule) -> int | None:
    """Return how many runs are missing to the first look that keeps an equal gain with a chance of 1/2."""
    for look, share in zip(rule.looks, rule.shares, strict=True):
        parts = _parts(beta, look, rule.reference_runs(look))
        if look > n and gain > -ndtri(rule.rate(k) * share) * np.sqrt(variance * (parts[0] + parts[1])):
            return look - n
    return None


def _parts(beta: Number, n: Number, m: Number) -> tuple[Number, Number]:
    """Return the variance of a gain in units of a run's, for the candidate's own runs and for the reference's."""
    return (1 - beta**2) / n, (1 - beta) ** 2 / m
