"""The design of a comparison: columns, rows planned in each, which rows are set against which, and parts in words."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ablate.base.plain_text import counted
from ablate.results.rendering.numbers import printable
from ablate.study import PLACEBO, VARIANT, Study
from ablate.study.design import REMOVED, Arm, arm_name, without

FACTORS_NAMED = 20  # parts that are listed by name
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


def columns(study: Study) -> dict[str, tuple[str, ...]]:
    """Return the columns of the comparison with the running data sets of each; a column without any is excluded."""
    asked = study.compared.columns or {label: (label,) for label in study.datasets}
    running = {name: tuple(label for label in labels if label in study.labels) for name, labels in asked.items()}
    return {name: labels for name, labels in running.items() if labels}


def planned_rows(study: Study) -> dict[str, Counter[str]]:
    """Return by data set how many configurations of each row are planned."""
    return {label: Counter(str(row[VARIANT]) for row in study.design(label)) for label in study.labels}


def design_lines(study: Study) -> list[str]:
    """Return the design as sentences; none for a comparison of `variants`."""
    if study.compare is None or not study.parts:
        return []
    count, designs = len(study.arms), " and ".join(study.compare.design)
    lines = [f"Design: {designs}: {counted(count, study.noun)} of {_parts(study)}."]
    if study.twins:
        one = "a twin of the size of each" if len(study.twins) > 1 else "a twin of the size of"
        lines.append(f"Further: {one} {_named(list(study.twins.values()))}.")
    if study.compare.placebo:
        lines.append(f"Further: {PLACEBO}, {printable(study.compare.baseline)} again on other seeds.")
    return lines


def _parts(study: Study) -> str:
    removed = [factor.name for factor in study.factors if factor.removable]
    forms = [f for f in study.factors if not f.removable]
    texts = [f"{counted(len(removed), 'part')} to remove ({_named(removed)})"] if removed else []
    texts += [f"{printable(f.name)} in {1 + len(f.levels)} forms (as in complete, {_named(f.levels)})" for f in forms]
    return "; ".join(texts)


def _named(names: list[str] | tuple[str, ...]) -> str:
    listed = ", ".join(map(printable, names[:FACTORS_NAMED]))
    return listed + (f" and {len(names) - FACTORS_NAMED} more" if len(names) > FACTORS_NAMED else "")
