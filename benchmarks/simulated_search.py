"""A search on learning curves that are known beforehand: workers and their clock are simulated, nothing is trained."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import moocore
import numpy as np
import polars as pl
from numpy.typing import NDArray
from record import RESULTS

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Networks with their whole curves: `errors` and `seconds` are [n, epochs], by epoch; the rest is [n].

    `cost` is log10 of the parameters. `truth` is what the error at the last epoch would be without noise.
    """

    errors: Array
    seconds: Array
    cost: Array
    truth: Array

    @property
    def epochs(self) -> int:
        """Length of a curve."""
        return int(self.errors.shape[1])

    def taken(self, rows: NDArray[np.int64]) -> Curves:
        """Return the curves of some networks, in the order of `rows`."""
        return Curves(
            errors=self.errors[rows], seconds=self.seconds[rows], cost=self.cost[rows], truth=self.truth[rows]
        )

    def points(self) -> Array:
        """Return the true points [n, 2]: error and cost, both to be minimised."""
        return np.stack([self.truth, self.cost], axis=1)

    def front(self) -> set[int]:
        """Return the networks that no other one dominates by true error and cost."""
        return set(np.flatnonzero(moocore.is_nondominated(self.points())).tolist())


def recorded(name: str) -> tuple[pl.DataFrame, Curves]:
    """Return the settings of a recorded table's networks, one row each, and their curves (see record_curves.py).

    The error is 1 - val_accuracy, as a mean over the seeds; that of the last epoch is taken for the true one.
    """
    file = RESULTS / f"curves_{name}.csv.gz"
    if not file.exists():
        raise SystemExit(f"{file} is missing. Record it with: python benchmarks/record_curves.py {name}")
    table = pl.read_csv(file, infer_schema_length=None)
    seeds = [column for column in table.columns if column.startswith("val_accuracy/")]
    table = table.with_columns(error=1 - pl.mean_horizontal(seeds)).sort("trial", "epoch")
    networks = table.group_by("trial", maintain_order=True).first()
    errors, seconds = (table[name].to_numpy().reshape(networks.height, -1) for name in ("error", "seconds"))
    cost = np.log10(networks["params"].to_numpy())
    return networks, Curves(errors=errors, seconds=seconds, cost=cost, truth=errors[:, -1])


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
Report = Callable[[int, int, int], bool]


def simulate(
    curves: Curves,
    propose: Propose,
    report: Report,
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
    points = curves.points()[networks] if networks else np.empty((0, 2))
    inside = points[(points < reference).all(axis=1)]
    return float(moocore.hypervolume(inside, ref=np.array(reference))) if len(inside) else 0.0
