"""The design of a comparison: its columns, the rows planned in each, and its networks and parts in words."""

from __future__ import annotations

from collections import Counter

from ablate.base.plain_text import counted
from ablate.results.rendering.numbers import printable
from ablate.study import PLACEBO, VARIANT, Study

FACTORS_NAMED = 20  # parts that are listed by name


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
    lines = [f"Design: {designs}: {counted(count, 'network')} of {_parts(study)}."]
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
