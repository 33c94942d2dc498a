"""The text of `ablate pick`: the network, its numbers, and how surely it keeps the bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ablate.base.plain_text import counted
from ablate.core.objectives import is_cost
from ablate.results.front.picking import Choice, Kept, NoChoice
from ablate.results.front.summary import compared_cells
from ablate.results.front.tables import front_table
from ablate.results.rendering.numbers import DASH, count, equal_seeds, quantity
from ablate.results.statistics.intervals import Interval
from ablate.results.trials.results import Results


def choice_lines(choice: Choice) -> Iterator[str]:
    """Yield the lines about the network that was picked, without its settings."""
    row, seeds = choice.row, choice.row["replicates"]
    n = counted(seeds, "seed")
    if choice.stage == "confirm":
        what = f"trial {row['trial']}, which confirms search trial {row['source']} on {n}; test split"
        yield f"{choice.dataset}: {what}. Picked among {_networks(choice.among, 'confirmed')}."
    else:
        what = f"search trial {row['trial']}, {n}; validation split"
        yield f"{choice.dataset}: {what}. Picked among {_networks(choice.among, 'complete')}."
        yield "Unconfirmed: it was searched by these numbers, so it looks better than it is."
    for metric, interval in choice.metrics.items():
        yield f"  {metric} {_interval(metric, interval)}"
    for kept in choice.kept:
        yield from (f"  {line}" for line in _kept_lines(kept))
    if choice.stage == "confirm" and choice.among > 1 and any(k.new_seed is not None for k in choice.kept):
        yield "  The probabilities allow for the pick among these networks, the intervals do not."


def choice_tags(results: Results, choice: Choice) -> dict[str, str]:
    """Return what is known about the network that was picked, by the name of a tag in MLflow's registry of models."""
    row = choice.row
    tags = {"ablate.picked_among": _networks(choice.among, "confirmed" if choice.stage == "confirm" else "complete")}
    tags |= {f"ablate.{metric}": _interval(metric, interval) for metric, interval in choice.metrics.items()}
    for kept in choice.kept:
        name, line = f"ablate.keeps.{kept.limit.metric}", " ".join(_kept_lines(kept)) or kept.limit.text
        tags[name] = "; ".join(filter(None, [tags.get(name), line]))
    front = front_table(results).filter(dataset=choice.dataset, trial=row["trial"]).rows(named=True)
    return {**tags, "ablate.verdict": _verdict(results, front[0]) if front else "not on the front"}


def _verdict(results: Results, row: dict[str, Any]) -> str:
    """Return a network's verdict against the best of its front: `not distinguished: −0.4 (−1.2 to 0.4)`."""
    difference, verdict, _ = compared_cells(results.study, row)
    if verdict == DASH:
        return "not compared: it is not confirmed"
    return verdict if difference == DASH else f"{verdict}: {difference}"


def missed_line(choice: NoChoice) -> str:
    """Return the line about a data set on which no network keeps the bounds."""
    if choice.row is None:
        return f"{choice.dataset}: no network is complete and keeps the constraints of the study file."
    missed = ", ".join(
        f"{bound.metric} {quantity(bound.metric, value)} (not {bound.text})" for bound, value in choice.missed
    )
    return f"{choice.dataset}: no network keeps the bounds. The nearest is trial {choice.row['trial']}: {missed}."


def _networks(among: int, word: str) -> str:
    return f"{count(among)} {word} network{'s' * (among != 1)}"


def _interval(metric: str, interval: Interval) -> str:
    if is_cost(metric) or interval.n < 2:
        return quantity(metric, interval.mean)
    if equal_seeds(interval.low, interval.high):
        return f"{quantity(metric, interval.mean)} ({interval.n} seeds with equal numbers)"
    low, high = quantity(metric, interval.low), quantity(metric, interval.high)
    return f"{quantity(metric, interval.mean)} (95% interval {low} to {high}, n = {interval.n})"


def _kept_lines(kept: Kept) -> Iterator[str]:
    read = kept.limit.metric
    if read != kept.limit.asked:
        yield f"The bound on {kept.limit.asked} is read on {read}, as the front is."
    if is_cost(read):
        return
    if kept.new_seed is None or kept.true_mean is None:
        yield f"{kept.limit.text}: one seed does not tell how surely a fresh training keeps it."
        return
    yield (
        f"{kept.limit.text}: a fresh training keeps it with probability {_share(kept.new_seed)}, the mean of many"
        f" with {_share(kept.true_mean)} (draws of the true means of all these networks)."
    )


def _share(probability: float) -> str:
    """Return a probability with two digits, never as exactly 0 or 1."""
    return "> 0.99" if probability > 0.99 else "< 0.01" if probability < 0.01 else f"{probability:.2f}"
