"""The tests behind verdicts: what paired differences establish against zero and a margin, and what would decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

from ablate.results.comparison.runs import EQUAL, Paired
from ablate.results.statistics.looks import ERROR, holm, share_of
from ablate.results.statistics.skewness import Doubts, second_p
from ablate.results.trials.results import Results

SUPERIOR, EQUIVALENT, NON_INFERIOR, HARMFUL, INCONCLUSIVE = (
    "superior", "equivalent", "non-inferior", "harmful", "inconclusive",
)  # fmt: skip
BY_MARGIN = "superior-by-margin"
CLAIMS = (SUPERIOR, EQUIVALENT, NON_INFERIOR, HARMFUL, BY_MARGIN)  # the first that holds is the verdict
BEYOND_GAIN, BEYOND_LOSS = "gain beyond the margin", "loss beyond the margin"  # no verdicts: they refute claims
TRUSTED = Doubts()
HOLDS, REFUTED, UNDECIDED = "holds", "refuted", "undecided"  # answers to a claim that is required
Differences = NDArray[np.float64]
Test = Callable[[float], float]  # the p-value of "the mean is at most this bound"


def p_above(differences: Differences, bound: float, doubt: float | None = None) -> float:
    """Return the one-sided p-value of "the mean is at most `bound`", by a t test over [n] differences, n ≥ 2.

    With a `doubt`, the smallest standard deviation to assume, a second test must agree (`second_p`). Equal differences
    have no spread to test with. The exact sign test takes the place of the t test: 2^-n if they are above the bound,
    otherwise 1.
    """
    n, sd = len(differences), spread(differences)
    if sd == 0:
        return 0.5**n if differences[0] > bound else 1.0
    t = (float(differences.mean()) - bound) / (sd / math.sqrt(n))
    p = float(scipy.special.stdtr(n - 1, -t))
    return p if doubt is None else max(p, second_p(t, n, max(doubt / sd, 1.0)))


def p_two_sided(gains: Differences, doubt: Doubts = TRUSTED) -> float:
    """Return the two-sided p-value of "the mean is 0" (see `p_above`)."""
    return min(2 * min(p_above(gains, 0.0, doubt.gain), p_above(-gains, 0.0, doubt.loss)), 1.0)


def spread(differences: Differences) -> float:
    """Return the standard deviation of [n] differences, n ≥ 2; exactly 0 if all are equal."""
    return float(differences.std(ddof=1)) if np.ptp(differences) > 0 else 0.0


def adjust(found: Sequence[float | None], *, look: int = 1, family: bool = True) -> list[float]:
    """Return p-values adjusted for their `family` (Holm 1979; None counts as 1) and for the look (`share_of`)."""
    p = [1.0 if each is None else each for each in found]
    return [min(each / share_of(look), 1.0) for each in (holm(p) if family else p)]


def margin_p(gains: Differences, margin: float, doubt: Doubts = TRUSTED) -> dict[str, float]:
    """Return `against_margin` of [n] differences in the better direction, n ≥ 2."""
    gain, loss = partial(p_above, gains, doubt=doubt.gain), partial(p_above, -gains, doubt=doubt.loss)
    return against_margin(gain, loss, margin)


def against_margin(gain: Test, loss: Test, margin: float) -> dict[str, float]:
    """Return the p-value of each claim against a margin.

    BEYOND_GAIN and BEYOND_LOSS are one-sided: they refute claims (`refuted_by`).
    """
    by_margin = min(2 * gain(margin), 1.0)  # as strict as the two-sided test of superiority
    found = {NON_INFERIOR: gain(-margin), EQUIVALENT: max(gain(-margin), loss(-margin)), BY_MARGIN: by_margin}
    return found | {BEYOND_GAIN: gain(margin), BEYOND_LOSS: loss(margin)}


def smallest_margin_now(gains: Differences, doubt: Doubts = TRUSTED, *, look: int = 1, tests: int = 1) -> float | None:
    """Return the margin above which [n] gains are non-inferior at this look; None if they do not differ.

    It is where the test of `margin_p` has its level, that of Holm's first step over `tests`: the t test, and the second
    one where the row is in doubt.
    """
    n, sd, level = len(gains), spread(gains), ERROR * share_of(look) / tests
    if sd == 0:
        return None
    reach = t = float(scipy.special.stdtrit(n - 1, 1 - level))
    if doubt.gain is not None:
        reach = max(t * max(doubt.gain / sd, 1.0), math.sqrt(1 / level - 1))
    return reach * sd / math.sqrt(n) - float(gains.mean())


def claims_of(gain: float, p_adjusted: float, p: Mapping[str, float]) -> tuple[str, ...]:
    """Return the claims that hold for a mean difference in the better direction, in the order of CLAIMS.

    Each p-value is adjusted for the look already. Superior and harmful: that of Holm is below 0.05. Against the margin,
    where `p` of `margin_p` is below 0.05: non-inferior (the mean is above -margin), equivalent (within the margins, two
    one-sided tests), and superior-by-margin (above the margin).
    """
    holds = {SUPERIOR: p_adjusted < ERROR and gain > 0, HARMFUL: p_adjusted < ERROR and gain < 0}
    holds |= {claim: value < ERROR for claim, value in p.items()}
    return tuple(claim for claim in CLAIMS if holds.get(claim))


def refuted_by(claims: Sequence[str], p: Mapping[str, float]) -> tuple[str, ...]:
    """Return the claims that are refuted by the claims that hold, and by `p` of `margin_p`.

    Superior: the row is harmful. Harmful: superior. Superior-by-margin: harmful or equivalent. Non-inferior: the loss
    is beyond the margin. Equivalent: the gain or the loss is.
    """
    contrary = {SUPERIOR: {HARMFUL}, HARMFUL: {SUPERIOR}, BY_MARGIN: {HARMFUL, EQUIVALENT}}
    contrary |= {NON_INFERIOR: {BEYOND_LOSS}, EQUIVALENT: {BEYOND_GAIN, BEYOND_LOSS}}
    there = {*claims, *(name for name in (BEYOND_GAIN, BEYOND_LOSS) if p.get(name, 1.0) < ERROR)}
    return tuple(claim for claim in CLAIMS if contrary[claim] & there)


def settled(pair: Paired) -> Differences:
    """Return the differences by seed; those that are equal but for rounding are made equal."""
    differences = pair.own - pair.baseline
    if len(differences) < 2 or not np.isfinite(differences).all():
        return differences
    largest = float(max(np.abs(pair.own).max(), np.abs(pair.baseline).max()))
    rounding = max(EQUAL * largest, 1e-150)  # squares of smaller differences lose their digits
    if float(np.ptp(differences)) > rounding:
        return differences
    first = float(differences[0])
    return np.full_like(differences, first if abs(first) > rounding else 0.0)


def answer_to(claim: str, row: Mapping[str, Any]) -> str:
    """Return whether a claim holds, is refuted or is undecided, for a row of `comparison` with a margin."""
    for answer, name in ((HOLDS, "claims"), (REFUTED, "refuted")):
        if claim in (row[name] or "").split(", "):
            return answer
    return UNDECIDED


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """The inconclusive ones of `rows` verdicts of a metric, and what would decide them.

    `collapsed` of them have collapsed seeds, so they vary too much for any number of seeds; what follows is of the
    others. `seeds`: replicates at which a row without a difference is found non-inferior with 80% power, for the row
    that needs most; None above 1,000. `hours`: of the further training, one trial after another, as long as the trials
    took so far; None without `seeds`. `margin`: the smallest one at which all would be non-inferior now; None if all
    have collapsed seeds or equal differences. `share`: of the error, which the next look has.
    """

    undecided: int
    rows: int
    collapsed: int
    seeds: int | None
    hours: float | None
    margin: float | None
    share: float


def next_step(results: Results, table: pl.DataFrame) -> NextStep | None:
    """Return what decides the inconclusive rows of a metric's verdicts; None if none is inconclusive.

    `table` are rows of `verdicts`.
    """
    tested = table.filter(pl.col("verdict").is_not_null(), pl.col("p").is_not_null())
    rows = tested.filter(pl.col("verdict") == INCONCLUSIVE)
    if not rows.height:
        return None
    steady = rows.filter(pl.col("collapsed").fill_null(0) == 0)
    needed = steady["seeds_needed"].to_list()
    seeds = max(*needed, results.study.replicates + 1) if needed and None not in needed else None
    spent = results.trials.filter(pl.col("stage") != "confirm")["wall_seconds"].sum() / 3600
    return NextStep(
        undecided=rows.height,
        rows=tested.height,
        collapsed=rows.height - steady.height,
        seeds=seeds,
        hours=None if seeds is None else spent * (seeds / results.study.replicates - 1),
        margin=max(steady["margin_now"].drop_nulls().to_list(), default=None),
        share=share_of(rows["look"][0] + 1),
    )
