"""Many tests: Holm's adjustment, and looks, each of which pays for the verdicts that were read before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ablate.base.spending import spend
from ablate.ledger import EventRecord
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
    return {
        "margins": dict(study.compared.margin),
        "diverged": dict(study.compared.diverged),
        "replicates": study.replicates,
    }


def last_plan(events: Sequence[EventRecord]) -> dict[str, Any] | None:
    """Return what the last `plan` event notes; None if there is none."""
    plans = _plans(events)
    return {name: value for name, value in plans[-1].payload.items() if name != "ended"} if plans else None


def late_margins(events: Sequence[EventRecord]) -> Iterator[EventRecord]:
    """Yield the `plan` events that set or changed a margin after trials had ended."""
    before: list[Any] = [{}, {}]
    for event in _plans(events):
        margins = [event.payload[name] for name in MARGINS]
        if margins != before and event.payload["ended"]:
            yield event
        before = margins


def compared_looks(events: Sequence[EventRecord]) -> tuple[int, ...]:
    """Return the number of seeds at each look at a comparison, ascending, one at least.

    Seeds that were added after a trial had ended begin another look, because its numbers could be read.
    """
    found = [1]
    for plan in (event.payload for event in _plans(events)):
        if plan["replicates"] > found[-1] and plan["ended"]:
            found.append(plan["replicates"])
        else:
            found[-1] = max(found[-1], plan["replicates"])
    return tuple(found)


def _plans(events: Sequence[EventRecord]) -> list[EventRecord]:
    return [event for event in events if event.kind == PLAN]


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values (Scandinavian Journal of Statistics 1979), in the given order.

    They equal those of statsmodels' `multipletests`, which collects garbage at every call and so takes 60 ms.
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(steps, 1.0)
    return [float(each) for each in adjusted]
