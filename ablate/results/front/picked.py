"""The text of `ablate pick`: the network and its numbers."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.base.plain_text import counted
from ablate.core.objectives import is_cost
from ablate.results.front.picking import Choice, NoChoice
from ablate.results.rendering.numbers import equal_seeds, quantity
from ablate.results.statistics.intervals import Interval


def choice_lines(choice: Choice) -> Iterator[str]:
    """Yield the lines about the network that was picked, without its settings."""
    row, seeds = choice.row, choice.row["replicates"]
    n = counted(seeds, "seed")
    if choice.stage == "confirm":
        what = f"trial {row['trial']}, which confirms search trial {row['source']} on {n}; test split"
        yield f"{choice.dataset}: {what}. Picked among {counted(choice.among, 'confirmed network')}."
    else:
        what = f"search trial {row['trial']}, {n}; validation split"
        yield f"{choice.dataset}: {what}. Picked among {counted(choice.among, 'complete network')}."
        yield "Unconfirmed: it was searched by these numbers, so it looks better than it is."
    for metric, interval in choice.metrics.items():
        yield f"  {metric} {_interval(metric, interval)}"
    for bound, _ in choice.kept:
        if bound.metric != bound.asked:
            yield f"  The bound on {bound.asked} is read on {bound.metric}, as the front is."


def missed_line(choice: NoChoice) -> str:
    """Return the line about a data set on which no network keeps the bounds."""
    if choice.row is None:
        return f"{choice.dataset}: no network is complete and keeps the constraints of the study file."
    missed = ", ".join(
        f"{bound.metric} {quantity(bound.metric, value)} (not {bound.text})" for bound, value in choice.missed
    )
    return f"{choice.dataset}: no network keeps the bounds. The nearest is trial {choice.row['trial']}: {missed}."


def _interval(metric: str, interval: Interval) -> str:
    if is_cost(metric) or interval.n < 2:
        return quantity(metric, interval.mean)
    if equal_seeds(interval.low, interval.high):
        return f"{quantity(metric, interval.mean)} ({interval.n} seeds with equal numbers)"
    low, high = quantity(metric, interval.low), quantity(metric, interval.high)
    return f"{quantity(metric, interval.mean)} (95% interval {low} to {high}, n = {interval.n})"
