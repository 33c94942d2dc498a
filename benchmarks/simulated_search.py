"""A search on learning curves that are known beforehand: workers and their clock are simulated, nothing is trained.

A network of a recorded table is trained instead of each proposed configuration: the nearest one that the search has not
had. The searcher is told its settings and its reports.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import moocore
import numpy as np
import polars as pl
from problems import Settings, nearest, place
from recorded_curves import Curves
from searchers import Searcher, told

from ablate.core.trainable import load_trainable
from ablate.core.trial import Report, TrialState
from ablate.ledger import NewTrial
from ablate.study import Study
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.sampling.search_space import SearchSpace, decode, encode
from ablate.tuning.state.trial_progress import TrialProgress


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One trial's end: which network, after how many epochs, when, and the epochs of all trials until then."""

    network: int
    epochs: int
    complete: bool
    seconds: float
    spent: int


@dataclass
class Searched:
    """What a simulated search did, in order of time; `running` are the networks of trials that had not ended."""

    ended: list[Ended] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    epochs: int = 0

    def complete(self) -> list[int]:
        """Return the networks that were trained to the end."""
        return [each.network for each in self.ended if each.complete]

    def stopped(self) -> set[int]:
        """Return the networks that were stopped."""
        return {each.network for each in self.ended if not each.complete}


Propose = Callable[[int], int | None]


def simulate(
    curves: Curves,
    propose: Propose,
    report: Callable[[int, int, int], bool],
    *,
    workers: int,
    epochs: float = np.inf,
    seconds: float = np.inf,
) -> Searched:
    """Run trials on `workers` until nothing is proposed or a budget of epochs or seconds is spent.

    `propose(number)` returns the network of the next trial, or None. `report(number, network, epoch)` is called after
    each epoch, in order of the simulated time, and returns whether the trial continues; after the last epoch its answer
    is ignored.
    """
    found = Searched()
    clock: list[tuple[float, int, int, int]] = []  # end of the running epoch, trial number, network, epoch

    numbers = itertools.count()

    def start(now: float) -> None:
        number = next(numbers)
        network = propose(number)
        if network is not None:
            heapq.heappush(clock, (now + curves.seconds[network, 0], number, network, 1))

    for _ in range(workers):
        start(0.0)
    while clock:
        now, number, network, epoch = heapq.heappop(clock)
        if now > seconds or found.epochs >= epochs:
            found.running = [network, *(each[2] for each in clock)]
            break
        found.epochs += 1
        last = epoch == curves.epochs
        goes_on = report(number, network, epoch) and not last
        if goes_on:
            heapq.heappush(clock, (now + curves.seconds[network, epoch], number, network, epoch + 1))
            continue
        found.ended.append(Ended(network=network, epochs=epoch, complete=last, seconds=now, spent=found.epochs))
        start(now)
    return found


def volume(curves: Curves, networks: list[int], reference: tuple[float, float]) -> float:
    """Return the hypervolume of the true points of `networks` below `reference` (error, cost)."""
    return float(moocore.hypervolume(curves.points()[networks], ref=reference))


class Table:
    """The networks of a recorded table by their `settings` (Optuna's values), each of which is trained once.

    The distance is Euclidean, with numbers scaled to [0, 1] on their range (in logarithms where the range has them)
    and 1 between two different choices.
    """

    objectives, start = 2, None

    def __init__(self, study: Study, networks: pl.DataFrame, curves: Curves) -> None:
        self.curves, self.steps = curves, curves.epochs
        self.dimensions = SearchSpace.of(study.space_for(study.labels[0]))
        self.space = self.dimensions.distributions
        self.settings = [self._encoded(row) for row in networks.select(list(self.space)).to_dicts()]
        self._places = np.array([place(self.space, each) for each in self.settings])
        self.free = np.ones(len(self.settings), dtype=bool)

    def _encoded(self, row: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name, spec in self.dimensions.space.ranges.items():
            texts = [str(decode(spec, i)) for i in getattr(self.space[name], "choices", ())]
            found[name] = texts.index(str(row[name])) if texts else encode(spec, row[name])
        return found

    def nearest(self, values: Settings) -> int | None:
        """Return the nearest network that was not used and mark it as used, or None if all were."""
        return nearest(self._places, place(self.space, values), self.free) if self.free.any() else None


class Replayed(Protocol):
    """A searcher whose proposals are replaced by networks of a table."""

    def ask(self, number: int) -> Settings:
        """Return the configuration of the next trial, by Optuna's values."""

    def start(self, number: int, settings: Settings) -> None:
        """Take notice of the settings that are trained."""

    def report(self, number: int, network: int, epoch: int) -> bool:
        """Take the report of an epoch and return whether the trial continues."""


def proposals(asked: Replayed, rows: Table, spent: list[float]) -> Propose:
    """Return what `simulate` asks for a network: the nearest one to the searcher's proposal, which starts with it.

    The CPU seconds of each proposal are added to `spent`.
    """

    def propose(number: int) -> int | None:
        begun = time.process_time()
        values = asked.ask(number)
        spent.append(time.process_time() - begun)
        network = rows.nearest(values)
        if network is not None:
            asked.start(number, rows.settings[network])
        return network

    return propose


class Peer:
    """Another searcher."""

    def __init__(self, searcher: Searcher, curves: Curves) -> None:
        self.ask, self.start = searcher.ask, searcher.take
        self._searcher, self._curves = searcher, curves

    def report(self, number: int, network: int, epoch: int) -> bool:
        """Pass error and size."""
        losses = float(self._curves.errors[network, epoch - 1]), float(self._curves.cost[network])
        return self._searcher.report(number, epoch, losses)


class OfStudy:
    """`DatasetSearch` of a study file, which `ablate search` asks for suggestions and decisions, without its ledger."""

    def __init__(self, study: Study, curves: Curves) -> None:
        trainable = load_trainable(study.trainable)
        facts = {name: trainable.find_facts(study.task(name), None) for name in study.labels}
        self.curves = curves
        self._search = DatasetSearch.of(study, study.labels[0], measure=trainable.measure, facts_of=facts.__getitem__)
        self._next: NewTrial | None = None
        self.trials: dict[int, TrialProgress] = {}

    def ask(self, number: int) -> Settings:
        """Return the sampler's suggestion."""
        self._next = self._search.suggest()
        assert self._next is not None
        return self._search.suggester.dimensions.encode(self._next.config.parameters)

    def start(self, number: int, settings: Settings) -> None:
        """Begin the trial."""
        given = self._search.suggester.dimensions.decode(settings)
        is_suggested = self._next is not None and self._next.config.parameters == given
        new = self._next if is_suggested else self._search.suggest_given(given)
        if not isinstance(new, NewTrial):
            raise SystemExit(new)
        self.trials[number] = self._search.add(new)
        self.trials[number].state = TrialState.RUNNING

    def report(self, number: int, network: int, epoch: int) -> bool:
        """Decide about a report as `Search.report` does."""
        accuracy = 1 - float(self.curves.errors[network, epoch - 1])
        seconds = float(self.curves.seconds[network, :epoch].sum())
        last = epoch == self.curves.epochs
        report = Report(epoch=epoch, metrics=({"val_accuracy": accuracy},), wall_seconds=seconds, final=last)
        return told(self._search, self.trials[number], report)
