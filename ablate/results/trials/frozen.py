"""The confirmation of a data set: the states of its frozen configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from ablate.core.trial import TrialState
from ablate.ledger.requests import ANSWERED
from ablate.results.trials.pooling import NETWORK
from ablate.results.trials.results import Results


@dataclass(frozen=True, kw_only=True)
class Confirmations:
    """How many configurations of one data set were `frozen`, and how many of them have `ended`, in any state.

    `later` is the number of search trials that began after the last freeze of the front, in an extended search.
    """

    frozen: int
    ended: int
    later: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the confirmation is incomplete: a trial of either stage is still expected."""
        return self.ended < self.frozen or self.later > 0


def users_answer(results: Results, dataset: str) -> Mapping[str, Any] | None:
    """Return what the ledger says of the user's settings: the `trial` that has them, or why they were `refused`.

    They are the first of those that the study file asks for (`RecordedSearch.is_users`).
    """
    answers = (event.payload for event in results.events_of(dataset, ANSWERED))
    return next((payload for payload in answers if payload.get("start") == 0), None)


def confirmations(results: Results, dataset: str) -> Confirmations:
    """Return the confirmations of `dataset`; the trials of a freeze are committed together (docs/ledger.md)."""
    own = results.trials.filter(pl.col("dataset") == dataset, pl.col("stage") == "confirm")
    states: dict[int, set[str]] = {}
    for network, state in own.select(NETWORK, "state").iter_rows():
        states.setdefault(network, set()).add(state)
    frozen = [int(event.payload["search_trials"]) for event in results.events_of(dataset, "frozen")] if states else []
    searched = results.trials.filter(pl.col("dataset") == dataset, pl.col("stage") == "search").height
    return Confirmations(
        frozen=len(states),
        ended=sum(all(TrialState(state).finished for state in each) for each in states.values()),
        later=max(searched - frozen[-1], 0) if frozen else 0,
    )
