"""The results of a study: its tables and events, read once, and what is computed of them, once each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

import polars as pl

from ablate.ledger import EventRecord, Snapshot
from ablate.results.trials.pooling import pooled
from ablate.results.trials.tables import REPORT_COLUMNS, reports_table, trials_table
from ablate.study import Study

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Results:
    """What a study has measured: the tables of its trials and reports (docs/tables.md), and the ledger's events.

    `campaign` is what a campaign's page shows (`ablate.studies.report.campaign_values`).
    """

    study: Study
    trials: pl.DataFrame
    reports: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=REPORT_COLUMNS))
    events: Sequence[EventRecord] = ()
    campaign: Mapping[str, Any] | None = None
    known: dict[Callable[[Results], Any], Any] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of(study: Study, snapshot: Snapshot) -> Results:
        """Return the results that a ledger holds."""
        return Results(study, trials_table(snapshot), reports_table(snapshot), snapshot.events)

    @cached_property
    def pooled(self) -> Results:
        """The same with the seeds of each network pooled (`pooled`)."""
        return Results(self.study, *pooled(self.trials, self.reports), self.events)

    def events_of(self, dataset: str, kind: str) -> list[EventRecord]:
        """Return the events of a kind on a data set, in the order of their commits."""
        return [event for event in self.events if event.kind == kind and event.dataset == dataset]

    def on(self, dataset: str) -> Results:
        """Return the results on one data set, with all events."""
        trials, reports = (table.filter(pl.col("dataset") == dataset) for table in (self.trials, self.reports))
        return Results(self.study, trials, reports, self.events)


def once(compute: Callable[[Results], T]) -> Callable[[Results], T]:
    """Return a function that computes something of results once, and then returns the same value again."""

    @wraps(compute)
    def computed(results: Results) -> T:
        if compute not in results.known:
            results.known[compute] = compute(results)
        found: T = results.known[compute]
        return found

    return computed
