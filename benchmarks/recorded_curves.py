"""Learning curves of networks, and the tables of them that record_curves.py has written."""

from __future__ import annotations

from dataclasses import dataclass

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
