"""What the paired differences of each contrast of a comparison establish, tested together over a metric's rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ablate.core.objectives import given_for, is_higher_better
from ablate.results.comparison.design import JUDGED, Contrast, columns, contrasts, planned_rows
from ablate.results.comparison.runs import Measured, Paired, Runs, pair
from ablate.results.comparison.verdicts import (
    BEYOND_GAIN,
    BEYOND_LOSS,
    BY_MARGIN,
    CLAIMS,
    EQUIVALENT,
    HARMFUL,
    INCONCLUSIVE,
    NON_INFERIOR,
    SUPERIOR,
    TRUSTED,
    Differences,
    adjust,
    claims_of,
    margin_p,
    p_two_sided,
    refuted_by,
    settled,
    smallest_margin_now,
    spread,
)
from ablate.results.statistics.intervals import clopper_pearson, outlying, seeds_needed, smallest_effect, t_interval
from ablate.results.statistics.looks import ERROR, share_of
from ablate.results.statistics.skewness import Doubts, collapsed_seeds, doubts
from ablate.study import Study

FEWEST = 2  # differences that a test needs
DENIED = "the seeds are skewed, where a t test finds too much: a second test does not confirm what it finds"
ALIKE = "all seeds have the same numbers, so they are one run"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A contrast of one metric in one column, and what its differences establish.

    `margin` is that of the metric, None for a kind that is not set against the baseline. `look` counts the looks at
    the results so far.
    `collapsed` seeds diverged or are far worse than the others, None if that is not known; `outlying` are seeds far
    from the others. `p` is two-sided, `p_adjusted` that of Holm over `family` tests and divided by the look's share.
    `against` has the p-value of each claim against the margin. `denied`: a second test does not confirm what t finds.
    `margin_now` is the margin above which the row would be non-inferior now, `seeds_needed` those that find an equal
    row non-inferior with 80% power, `detectable` the difference found with 80% power.
    """

    contrast: Contrast
    metric: str
    column: str
    pair: Paired
    planned: int
    higher: bool | None
    margin: float | None
    look: int
    collapsed: int | None = None
    outlying: tuple[int, ...] = ()
    p: float | None = None
    p_adjusted: float | None = None
    family: int | None = None
    against: Mapping[str, float] = field(default_factory=dict)
    denied: bool = False
    margin_now: float | None = None
    seeds_needed: int | None = None
    detectable: float | None = None

    @cached_property
    def differences(self) -> Differences:
        """The differences by seed, [n]."""
        return settled(self.pair)

    @property
    def gains(self) -> Differences:
        """The differences in the better direction, [n]."""
        return self.differences if self.higher else -self.differences

    @property
    def tested(self) -> bool:
        """Whether there is something to test: two differences or more, all finite, of runs that differ."""
        return len(self.differences) >= FEWEST and bool(np.isfinite(self.differences).all()) and not self.pair.alike

    @property
    def sd(self) -> float | None:
        """The standard deviation of the differences; None if they are not tested."""
        return spread(self.differences) if self.tested else None

    @property
    def claims(self) -> tuple[str, ...] | None:
        """The claims that hold; None of a placebo, without a margin and without a difference."""
        if self.contrast.kind != "variant" or self.margin is None or not len(self.differences):
            return None
        if self.p is None or self.p_adjusted is None:
            return ()
        return claims_of(float(self.gains.mean()), self.p_adjusted, self.against)

    def values(self) -> dict[str, Any]:
        """Return the row's values by column of `comparison.csv`."""
        differences, claims = self.differences, self.claims
        levels = {"": 0.95, "margin_": 1 - 2 * ERROR * share_of(self.look)}
        spans = {prefix: t_interval(differences.tolist(), level=level) for prefix, level in levels.items()}
        ends = {
            f"{kind}{end}": getattr(span, end) if self.tested else None
            for kind, span in spans.items()
            for end in ("low", "high")
        }
        gains = self.gains
        wins = float(np.mean((gains > 0) + 0.5 * (gains == 0))) if self.tested and self.higher is not None else None
        return {
            "margin": self.margin,
            "better": None if self.higher is None else "higher" if self.higher else "lower",
            "verdict": next(iter(claims), INCONCLUSIVE) if claims is not None else None,
            "claims": ", ".join(claims) if claims is not None else None,
            "refuted": ", ".join(refuted_by(claims, self.against)) if claims is not None else None,
            "difference": spans[""].mean if len(differences) else None,
            **ends,
            **self.pair.for_other_samples(self.metric),
            "n": len(differences),
            "compared": self.pair.compared,
            "correlation": self.pair.correlation,
            "sd": self.sd,
            "wins": wins,
            "outlying": ", ".join(map(str, self.outlying)),
            "remark": "; ".join(self._remarks(claims or ())),
            **{name: getattr(self, name) for name in FIELDS},
        }

    def _remarks(self, claims: Sequence[str]) -> Iterator[str]:
        """Yield what a reader needs beside the numbers."""
        n, first = len(self.differences), next(iter(claims), INCONCLUSIVE)
        if HARMFUL in claims and first != HARMFUL:
            yield "a loss is established, and it is smaller than the margin"
        if BY_MARGIN in claims:
            yield "a gain of at least the margin is established"
        elif SUPERIOR in claims and EQUIVALENT in claims:
            yield "the gain is smaller than the margin"
        if self.sd == 0:
            yield "a sign test decides, not a t test"
        if n and not np.isfinite(self.differences).all():
            yield "a seed diverged, so there is no difference"
        elif n == 1:
            yield "one seed has no interval"
        if self.collapsed:
            ends = " to ".join(f"{end:.1%}" for end in clopper_pearson(self.collapsed, n))
            yield f"{self.collapsed} of {n} seeds collapsed ({ends})"
        if self.denied or self.pair.alike:
            yield DENIED if self.denied else ALIKE
        if self.outlying:
            yield f"far from the other seeds: seed {', '.join(map(str, self.outlying))}"
        if n and self.pair.compared < self.planned:
            yield f"compared over {self.pair.compared} of {self.planned} configurations"


FIELDS = ("look", "collapsed", "p", "p_adjusted", "family", "margin_now", "seeds_needed", "detectable")


def judged(study: Study, runs: Runs, measured: Measured, look: int) -> list[Judged]:
    """Return the contrasts of a metric, column by column.

    Differences are over shared seeds and configurations. Holm's family is every variant of the metric; each other kind
    is another family. A placebo makes no claim and belongs to no family. A row without a test counts with p = 1.
    """
    found = list(_paired(study, runs, measured, look))
    rows = [row for row in found if row.contrast.kind in JUDGED]
    known = [_with_seeds(row, len(rows)) for row in rows]
    variants = [row for row in known if row.contrast.kind == "variant"]
    familywise = study.compared.familywise
    tests = len(variants) if familywise else 1
    placebos = [row for row in known if row.contrast.kind == "placebo"]
    done = _adjusted(_tested(variants, second=True, tests=tests), all_claims=familywise)
    done += _tested(placebos, second=False, tests=tests)
    for kind in dict.fromkeys(row.contrast.kind for row in found if row.contrast.kind not in JUDGED):
        own = [row for row in found if row.contrast.kind == kind]
        done += _adjusted(_tested(own, second=False, tests=1), all_claims=False)
    place = {(row.column, row.contrast): row for row in done}
    return [place[row.column, row.contrast] for row in found]


def judge_alone(pair: Paired, metric: str, *, higher: bool, margin: float | None) -> Judged:
    """Return what one pair establishes that belongs to no study: the first look, the only row of its family."""
    contrast = Contrast(kind="variant", name="", plus=(), minus=())
    row = Judged(contrast=contrast, metric=metric, column="", pair=pair, planned=pair.compared, higher=higher,
                 margin=margin, look=1)  # fmt: skip
    return _adjusted(_tested([_with_seeds(row, 1)], second=True, tests=1), all_claims=False)[0]


def _paired(study: Study, runs: Runs, measured: Measured, look: int) -> Iterator[Judged]:
    """Yield the contrasts whose rows all run in a column."""
    metric, planned = measured.metric, planned_rows(study)
    higher, margin = is_higher_better(metric, study.objectives), given_for(study.compared.margin, metric)
    for column, datasets in columns(study).items():
        count = {row.name: sum(planned[label][row.name] for label in datasets) for row in study.rows}
        usable = {name: measured.usable(runs.of(datasets, name)) for name, there in count.items() if there}
        for each in contrasts(study):
            needed = each.plus if each.kind in JUDGED else (*each.plus, *each.minus)  # the baseline may not run here
            if usable.keys() >= {*needed}:
                plus, minus = ([usable.get(name, {}) for name in side] for side in (each.plus, each.minus))
                yield Judged(
                    contrast=each,
                    metric=metric,
                    column=column,
                    pair=pair(runs, measured, plus, minus),
                    planned=count[each.plus[0]],
                    higher=higher,
                    margin=margin if each.kind in JUDGED else None,
                    look=look,
                )


def _with_seeds(row: Judged, rows: int) -> Judged:
    """Return one of `rows` rows with the seeds that are far from the others, and how many collapsed."""
    far = tuple(row.pair.seeds[place] for place in outlying("", row.differences.tolist(), rows=rows))
    collapsed = None
    if row.tested and row.higher is not None:
        lost = np.flatnonzero(row.pair.lost).tolist()
        collapsed = len({*lost, *collapsed_seeds(row.gains, row.margin, rows)})
    return replace(row, outlying=far, collapsed=collapsed)


def _tested(rows: Sequence[Judged], *, second: bool, tests: int) -> list[Judged]:
    """Return rows of one kind with their p-values, whether a `second` test denies what t finds, and what would decide.

    `tests` are those over which non-inferiority is corrected: a margin and seeds are at the level of Holm's first step.
    """
    tested = [row for row in rows if row.tested]
    found = doubts([row.gains for row in tested], [bool(row.collapsed) for row in tested])
    by_row = dict(zip(map(id, tested), found, strict=True))
    return [_with_p(row, by_row[id(row)] if second else TRUSTED, tests=tests) if row.tested else row for row in rows]


def _with_p(row: Judged, doubt: Doubts, *, tests: int) -> Judged:
    def p_values(doubt: Doubts) -> dict[str, float]:
        against = {} if row.margin is None else margin_p(row.gains, row.margin, doubt)
        return {"p": p_two_sided(row.gains, doubt)} | against

    alone, both = p_values(TRUSTED), p_values(doubt)
    denied = any(alone[name] < ERROR * share_of(row.look) <= p for name, p in both.items())
    level = 1 - 2 * ERROR * share_of(row.look + 1) / tests  # further seeds are another look
    needed = None
    if row.margin and row.sd:
        needed = seeds_needed(row.margin / row.sd, level=level)
    elif row.margin and row.gains[0] > -row.margin:
        needed = math.floor(math.log2(2 / (1 - level))) + 1  # of equal differences: the first 2^-n below the level
    return replace(
        row,
        p=both.pop("p"),
        against=both,
        denied=denied,
        margin_now=smallest_margin_now(row.gains, doubt, look=row.look, tests=tests),
        seeds_needed=None if needed is None else max(needed, FEWEST),
    )


def _adjusted(family: Sequence[Judged], *, all_claims: bool) -> list[Judged]:
    """Return a family with p-values that are adjusted by Holm and for the look, and what their level detects."""
    look = family[0].look if family else 1
    by_claim = {}
    for claim in (NON_INFERIOR, EQUIVALENT, BY_MARGIN, BEYOND_GAIN, BEYOND_LOSS):
        whole = claim == BY_MARGIN or (all_claims and claim in CLAIMS)
        by_claim[claim] = adjust([row.against.get(claim) for row in family], look=look, family=whole)
    found = []
    for place, (row, p) in enumerate(zip(family, adjust([row.p for row in family], look=look), strict=True)):
        effect = smallest_effect(len(row.differences), level=1 - ERROR * share_of(look) / len(family))
        against = {claim: values[place] for claim, values in by_claim.items()} if row.against else {}
        found.append(
            replace(
                row,
                p_adjusted=None if row.p is None else p,
                family=len(family),
                detectable=effect * row.sd if row.sd else None,
                against=against,
            )
        )
    return found
