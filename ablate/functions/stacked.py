"""What a function is given that trains all seeds of a trial at once: `def train(config, runs)`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ablate.base.errors import TrialError
from ablate.functions.blame import place_of_frame
from ablate.functions.run import Kept, Run


def _refusing(rule: str) -> Any:
    def refuse(*_: Any, **__: Any) -> None:
        raise TrialError(rule)

    return refuse


class _OneOfRuns(Run):
    """One seed of `Runs`: it builds, splits and draws; what is kept, and the epochs, belong to all seeds."""

    keep = _refusing("keep objects by runs.keep(...): a checkpoint holds all seeds together")
    epochs = _refusing("loop over runs.epochs(): all seeds train together")
    begin = _refusing("call runs.begin(): all seeds train together")
    report = _refusing("report by runs.report([...]), a dictionary for each seed: all seeds train together")

    def enter(self, epoch: int) -> None:
        """Begin what leads to the next report of all seeds."""
        if not self._begun:
            self._begun = True
            for name in self._streams:
                self._restore_stream(name)
        self.epoch, self._loaders = epoch, 0
        self._key_streams(epoch)


class Runs(Run):
    """All seeds of one trial.

    Iteration gives a `Run` for each seed; its `build`, `split`, `loader` and `stream` give what a function gets that
    trains one seed after another. `keep`, `epochs` and the global generators are those of all seeds together.
    """

    def __init__(self, *, seeds: Sequence[int], found: Kept | None = None, **common: Any) -> None:
        super().__init__(seed=seeds[0], found=found, **common)
        self.seeds = tuple(seeds)
        self._each = tuple(
            _OneOfRuns(seed=seed, found=_of_seed(found, index), **common) for index, seed in enumerate(seeds)
        )

    def __iter__(self) -> Iterator[Run]:
        """Yield the run of each seed."""
        return iter(self._each)

    def __len__(self) -> int:
        """Return the number of seeds."""
        return len(self._each)

    def report(self, metrics: Any, *, step: float | None = None) -> None:
        """Report a list with the metrics of each seed; see `Run.report`."""
        given = metrics if step is None else [{**each, "step": step} for each in metrics]
        self.hand_over(given, place_of_frame(sys._getframe(1)))

    def _enter(self, epoch: int) -> None:
        super()._enter(epoch)
        for run in self._each:
            run.enter(epoch)

    def check_parts(self) -> None:
        """Raise TrialError as that of one seed does; a call of one seed's network counts for all."""
        if not self.replacements:
            self.replacements = [record for run in self._each for record in run.replacements]
        super().check_parts()

    def state(self) -> Kept:
        """Return the state of now, with the streams of each seed."""
        own = super().state()
        streams = {
            f"{i}/{name}": state for i, run in enumerate(self._each) for name, state in run.state().streams.items()
        }
        return replace(own, streams={**{f"all/{name}": state for name, state in own.streams.items()}, **streams})

    def _restore_stream(self, name: str) -> None:
        if self._found is not None and self._found.states and f"all/{name}" in self._found.streams:
            self._streams[name].bit_generator.state = self._found.streams[f"all/{name}"]


def _of_seed(found: Kept | None, index: int) -> Kept | None:
    """Return what a checkpoint holds for one seed: the states of its streams."""
    if found is None:
        return None
    prefix = f"{index}/"
    streams = {name.removeprefix(prefix): s for name, s in found.streams.items() if name.startswith(prefix)}
    return replace(found, streams=streams, tensors={})
