"""The network that keeps given bounds and is best otherwise, and the text of `ablate pick` about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ablate.base.plain_text import counted
from ablate.core.objectives import constraint_text, is_cost, ranked, violation
from ablate.results.front.front import candidates, column_of, front_stage, metric_at, metric_values
from ablate.results.front.tables import counted_rows, seed_values
from ablate.results.rendering.numbers import equal_seeds, quantity
from ablate.results.statistics.intervals import Interval, natural_bounds, t_interval
from ablate.results.trials.results import Results
from ablate.study import Study


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A bound on a metric, as it was asked for and as it is read: on the test split of confirmed networks."""

    metric: str
    op: Literal["<=", ">="]
    bound: float
    asked: str

    @property
    def text(self) -> str:
        """Return `test_accuracy >= 0.97`."""
        return constraint_text(self)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The network that was picked on one data set: its row of the pooled trials table, and its numbers by metric.

    `kept` are the bounds with its values.
    """

    dataset: str
    row: dict[str, Any]
    stage: str
    among: int
    metrics: dict[str, Interval]
    kept: tuple[tuple[Bound, float], ...]


@dataclass(frozen=True, kw_only=True)
class NoChoice:
    """No network of a data set keeps the bounds: the nearest by the sum of its violations, None if none is complete."""

    dataset: str
    row: dict[str, Any] | None
    missed: tuple[tuple[Bound, float], ...]


def choose(results: Results, dataset: str, asked: Sequence[Bound]) -> Choice | NoChoice:
    """Return the network of `dataset` that keeps every bound by its mean and is best on the objectives not bounded.

    It is one of the confirmed networks, or of the complete search trials if none is confirmed. The first objective
    without a bound decides, the others break ties. If all are bounded, all decide, in the order of the file.
    """
    study, found = results.study, results.on(dataset).pooled
    objectives = study.objectives
    stage = front_stage(found.trials, dataset)
    rows = candidates(found.trials, objectives, dataset=dataset, stage=stage, constraints=study.constraints)
    bounds = [_at(bound, stage) for bound in asked]
    names = {bound.metric for bound in bounds}
    free = [o for o in objectives if metric_at(o.metric, stage) not in names]
    order = [*free, *(o for o in objectives if o not in free)]
    places = ranked(order, bounds, rows["state"].to_list(), column_of(rows, stage))
    if not places:
        return NoChoice(dataset=dataset, row=None, missed=())
    best = places[0]
    row = rows.row(best, named=True)
    pairs = [(bound, float(metric_values(rows, bound.metric)[best])) for bound in bounds]
    if missed := tuple((bound, value) for bound, value in pairs if violation(bound, value) > 0):
        return NoChoice(dataset=dataset, row=row, missed=missed)
    shown = dict.fromkeys([*(metric_at(o.metric, stage) for o in objectives), *(b.metric for b in bounds)])
    last = counted_rows(found.reports)
    none = last.clear()  # costs are of the whole trial
    seeds = {metric: seed_values(none if is_cost(metric) else last, row, metric) for metric in shown}
    return Choice(
        dataset=dataset,
        row=row,
        stage=stage,
        among=rows.height,
        metrics={metric: t_interval(each, within=natural_bounds(metric)) for metric, each in seeds.items()},
        kept=tuple(pairs),
    )


def _at(bound: Bound, stage: str) -> Bound:
    return replace(bound, metric=metric_at(bound.metric, stage))


def choice_lines(study: Study, choice: Choice) -> Iterator[str]:
    """Yield the lines about the trial that was picked, without its settings."""
    row, n, is_confirmed = choice.row, counted(choice.row["replicates"], "seed"), choice.stage == "confirm"
    trial = f"search trial {row['source' if is_confirmed else 'trial']}"
    what = f"trial {row['trial']}, which confirms {trial} on {n}; test" if is_confirmed else f"{trial}, {n}; validation"
    among = counted(choice.among, f"{'confirmed' if is_confirmed else 'complete'} {study.noun}")
    yield study.said_of(choice.dataset, f"{what} split. Picked among {among}.")
    if not is_confirmed:
        yield "Unconfirmed: it was searched by these numbers, so it looks better than it is."
    for metric, interval in choice.metrics.items():
        yield f"  {metric} {_interval(metric, interval)}"
    for bound, _ in choice.kept:
        if bound.metric != bound.asked:
            yield f"  The bound on {bound.asked} is read on {bound.metric}, as the front is."


def missed_line(study: Study, choice: NoChoice) -> str:
    """Return the line about a data set on which no trial keeps the bounds."""
    if choice.row is None:
        none = f"no {study.noun} is complete and keeps the constraints of the study file."
        return study.said_of(choice.dataset, none)
    missed = ", ".join(
        f"{bound.metric} {quantity(bound.metric, value)} (not {bound.text})" for bound, value in choice.missed
    )
    nearest = f"The nearest is trial {choice.row['trial']}: {missed}."
    return study.said_of(choice.dataset, f"no {study.noun} keeps the bounds. {nearest}")


def _interval(metric: str, interval: Interval) -> str:
    if is_cost(metric) or interval.n < 2:
        return quantity(metric, interval.mean)
    if equal_seeds(interval.low, interval.high):
        return f"{quantity(metric, interval.mean)} ({interval.n} seeds with equal numbers)"
    low, high = quantity(metric, interval.low), quantity(metric, interval.high)
    return f"{quantity(metric, interval.mean)} (95% interval {low} to {high}, n = {interval.n})"
