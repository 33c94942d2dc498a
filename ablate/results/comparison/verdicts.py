"""Verdicts of a comparison: what the paired differences of each variant establish, against a margin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

from ablate.base.plain_text import counted
from ablate.core.objectives import given_for, is_higher_better
from ablate.results.comparison.comparison import CONSTANTS, columns, metrics
from ablate.results.comparison.data_sets import pair_by_dataset, sampled_columns
from ablate.results.comparison.runs import Measured, Paired, Runs, collect, measure, pair_by_seed
from ablate.results.statistics.adjustment import holm
from ablate.results.statistics.intervals import clopper_pearson, outlying, seeds_needed, smallest_effect, t_interval
from ablate.results.statistics.looks import ERROR, compared_looks, share_of
from ablate.results.statistics.skewness import Doubts, collapsed_seeds, doubts, second_p
from ablate.results.trials.results import Results, once
from ablate.study import VARIANT, Study
from ablate.study.sections import FEWEST_DATASETS

SUPERIOR, EQUIVALENT, NON_INFERIOR, HARMFUL, INCONCLUSIVE = (
    "superior", "equivalent", "non-inferior", "harmful", "inconclusive",
)  # fmt: skip
BY_MARGIN = "superior-by-margin"
CLAIMS = (SUPERIOR, EQUIVALENT, NON_INFERIOR, HARMFUL, BY_MARGIN)  # the first that holds is the verdict
BEYOND_GAIN, BEYOND_LOSS = "gain beyond the margin", "loss beyond the margin"  # no verdicts: they refute claims
TRUSTED = Doubts()
EQUAL = 1e-12  # differences whose spread is below this share of the values are equal, but for rounding
VERDICT_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(("metric", "column", "variant", "verdict", "claims", "refuted"), pl.String()),
    "margin": pl.Float64(),
    "better": pl.String(),
    **dict.fromkeys(
        ("difference", "low", "high", "margin_low", "margin_high", "margin_now", "samples_low", "samples_high"),
        pl.Float64(),
    ),
    "over": pl.String(),
    **dict.fromkeys(("n", "collapsed", "compared", "planned"), pl.Int64()),
    **dict.fromkeys(("p", "p_adjusted"), pl.Float64()),
    **dict.fromkeys(("family", "look"), pl.Int64()),
    **dict.fromkeys(("sd", "sd_between", "detectable"), pl.Float64()),
    "seeds_needed": pl.Int64(),
    **dict.fromkeys(("wins", "correlation"), pl.Float64()),
    **dict.fromkeys(("outlying", "remark"), pl.String()),
    "scaled": pl.Boolean(),
}
FEWEST = {"seeds": 2, "data sets": FEWEST_DATASETS}  # differences that a test needs, by what they are over
DIFFERENCE_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(("metric", "column", "variant"), pl.String()),
    "seed": pl.Int64(),
    "difference": pl.Float64(),
}
DENIED = "the seeds are skewed, where a t test finds too much: a second test does not confirm what it finds"
ALIKE = "all seeds have the same numbers, so they are one run"
HOLDS, REFUTED, UNDECIDED = "holds", "refuted", "undecided"  # answers to a claim that is required
Differences = NDArray[np.float64]


@once
def verdicts(results: Results) -> pl.DataFrame:
    """Return one row per metric, column and variant that runs there, but the baseline (columns: docs/compare.md).

    Differences are variant minus baseline over shared seeds, as in `cells`. Without a margin of the metric the verdict
    is null. Rows of a sample of data sets (`compare.datasets`) have its data sets in place of the seeds. Holm's family
    is every row of the metric but a placebo, which is no claim and has no verdict; a row that has no test counts as one
    with p = 1. p-values are divided by the share of the error that this look at growing results has (`compared_looks`,
    `share_of`). `detectable` is at the level of the family's first step.
    """
    study, runs, look = results.study, collect(results), len(compared_looks(results.events))
    rows: list[dict[str, Any]] = []
    for metric in (name for name in metrics(results) if name not in CONSTANTS):
        own = [_row(study, metric, look, *found) for found in _pairs(study, runs, measure(runs, metric))]
        for row in own:
            pair = row["pair"]
            places = outlying("", settled(pair).tolist(), rows=len(own))
            row["outlying"] = ", ".join(str(pair.seeds[place]) for place in places)
            row["collapsed"] = _collapsed(row, len(own))
        family = [row for row in own if not study.is_placebo(row["variant"])]
        second = [row["over"] == "seeds" and not study.is_placebo(row["variant"]) for row in own]
        familywise = study.compared.familywise
        for asked in (True, False):
            part = [row for row, each in zip(own, second, strict=True) if each is asked]
            _test(part, second=asked, tests=len(family) if familywise else 1)
        _adjust(family, all_claims=familywise)
        rows += [row | _verdict(row) for row in own]
    return pl.DataFrame(rows, schema=VERDICT_COLUMNS)


@once
def seed_differences(results: Results) -> pl.DataFrame:
    """Return the difference of each variant from the baseline by shared seed: metric, column, variant, seed.

    Of a sample of data sets a row is the difference of one of them, and has no seed.
    """
    study, runs = results.study, collect(results)
    seeds = [
        (metric, column, variant, seed if isinstance(seed, int) else None, difference)
        for metric in metrics(results)
        if metric not in CONSTANTS
        for column, variant, _, pair in _pairs(study, runs, measure(runs, metric))
        for seed, difference in zip(pair.seeds, settled(pair).tolist(), strict=True)
    ]
    return pl.DataFrame(seeds, schema=DIFFERENCE_COLUMNS, orient="row")


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
    """Return the p-value of each claim against a margin, for [n] differences in the better direction, n ≥ 2.

    BEYOND_GAIN and BEYOND_LOSS are one-sided: they refute claims (`refuted_by`).
    """
    above, below = p_above(gains, -margin, doubt.gain), p_above(-gains, -margin, doubt.loss)
    gain, loss = p_above(gains, margin, doubt.gain), p_above(-gains, margin, doubt.loss)
    by_margin = min(2 * gain, 1.0)  # as strict as the two-sided test of superiority
    found = {NON_INFERIOR: above, EQUIVALENT: max(above, below), BY_MARGIN: by_margin}
    return found | {BEYOND_GAIN: gain, BEYOND_LOSS: loss}


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
    """Return whether a claim holds, is refuted or is undecided, for a row of `verdicts` with a margin."""
    for answer, name in ((HOLDS, "claims"), (REFUTED, "refuted")):
        if claim in (row[name] or "").split(", "):
            return answer
    return UNDECIDED


def _pairs(study: Study, runs: Runs, measured: Measured) -> Iterator[tuple[str, str, int, Paired]]:
    """Yield column, variant, planned configurations and pair of each row of the verdicts."""
    baseline = study.compared.baseline
    planned = {label: [str(row[VARIANT]) for row in study.design(label)] for label in study.labels}
    sampled = sampled_columns(study)
    for column, datasets in (columns(study) | sampled).items():
        counts = {row.name: sum(planned[label].count(row.name) for label in datasets) for row in study.rows}
        others = measured.usable(runs.of(datasets, baseline))
        for name in (name for name, count in counts.items() if count and name != baseline):
            places = measured.usable(runs.of(datasets, name))
            paired = pair_by_dataset if column in sampled else pair_by_seed
            yield column, name, counts[name], paired(runs, measured, places, others)


def _row(study: Study, metric: str, look: int, column: str, variant: str, planned: int, pair: Paired) -> dict[str, Any]:
    """Return a row without what depends on the other rows of its metric."""
    higher, margin = is_higher_better(metric, study.objectives), given_for(study.compared.margin, metric)
    differences = settled(pair)
    one_sided = ERROR * share_of(look)  # error of each test against the margin
    levels = {"": 0.95, "margin_": 1 - 2 * one_sided}
    spans = {prefix: t_interval(differences.tolist(), level=level) for prefix, level in levels.items()}
    tested = len(differences) >= FEWEST[pair.over] and bool(np.isfinite(differences).all()) and not pair.alike
    gains = differences if higher else -differences
    sd = spread(differences) if tested else None
    found: dict[str, Any] = {"metric": metric, "column": column, "variant": variant, "margin": margin, "gains": gains}
    found |= {"better": None if higher is None else "higher" if higher else "lower", "scaled": study.scale != 1}
    found |= {"n": len(differences), "compared": pair.compared, "planned": planned, "correlation": pair.correlation}
    found |= {"look": look, "over": pair.over, "sd_between": pair.between}
    found |= {"difference": spans[""].mean if len(differences) else None, "sd": sd}
    found |= {
        f"{kind}{end}": getattr(span, end) if tested else None
        for kind, span in spans.items()
        for end in ("low", "high")
    }
    found |= pair.for_other_samples(metric)
    found |= {"detectable": None, "pair": pair}
    found["wins"] = float(np.mean((gains > 0) + 0.5 * (gains == 0))) if tested and higher is not None else None
    return found


def _collapsed(row: Mapping[str, Any], rows: int) -> int | None:
    """Return how many seeds of a row, one of `rows`, diverged or are far worse than the others; None if not known."""
    if row["sd"] is None or row["better"] is None or row["over"] != "seeds":
        return None
    return len({*np.flatnonzero(row["pair"].lost).tolist(), *collapsed_seeds(row["gains"], row["margin"], rows)})


def _test(rows: Sequence[dict[str, Any]], *, second: bool, tests: int) -> None:
    """Add the p-values of each row of one metric, whether a `second` test denies what t finds, and what would decide.

    `tests` are those over which non-inferiority is corrected: a margin and seeds are at the level of Holm's first step.
    No second test has a placebo, which claims nothing, and a row over data sets, whose seeds are averaged.
    """

    def p_values(row: Mapping[str, Any], doubt: Doubts) -> dict[str, float]:
        against = {} if row["margin"] is None else margin_p(row["gains"], row["margin"], doubt)
        return {"p": p_two_sided(row["gains"], doubt)} | against

    for row in rows:
        row |= {"p": None, "against": {}, "denied": False, "margin_now": None, "seeds_needed": None}
    tested = [row for row in rows if row["sd"] is not None]
    found = doubts([row["gains"] for row in tested], [bool(row["collapsed"]) for row in tested])
    for row, own in zip(tested, found, strict=True):
        doubt, look = own if second else TRUSTED, row["look"]
        alone, both = p_values(row, TRUSTED), p_values(row, doubt)
        row["denied"] = any(alone[name] < ERROR * share_of(look) <= p for name, p in both.items())
        row |= {"p": both.pop("p"), "against": both}
        row["margin_now"] = smallest_margin_now(row["gains"], doubt, look=look, tests=tests)
        level = 1 - 2 * ERROR * share_of(look + 1) / tests  # further seeds are another look
        needed = None
        if row["margin"] and row["sd"]:
            needed = seeds_needed(row["margin"] / row["sd"], level=level)
        elif row["margin"] and row["gains"][0] > -row["margin"]:
            needed = math.floor(math.log2(2 / (1 - level))) + 1  # of equal differences: the first 2^-n below the level
        row["seeds_needed"] = None if needed is None else max(needed, FEWEST[row["over"]])


def _adjust(family: Sequence[dict[str, Any]], *, all_claims: bool) -> None:
    """Add p-values that are adjusted by Holm and for the look, and what their level detects, to rows of one metric."""
    look = family[0]["look"] if family else 1
    for row, p in zip(family, adjust([row["p"] for row in family], look=look), strict=True):
        effect = smallest_effect(row["n"], level=1 - ERROR * share_of(look) / len(family))
        row |= {"p_adjusted": None if row["p"] is None else p, "family": len(family)}
        row["detectable"] = effect * row["sd"] if row["sd"] else None
    for claim in (NON_INFERIOR, EQUIVALENT, BY_MARGIN, BEYOND_GAIN, BEYOND_LOSS):
        whole = claim == BY_MARGIN or (all_claims and claim in CLAIMS)
        found = adjust([row["against"].get(claim) for row in family], look=look, family=whole)
        for row, p in zip(family, found, strict=True):
            row["against"] |= {claim: p} if row["against"] else {}


def _verdict(row: dict[str, Any]) -> dict[str, Any]:
    """Return verdict, claims and remark of a row with Holm's p-values; what they were computed of is taken out."""
    gains, against, pair, denied = (row.pop(name) for name in ("gains", "against", "pair", "denied"))
    found: dict[str, Any] = {"verdict": None, "claims": None, "refuted": None}
    if row["margin"] is not None and row["n"] and row.get("family"):
        claims = () if row["p"] is None else claims_of(float(gains.mean()), row["p_adjusted"], against)
        found = {"verdict": next(iter(claims), INCONCLUSIVE), "claims": ", ".join(claims)}
        found["refuted"] = ", ".join(refuted_by(claims, against))
    return found | {
        "remark": "; ".join(
            _remarks(row, found["claims"] or "", found["verdict"], DENIED * denied or ALIKE * pair.alike)
        )
    }


def _remarks(row: Mapping[str, Any], claims: str, verdict: str | None, doubt: str) -> Iterator[str]:
    over = row["over"]
    if HARMFUL in claims and verdict != HARMFUL:
        yield "a loss is established, and it is smaller than the margin"
    if BY_MARGIN in claims:
        yield "a gain of at least the margin is established"
    elif SUPERIOR in claims and EQUIVALENT in claims:
        yield "the gain is smaller than the margin"
    if row["sd"] == 0:
        yield f"the difference is the same in every {over[:-1]}: a sign test decides, not a t test"
    if row["difference"] is not None and math.isnan(row["difference"]):
        yield "a seed diverged, so there is no difference"
    elif over != "seeds" and 0 < row["n"] < FEWEST_DATASETS:
        count = counted(row["n"], "data set")
        yield f"{count}, and a verdict about others needs at least {FEWEST_DATASETS}"
    elif row["n"] == 1:
        yield "one seed has no interval"
    if row["collapsed"]:
        ends = " to ".join(f"{end:.1%}" for end in clopper_pearson(row["collapsed"], row["n"]))
        yield f"{row['collapsed']} of {row['n']} seeds collapsed ({ends})"
    if doubt:
        yield doubt
    if row["outlying"]:
        yield f"far from the other {over}: {over[:-1]} {row['outlying']}"
    if row["n"] and row["compared"] < row["planned"]:
        yield f"compared over {row['compared']} of {row['planned']} configurations"
