"""The power part of a plan as text, 80 columns wide."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from ablate.base.plain_text import counted
from ablate.core.objectives import is_share
from ablate.driver.plan import Plan
from ablate.driver.planned_power import PlannedPower

WIDTH = 80


def power_lines(plan: Plan) -> list[str]:
    """Return what the planned seeds can show, wrapped at 80 columns; nothing for a search without confirmation."""
    if not plan.power:
        return []
    return [line for text in _texts(plan) for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]


def _texts(plan: Plan) -> Iterator[str]:
    first = plan.power[0]
    seeds = counted(first.seeds, "seed")
    if math.isinf(first.smallest_in_sd):
        yield f"Power: {seeds} per arm can show no difference, because one seed has no interval."
        return
    shared = f", shared by {first.tests} comparisons" if first.tests > 1 else ""
    yield (
        f"Power: {seeds} show a difference of {first.smallest_in_sd:.2g} sd or more between paired runs (80% power"
        f"{shared}).{'' if plan.earlier else ' --from STUDY reads the sd from an earlier study, such as a pilot.'}"
    )
    if plan.earlier is not None:
        yield from (_of_metric(plan.earlier.name, part) for part in plan.power)


def _of_metric(earlier: str, part: PlannedPower) -> str:
    if part.spread is None or part.smallest is None:
        return f"{part.metric}: study {earlier} has no paired differences of it."
    text = (
        f"{part.metric}: the sd is {_amount(part.metric, part.spread.sd)} in study {earlier} (below "
        f"{_amount(part.metric, part.spread.upper)} at 95% confidence), so {counted(part.seeds, 'seed')} show "
        f"{_amount(part.metric, part.smallest)} or more"
    )
    if part.margin is None:
        return f"{text}."
    needed = "more than 1,000 seeds" if part.needed is None else counted(part.needed, "seed")
    time = "" if part.hours is None else f", about {part.hours:.2g} hours for all arms one after another"
    return f"{text}; a margin of {_amount(part.metric, part.margin)} needs {needed}{time}."


def _amount(metric: str, value: float) -> str:
    if not is_share(metric):
        return f"{value:.3g}"
    points = f"{100 * value:.2g}"
    return f"{points} point{'s' * (points != '1')}"
