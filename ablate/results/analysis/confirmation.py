"""The confirmation of a data set: the states of its frozen configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ablate.core.trial import TrialState
from ablate.results.analysis.pooling import NETWORK


@dataclass(frozen=True, kw_only=True)
class Confirmations:
    """The frozen configurations of one data set, each by the number of its search trial, in ascending order.

    `confirmed` have all of their seeds, `failed` a trial in state FAIL, and `unfinished` a trial that has not ended.
    Each configuration is in one of the three. `later` is the number of search trials that began after the last freeze
    of the front, in an extended search. `racing` says that a round of further seeds is under way or due.
    """

    confirmed: tuple[int, ...]
    failed: tuple[int, ...]
    unfinished: tuple[int, ...]
    later: int = 0
    racing: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the confirmation is incomplete: a trial of either stage is still expected."""
        return bool(self.unfinished or self.later or self.racing)

    @property
    def ended(self) -> int:
        """The number of configurations whose confirmation has ended, in any state."""
        return len(self.confirmed) + len(self.failed)

    @property
    def frozen(self) -> int:
        """The number of configurations that were frozen."""
        return self.ended + len(self.unfinished)


def confirmations(trials: pl.DataFrame, dataset: str, notes: Sequence[Any] = ()) -> Confirmations:
    """Return the confirmations of `dataset`; the trials of a freeze are committed together (docs/ledger.md).

    `trials` is the trials table (docs/tables.md), pooled or not; `notes` are the ledger's events (kind, dataset,
    payload).
    """
    own = trials.filter(pl.col("dataset") == dataset, pl.col("stage") == "confirm")
    states: dict[int, set[str]] = {}
    for network, state in own.select(NETWORK, "state").iter_rows():
        states.setdefault(network, set()).add(state)
    groups: dict[str, list[int]] = {"confirmed": [], "failed": [], "unfinished": []}
    for network in sorted(states):
        if not all(TrialState(state).finished for state in states[network]):
            groups["unfinished"].append(network)
        else:
            groups["failed" if TrialState.FAIL in states[network] else "confirmed"].append(network)
    found = {name: tuple(members) for name, members in groups.items()}
    return Confirmations(
        **found,
        later=_later(trials, dataset, notes) if states else 0,
        racing=bool(states) and _is_racing(dataset, notes),
    )


def _is_racing(dataset: str, notes: Sequence[Any]) -> bool:
    """Return whether the last freeze or round of further seeds asks for another look (docs/ledger.md)."""
    steps = [note for note in notes if note.kind in ("frozen", "raced") and note.dataset == dataset]
    if not steps:
        return False
    payload = steps[-1].payload
    return bool(payload["given"]) if steps[-1].kind == "raced" else "budget" in payload


def _later(trials: pl.DataFrame, dataset: str, notes: Sequence[Any]) -> int:
    """Return the number of search trials that began after the last freeze; 0 without a freeze event."""
    frozen_at = [int(n.payload["search_trials"]) for n in notes if n.kind == "frozen" and n.dataset == dataset]
    searched = trials.filter(pl.col("dataset") == dataset, pl.col("stage") == "search").height
    return max(searched - frozen_at[-1], 0) if frozen_at else 0
