"""The trial that keeps given bounds and is best otherwise, as text and JSON of `ablate pick`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ablate.base.plain_text import counted, finite
from ablate.core.objectives import constraint_text, is_cost, ranked, violation
from ablate.core.trial import TrialConfig
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
    """The trial of a data set that keeps every bound and is best otherwise: its row of the pooled trials table.

    If none keeps them, it is the nearest by the sum of its violations; without a complete trial there is no row.
    `metrics` are its numbers. `bounds` has each bound with the trial's value. `among` counts the trials to choose from.
    """

    study: Study
    dataset: str
    stage: str
    among: int
    row: dict[str, Any] | None = None
    config: TrialConfig | None = None
    metrics: Mapping[str, Interval] = field(default_factory=dict)
    bounds: tuple[tuple[Bound, float], ...] = ()

    @property
    def missed(self) -> list[tuple[Bound, float]]:
        """The bounds that the trial breaks."""
        return [(bound, value) for bound, value in self.bounds if violation(bound, value) > 0]

    @property
    def is_made(self) -> bool:
        """Whether the trial keeps every bound."""
        return self.row is not None and not self.missed

    def lines(self) -> Iterator[str]:
        """Yield what is known of the trial without its settings, or one line on why there is none."""
        if not self.is_made or self.row is None:
            yield self.study.said_of(self.dataset, self._missed_text())
            return
        n, is_confirmed = counted(self.row["replicates"], "seed"), self.stage == "confirm"
        own = f"search trial {self.row['source' if is_confirmed else 'trial']}"
        test = f"trial {self.row['trial']}, which confirms {own} on {n}; test"
        what = test if is_confirmed else f"{own}, {n}; validation"
        among = counted(self.among, f"{'confirmed' if is_confirmed else 'complete'} {self.study.noun}")
        yield self.study.said_of(self.dataset, f"{what} split. Picked among {among}.")
        if not is_confirmed:
            yield "Unconfirmed: it was searched by these numbers, so it looks better than it is."
        for metric, interval in self.metrics.items():
            yield f"  {metric} {_interval(metric, interval)}"
        for bound, _ in self.bounds:
            if bound.metric != bound.asked:
                yield f"  The bound on {bound.asked} is read on {bound.metric}, as the front is."

    def _missed_text(self) -> str:
        noun = self.study.noun
        if self.row is None:
            return f"no {noun} is complete and keeps the constraints of the study file."
        missed = ", ".join(f"{b.metric} {quantity(b.metric, value)} (not {b.text})" for b, value in self.missed)
        return f"no {noun} keeps the bounds. The nearest is trial {self.row['trial']}: {missed}."

    def as_values(self) -> dict[str, Any]:
        """Return it as JSON values (docs/json.md); what is unknown is null."""
        if not self.is_made or self.row is None or self.config is None:
            near = None if self.row is None else self.row["trial"]
            missed = [{"bound": bound.text, "value": finite(value)} for bound, value in self.missed]
            return {"dataset": self.dataset, "trial": None, "nearest": near, "missed": missed}
        return {
            "dataset": self.dataset,
            "trial": self.row["trial"],
            "source": self.row["source"],
            "stage": self.stage,
            "confirmed": self.stage == "confirm",
            "among": self.among,
            "settings": self.config.settings.model_dump(mode="json"),
            "metrics": {
                name: {end: finite(getattr(own, end)) for end in ("mean", "low", "high", "n")}
                for name, own in self.metrics.items()
            },
            "bounds": [{"bound": b.text, "asked": b.asked, "value": value} for b, value in self.bounds],
        }


def choose(results: Results, dataset: str, asked: Sequence[Bound]) -> Choice:
    """Return the choice of `dataset`: the trial that keeps every bound by its mean, best on the objectives not bounded.

    It is one of the confirmed networks, or of the complete search trials if none is confirmed. The first objective
    without a bound decides, the others break ties. If all are bounded, all decide, in the order of the file.
    """
    study, found = results.study, results.on(dataset).pooled
    objectives = study.objectives
    stage = front_stage(found.trials, dataset)
    rows = candidates(found.trials, objectives, dataset=dataset, stage=stage, constraints=study.constraints)
    bounds = [replace(bound, metric=metric_at(bound.metric, stage)) for bound in asked]
    names = {bound.metric for bound in bounds}
    free = [o for o in objectives if metric_at(o.metric, stage) not in names]
    order = [*free, *(o for o in objectives if o not in free)]
    places = ranked(order, bounds, rows["state"].to_list(), column_of(rows, stage))
    made = Choice(study=study, dataset=dataset, stage=stage, among=rows.height)
    if not places:
        return made
    best = places[0]
    row = rows.row(best, named=True)
    shown = dict.fromkeys([*(metric_at(o.metric, stage) for o in objectives), *(b.metric for b in bounds)])
    last = counted_rows(found.reports)
    none = last.clear()  # costs are of the whole trial
    seeds = {metric: seed_values(none if is_cost(metric) else last, row, metric) for metric in shown}
    return replace(
        made,
        row=row,
        metrics={metric: t_interval(each, within=natural_bounds(metric)) for metric, each in seeds.items()},
        bounds=tuple((bound, float(metric_values(rows, bound.metric)[best])) for bound in bounds),
    )


def _interval(metric: str, interval: Interval) -> str:
    if is_cost(metric) or interval.n < 2:
        return quantity(metric, interval.mean)
    if equal_seeds(interval.low, interval.high):
        return f"{quantity(metric, interval.mean)} ({interval.n} seeds with equal numbers)"
    low, high = quantity(metric, interval.low), quantity(metric, interval.high)
    return f"{quantity(metric, interval.mean)} (95% interval {low} to {high}, n = {interval.n})"
