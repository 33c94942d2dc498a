"""The power part of a plan as text, 80 columns wide."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from ablate.core.objectives import is_share
from ablate.driver.plan import Plan
from ablate.driver.planned_power import PlannedPower, SeedsNeeded
from ablate.results.comparison.power import ALPHA

WIDTH = 80


def power_lines(plan: Plan) -> list[str]:
    """Return what the planned seeds can show, wrapped at 80 columns; nothing for a search without confirmation."""
    if not plan.power:
        return []
    return [line for text in _texts(plan) for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]


def _texts(plan: Plan) -> Iterator[str]:
    first = plan.power[0]
    seeds = f"{first.seeds} seed{'s' * (first.seeds != 1)}"
    stage = "Power" if plan.study.compare is not None else "Power of the confirmation"
    if math.isinf(first.smallest_in_sd):
        yield f"{stage}: {seeds} per arm can show no difference, because one seed has no interval."
        return
    yield (
        f"{stage}: {seeds} show a difference of {first.smallest_in_sd:.2g} sd(d) or more (paired t test, 80% power, "
        f"{ALPHA:.2g} two-sided at the first look, {_family(first.tests)}). "
        "sd(d) is the spread over seeds of paired differences."
    )
    if plan.earlier is None:
        yield "--from STUDY reads sd(d) from an earlier study, such as a pilot with a few seeds."
    for part in plan.power:
        yield from _of_metric(plan, part)


def _family(tests: int) -> str:
    return "one comparison" if tests < 2 else f"shared by {tests} comparisons as in Holm's first step"


def _of_metric(plan: Plan, part: PlannedPower) -> Iterator[str]:
    if plan.earlier is not None and part.spread is None:
        yield f"{part.metric}: study {plan.earlier.name} has no paired differences of it."
    if part.spread is not None and part.smallest is not None and plan.earlier is not None:
        yield (
            f"{part.metric}: sd(d) is {_amount(part.metric, part.spread.sd)} in study {plan.earlier.name} "
            f"({part.spread.freedom} degrees of freedom; below {_amount(part.metric, part.spread.upper)} at 95% "
            f"confidence), so {part.seeds} seeds show {_amount(part.metric, part.smallest)} or more."
        )
    if part.margin is not None and part.needed:
        yield f"{part.metric}: margin {_amount(part.metric, part.margin)}, 80% power if the true difference is 0."
        yield from (_need(plan, part, needed) for needed in part.needed)


def _need(plan: Plan, part: PlannedPower, needed: SeedsNeeded) -> str:
    if part.spread is None:
        widest = _amount(part.metric, needed.widest_sd)
        return f"  {needed.question}: {part.seeds} seeds are enough if sd(d) is at most {widest}."
    if needed.seeds is None:
        return f"  {needed.question}: more than 10,000 seeds."
    time = "" if needed.hours is None else f", about {needed.hours:.2g} hours for all arms one after another"
    return f"  {needed.question}: {needed.seeds} seeds{time}."


def _amount(metric: str, value: float) -> str:
    if not is_share(metric):
        return f"{value:.3g}"
    points = f"{100 * value:.2g}"
    return f"{points} point{'s' * (points != '1')}"
