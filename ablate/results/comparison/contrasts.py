"""Which rows of a comparison are set against which: every variant, parts alone, pairs of parts, twins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ablate.study import Study
from ablate.study.design import REMOVED, Arm, arm_name, without

Kind = Literal["variant", "placebo", "added", "interaction", "equal size"]
JUDGED: tuple[Kind, ...] = ("variant", "placebo")  # kinds that are set against the baseline


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """The sum of the rows `plus` less the sum of the rows `minus`, over the seeds and configurations that all have."""

    kind: Kind
    name: str
    plus: tuple[str, ...]
    minus: tuple[str, ...]


def contrasts(study: Study) -> Iterator[Contrast]:
    """Yield each row against the baseline in the file's order, then what the trained combinations of parts say.

    `added`: the network with one part alone less the bare one. `equal size`: the twin, which has the part and is
    narrowed, less the network without the part. `interaction`: how much less one change costs where the other one is
    made too; below zero, the two parts do the same in part.
    """
    baseline = study.compared.baseline
    for row in study.rows:
        if row.name != baseline:
            kind: Kind = "placebo" if study.is_placebo(row.name) else "variant"
            yield Contrast(kind=kind, name=row.name, plus=(row.name,), minus=(baseline,))
    if study.compare is None or not study.parts:
        return
    listed, names = set(study.arms), [factor.name for factor in study.factors if factor.removable]

    def row_of(arm: Arm) -> str:
        return arm_name(study.factors, arm)

    for name in names if len(names) > 1 else ():
        alone = without(other for other in names if other != name)
        if {alone, without(names)} <= listed:
            yield Contrast(kind="added", name=name, plus=(row_of(alone),), minus=(row_of(without(names)),))
    changes = [((factor.name, level),) for factor in study.factors for level in factor.levels]
    for one, two in itertools.combinations(changes, 2):
        if one[0][0] != two[0][0] and {(), one, two, one + two} <= listed:
            name = ":".join(part if level == REMOVED else f"{part}-{level}" for part, level in one + two)
            plus, minus = (row_of(()), row_of(one + two)), (row_of(one), row_of(two))
            yield Contrast(kind="interaction", name=name, plus=plus, minus=minus)
    for twin, reduced in study.twins.items():
        part = next(name for name in names if row_of(without([name])) == reduced)
        yield Contrast(kind="equal size", name=part, plus=(twin,), minus=(reduced,))
