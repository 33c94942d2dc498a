"""The looks at a study's results: a verdict after further seeds pays for the verdicts that were read before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ablate.base.spending import spend
from ablate.study import Study

PLAN = "plan"  # the ledger's event that notes what a comparison's file plans
ERROR = 0.05  # of false verdicts in a family, over all looks together
EXPECTED = 0.25  # looks: the first has 80% of the error, because most studies are read once
MARGINS = ("margins", "diverged")


def share_of(look: int) -> float:
    """Return the share of the 5% error that look number `look` has: .8, .089, .034, ... (see `spend`)."""
    return spend(1.0, look, expected=EXPECTED)


def plan_of(study: Study) -> dict[str, Any]:
    """Return what a `plan` event notes of a comparison's file."""
    assert study.compare is not None
    return {
        "margins": dict(study.compare.margin),
        "diverged": dict(study.compare.diverged),
        "replicates": study.replicates,
    }


def last_plan(notes: Sequence[Any]) -> dict[str, Any] | None:
    """Return what the last `plan` event notes; None if there is none."""
    plans = _plans(notes)
    return {name: value for name, value in plans[-1].payload.items() if name != "ended"} if plans else None


def late_margins(notes: Sequence[Any]) -> Iterator[Any]:
    """Yield the `plan` events that set or changed a margin after trials had ended."""
    before: list[Any] = [{}, {}]
    for note in _plans(notes):
        margins = [note.payload[name] for name in MARGINS]
        if margins != before and note.payload["ended"]:
            yield note
        before = margins


def compared_looks(notes: Sequence[Any]) -> tuple[int, ...]:
    """Return the number of seeds at each look at a comparison, ascending, one at least.

    Seeds that were added after a trial had ended begin another look, because its numbers could be read.
    """
    found = [1]
    for plan in (note.payload for note in _plans(notes)):
        if plan["replicates"] > found[-1] and plan["ended"]:
            found.append(plan["replicates"])
        else:
            found[-1] = max(found[-1], plan["replicates"])
    return tuple(found)


def searched_looks(notes: Sequence[Any], dataset: str) -> int:
    """Return the number of looks at the confirmed networks of a data set: each freeze of its front begins one."""
    return max([(note.kind, note.dataset) for note in notes].count(("frozen", dataset)), 1)


def _plans(notes: Sequence[Any]) -> list[Any]:
    return [note for note in notes if note.kind == PLAN]
