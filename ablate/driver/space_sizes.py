"""Counts the networks of a search's space, once and at its end, and notes which settings decide their size."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ablate.base.errors import AblateError
from ablate.base.randomness import stream
from ablate.core.config import DatasetFacts, NoSize, Size, TrainableSettings
from ablate.core.objectives import is_size
from ablate.core.registry import TRAINABLES
from ablate.core.trainable import Trainable
from ablate.core.trial import TrialState
from ablate.ledger import Ledger, StudyWriter, TrialRecord
from ablate.results.importance.size_shares import SIZE_SHARES, Pair, cell_shares, drawn_shares
from ablate.study import Study
from ablate.study.space import IntRange, Range
from ablate.tuning.sampling.search_space import decode, inner_at_share

SECONDS, MOST_SECONDS, PART = 20.0, 120.0, 0.01  # for counting; between them, this part of the time of the study
QUIET_SECONDS = 2.0  # after these the user is told what takes time
QUICK_SECONDS = 0.5  # a message that takes less is followed by one of twice as many networks
CELLS = 4096  # combinations that are counted all; of more, draws are
TRIED, DRAWN = 8, 500  # pairs of networks that show whether a setting changes a size, and draws to find them
TIMED = 8  # networks by which the time for all is judged
POINTS, LEAST_ROUNDS, ROUNDS = 32, 4, 16  # draws
TOO_FEW = "{:.0f} s for counting networks are too few for this space"
PRECISE, LARGEST_ERROR = 0.01, 0.05  # standard errors at which drawing ends, and above which nothing is said
Values = NDArray[np.float64]


class _UncountedError(Exception):
    """Why the space cannot be counted, in words."""


class _TooFewSecondsError(_UncountedError):
    """The time is up."""


def note_size_shares(
    writer: StudyWriter,
    ledger: Ledger,
    study: Study,
    *,
    trainable: Trainable,
    facts: Mapping[str, DatasetFacts],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Write one event with the shares for each data set that has none, if a size is an objective of a search."""
    metrics = [each.metric for each in study.objectives if is_size(each.metric)]
    if study.compare is not None or not metrics:
        return
    noted = {event.dataset for event in ledger.events(study.name) if event.kind == SIZE_SHARES}
    seconds = min(max(SECONDS, PART * writer.active_seconds()), MOST_SECONDS)
    for dataset in study.labels:
        if dataset not in noted:
            sizes = SpaceSizes(
                study=study,
                dataset=dataset,
                metrics=metrics,
                trainable=trainable,
                facts=facts[dataset],
                say=say,
                clock=clock,
                seconds=seconds / len(study.labels),
            )
            writer.note(SIZE_SHARES, dataset, sizes.shares(ledger.trials(study.name, dataset)))


@dataclass(kw_only=True)
class SpaceSizes:
    """The networks of one data set's space, each counted once, within `seconds` of `clock`."""

    study: Study
    dataset: str
    metrics: Sequence[str]
    trainable: Trainable
    facts: DatasetFacts
    say: Callable[[str], None]
    clock: Callable[[], float]
    seconds: float
    _begun: float = 0.0
    _told: bool = False
    _known: dict[str, Values | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._space = self.study.space_for(self.dataset)
        self._ranges = self._space.ranges

    def shares(self, trials: Iterable[TrialRecord]) -> dict[str, Any]:
        """Return the payload of the event: first-order and total share of each setting by metric, or a reason."""
        self._begun = self.clock()
        shares: dict[str, dict[str, Pair]] = {}
        error, networks = 0.0, 0
        try:
            self._compare(trials)
            names = self._entering()
            found, networks, error = self._exact(names) or self._drawn(names)
            for metric, own in zip(self.metrics, found, strict=True):
                shares[metric] = {name: pair for name, pair in zip(names, own, strict=True) if pair[1] > 0}
            reason = "" if all(shares.values()) else "all networks of the space have the same size"
        except (_UncountedError, AblateError) as why:
            reason = str(why)
        return {"shares": shares, "networks": networks, "error": error, "reason": reason}

    def _compare(self, trials: Iterable[TrialRecord]) -> None:
        """Raise if the networks that are counted are not those that were trained: a function may report what it likes.

        Three trials are compared.
        """
        done = (trial for trial in trials if trial.state is TrialState.COMPLETE)
        for trial in itertools.islice(done, 3):
            stored = [trial.size.get(metric) or getattr(trial, metric, None) or 0 for metric in self.metrics]
            [counted] = self._count([trial.config.settings])
            if counted is None or not np.allclose(_logarithms(stored), counted, rtol=0, atol=1e-9):
                raise _UncountedError("the trials report other sizes than their networks have before training")

    def _entering(self) -> list[str]:
        """Return the settings that may change a size, after those that their conditions name.

        A finite axis of the built-in networks may. Other settings of the network are tried.
        """
        known = self.study.trainable in TRAINABLES.names()
        asked = [name for name, spec in self._ranges.items() if self.study.decides_size(name) and spec.count() != 1]
        finite = {name for name in asked if known and self._ranges[name].count() is not None}
        found = finite | self._changing([name for name in asked if name not in finite])
        for name in reversed(list(self._ranges)):
            found |= self._ranges[name].when.keys() if name in found else set()
        return [name for name in self._ranges if name in found]

    def _changing(self, names: Sequence[str]) -> set[str]:
        """Return which settings change a size in TRIED pairs of networks in which they are searched.

        All that have changed none so far are changed together, and one by one if that makes a difference.
        """
        found, tried = set[str](), Counter[str]()
        for units in self._stream("tried").random((DRAWN, 2, len(self._ranges))):
            point, other = (self._point(self._ranges, row) for row in units)
            active = self._space.active(point)
            asked = [name for name in names if name in active and name not in found and tried[name] < TRIED]
            if asked and any(self._differ(point, [{name: other[name] for name in asked}])):
                differ = self._differ(point, [{name: other[name]} for name in asked])
                found |= {name for name, differs in zip(asked, differ, strict=True) if differs}
            tried.update(asked)
        return found

    def _differ(self, point: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Return of each of `changes` whether it changes a size of the network at `point`."""
        own, *others = self._sizes([point, *({**point, **each} for each in changes)])
        return [own is not None and other is not None and bool((own != other).any()) for other in others]

    def _exact(self, names: Sequence[str]) -> tuple[list[list[Pair]], int, float] | None:
        """Return the shares by metric from all combinations, the number of networks, and no error.

        Returns None if they are too many for the time that is left.
        """
        shape = [self._ranges[name].count() for name in names]
        sizes = [size for size in shape if size is not None]
        if len(sizes) < len(shape) or math.prod(sizes) > CELLS:
            return None
        base = self._point(self._ranges, itertools.repeat(0.5))
        cells = [
            base | dict(zip(names, values, strict=True))
            for values in itertools.product(*(self._ranges[name].grid() or () for name in names))
        ]
        begun, counted = self.clock(), len(self._known)
        self._sizes([cells[place] for place in self._stream("timed").permutation(len(cells))[:TIMED]])
        keys = [json.dumps(self._space.active(cell)) for cell in cells]
        each = (self.clock() - begun) / max(len(self._known) - counted, 1)
        if each * len(set(keys)) > self._left():
            return None
        missing = np.full(len(self.metrics), np.nan)
        found = [missing if size is None else size for size in self._sizes(cells)]
        networks = len({key for key, size in zip(keys, found, strict=True) if size is not missing})
        if not networks:
            raise _UncountedError("no network can be built beside the middle values of the other settings")
        table = np.array(found).T.reshape(len(self.metrics), *sizes)
        weights = [_chances(self._ranges[name]) for name in names]
        return [cell_shares(own, weights) for own in table], networks, 0.0

    def _drawn(self, names: Sequence[str]) -> tuple[list[list[Pair]], int, float]:
        """Return total shares by metric from rounds of keyed Sobol' points, the number of draws, and the error."""
        from scipy.stats import qmc  # takes a second

        base, width = self._point(self._ranges, itertools.repeat(0.5)), len(names)
        rounds: list[Values] = []
        found, error = [], math.inf
        while len(rounds) < ROUNDS and error > PRECISE:
            units = qmc.Sobol(2 * width, rng=self._stream("draws", len(rounds))).random(POINTS)
            swapped = np.repeat(units[None, :, :width], width + 1, axis=0)
            for i in range(width):
                swapped[i + 1, :, i] = units[:, width + i]
            try:
                sizes = self._sizes([base | self._point(names, row) for block in swapped for row in block])
            except _TooFewSecondsError:
                break
            if any(size is None for size in sizes):
                raise _UncountedError("it has too many combinations to count them all, and some are impossible")
            rounds.append(np.array(sizes).reshape(width + 1, POINTS, len(self.metrics)))
            if len(rounds) >= LEAST_ROUNDS:
                blocks = np.moveaxis(np.stack(rounds, axis=1), -1, 0)  # [metrics, 1 + settings, rounds, draws]
                each = [drawn_shares(own[0], own[1:]) for own in blocks]
                found, error = [own for own, _ in each], max(own for _, own in each)
        if error > LARGEST_ERROR:
            raise _UncountedError(TOO_FEW.format(self.seconds))
        return found, len(rounds) * POINTS * (width + 1), error

    def _point(self, names: Iterable[str], shares: Iterable[float]) -> dict[str, Any]:
        """Return a value of each setting at its share of its range, from 0 to below 1."""
        specs = ((name, self._ranges[name], share) for name, share in zip(names, shares, strict=False))
        return {name: decode(spec, inner_at_share(spec, share)) for name, spec, share in specs}

    def _sizes(self, points: Iterable[Mapping[str, Any]]) -> list[Values | None]:
        """Return log10 of the sizes [metrics] of networks, None of impossible ones."""
        found: list[TrainableSettings | None] = []
        for point in points:
            try:
                found.append(self.study.settings_of(self.dataset, self._space.active(point)))
            except ValidationError:
                found.append(None)
        sizes = iter(self._count([settings for settings in found if settings is not None]))
        return [None if settings is None else next(sizes) for settings in found]

    def _count(self, many: Sequence[TrainableSettings]) -> list[Values | None]:
        """Return the sizes of networks; unknown ones are measured together, more at once if that is quick."""
        keys = [settings.model_dump_json() for settings in many]
        new = [(key, each) for key, each in dict(zip(keys, many, strict=True)).items() if key not in self._known]
        at_once = 1
        while new:
            if self._left() <= 0:
                raise _TooFewSecondsError(TOO_FEW.format(self.seconds))
            if not self._told and self._left() < self.seconds - QUIET_SECONDS:
                self.say(f"Counting the networks of {self.dataset}'s space, {self.seconds:.0f} s at most.")
                self._told = True
            part, new, begun = new[:at_once], new[at_once:], self.clock()
            sizes = self.trainable.measure([settings for _, settings in part], self.facts)
            self._known |= {k: self._logarithms(s, size) for (k, s), size in zip(part, sizes, strict=True)}
            at_once *= 2 if self.clock() - begun < QUICK_SECONDS else 1
        return [self._known[key] for key in keys]

    def _logarithms(self, settings: TrainableSettings, size: Size | NoSize) -> Values | None:
        """Return log10 of the metrics of a size, counted by running the function where only that tells them."""
        if isinstance(size, NoSize):
            return None
        found = [size[metric] for metric in self.metrics if metric in size]
        if len(found) < len(self.metrics):
            counted = self.trainable.count_by_running(settings, self.dataset)
            if counted.params is None or list(self.metrics) != ["params"]:
                raise _UncountedError(counted.note or "only training tells the sizes")
            found = [counted.params]
        return _logarithms(found)

    def _stream(self, *path: str | int) -> np.random.Generator:
        return stream(self.study.seed, self.dataset, 0, "importance", *path)

    def _left(self) -> float:
        return self._begun + self.seconds - self.clock()


def _chances(spec: Range) -> Values:
    """Return how often a random draw of a finite range has each value."""
    if isinstance(spec, IntRange) and spec.log:
        edges = np.log(np.arange(spec.bounds[0], spec.bounds[1] + 2) - 0.5)
        widths: Values = np.diff(edges) / (edges[-1] - edges[0])
        return widths
    count = spec.count() or 1
    return np.full(count, 1 / count)


def _logarithms(sizes: Sequence[float]) -> Values:
    """Return log10 of sizes; 0 counts as 1."""
    found: Values = np.log10([size or 1.0 for size in sizes])
    return found
