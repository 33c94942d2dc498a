"""The rule that keeps or discards a change after a growing number of runs (docs/calibration.md, Judging changes).

Candidate k of a campaign is compared with the reference after each of its runs. It is kept only at certain numbers of
runs, each of which has a share of the candidate's part of the error rate. By the union bound over candidates and looks,
a campaign in which no candidate is better keeps one with probability at most alpha.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr, stdtrit

from ablate.base.spending import spend

Runs = NDArray[np.float64]
Mode = Literal["claims", "explore"]
Effort = Literal["frugal", "normal", "thorough"]
State = Literal["keep", "discard", "undecided", "open"]

EFFORTS: dict[Effort, tuple[float, float]] = {"frugal": (1.5, 0.825), "normal": (1.2, 0.9), "thorough": (1.2, 1.38)}
FEWEST_REFERENCE, ENOUGH_REFERENCE = 4, 64
FEWEST_PAIRS = 4  # degrees of freedom below which the correlation is not used
HIGHEST_CORRELATION = 0.98
ROUNDING = 1e-12  # relative error of a run's value: without any spread, smaller differences are none


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
    floor: float = 0.0  # step of the metric, such as 1 / validation samples

    @classmethod
    def of(
        cls,
        *,
        mode: Mode = "claims",
        effort: Effort | None = None,
        expect: float = 50,
        length: int | None = None,
        most: int = 32,
        floor: float = 0.0,
    ) -> Rule:
        """Return the rule of a mode; without `effort`, that is `normal` for claims and `frugal` for exploring."""
        explores = mode == "explore"
        slope, log = EFFORTS[effort or ("frugal" if explores else "normal")]
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
            floor=floor,
        )

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


@dataclass(kw_only=True)
class Pool:
    """The seeds' spread, and their correlation with the reference's, in all arms that have ended; the order is free."""

    squares: float = 0.0  # about the mean of each arm
    df: int = 0
    paired: float = 0.0  # squares of the arms that have runs of the reference on the same seeds
    shared: float = 0.0  # squares of those runs of the reference
    cross: float = 0.0
    pairs: int = 0  # degrees of freedom of the pairs

    def add(self, runs: Runs, shared: Runs | None) -> None:
        """Add an arm that has ended: its runs, and the reference's on the same seeds (None: a former reference)."""
        own = runs - runs.mean()
        self.squares += float(own @ own)
        self.df += len(runs) - 1
        if shared is not None:
            other = shared - shared.mean()
            self.paired += float(own @ own)
            self.shared += float(other @ other)
            self.cross += float(own @ other)
            self.pairs += len(runs) - 1

    def beta(self) -> float:
        """Return the correlation less one standard error, from 0 to .98; 0 while there are few pairs."""
        if self.pairs < FEWEST_PAIRS or not self.paired * self.shared > 0:
            return 0.0
        r = self.cross / math.sqrt(self.paired * self.shared)
        return min(max(r - 1 / math.sqrt(self.pairs), 0.0), HIGHEST_CORRELATION)


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


def judge(
    candidate: Runs, shared: Runs, reference: Runs, pool: Pool, k: int, *, rule: Rule, shift: float = 0.0
) -> Judgement:
    """Return the state of candidate k after its n runs, on a scale where more is better.

    `shared` are the reference's runs on the candidate's seeds, in the same order; `reference` are all of its runs, two
    at least. The gain is the difference of means, with shared seeds as a control variate; each arm's variance is its
    own, moderated by that of the whole campaign. The candidate must be better than -`shift`: a margin is a positive
    shift, a least gain a negative one.
    """
    n, m, beta = len(candidate), len(reference), pool.beta()
    assert n == len(shared) >= 1, (n, len(shared))
    assert m >= 2, m
    own, other = _squares(candidate), _squares(reference)
    freedom = pool.df + n - 1 + m - 1
    step = max(rule.floor, ROUNDING * float(max(abs(candidate).max(), abs(reference).max())), ROUNDING**2)
    pooled = max((pool.squares + own + other) / freedom, step**2 / 12)
    own_part, other_part = _parts(beta, n, m)
    own_var = own_part * (rule.prior * pooled + own) / (rule.prior + n - 1)
    other_var = other_part * (rule.prior * pooled + other) / (rule.prior + m - 1)
    gain = float(candidate.mean() - beta * shared.mean() - (1 - beta) * reference.mean())
    se = math.sqrt(own_var + other_var)
    df = min(freedom, se**4 / (own_var**2 / (rule.prior + n - 1) + other_var**2 / (rule.prior + m - 1)))
    z = (gain + shift) / se
    p, allowed = float(stdtr(df, -z)), rule.rate(k) * rule.share(n)
    precision = 1 / math.sqrt(own_part + other_part)
    hopeless = rule.discard_slope / 2 * precision - rule.discard_log / (rule.discard_slope * precision)
    state: State = "keep" if p < allowed else "discard" if z < hopeless else "undecided" if n >= rule.most else "open"
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
        need=None if state in ("keep", "discard") else _need(gain + shift, pooled, beta, n, k, rule),
        correlation=beta,
    )


def _need(gain: float, variance: float, beta: float, n: int, k: int, rule: Rule) -> int | None:
    """Return how many runs are missing to the first look that keeps an equal gain with a chance of 1/2."""
    for look, share in zip(rule.looks, rule.shares, strict=True):
        error = math.sqrt(variance * sum(_parts(beta, look, rule.reference_runs(look))))
        if look > n and gain / error > -float(ndtri(rule.rate(k) * share)):
            return look - n
    return None


def _parts(beta: float, n: int, m: int) -> tuple[float, float]:
    """Return the variance of a gain in units of a run's, for the candidate's own runs and for the reference's."""
    return (1 - beta**2) / n, (1 - beta) ** 2 / m


def _squares(runs: Runs) -> float:
    """Return the sum of squares about the mean."""
    return float(((runs - runs.mean()) ** 2).sum())
