"""What `budget.stop` costs and saves, on recorded learning curves: a full search is cut where it would end.

    python benchmarks/stopping.py                  # 5 repetitions, about 3 minutes; writes results/stopping.csv
    python benchmarks/stopping.py --repetitions 3  # printed only

A search has 120 trials of a table, with the default sampler and scheduler and two simulated workers. Before each
suggestion the estimate of `budget.stop` is asked. For each setting of it the row says, as means over the repetitions:
after how many trials the search would have ended, the share of the epochs of all 120 that it would have saved, the
share of their hypervolume that it would have lost, the largest such loss, and what it had expected of the next `within`
trials beside what those gained.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import yaml
from record import RESULTS, write_csv
from search import CURVES, TABLES
from searchers import Ablate, Table, proposals
from simulated_search import Array, Curves, recorded, simulate, volume

from ablate.study import Study
from ablate.tuning.stopping.gain import gain_of_next

TRIALS, WORKERS = 120, 2
SETTINGS = tuple((gain, within) for within in (10, 20) for gain in (0.02, 0.01, 0.005, 0.002))
PACKAGES = ("numpy", "moocore", "optuna")


@dataclass
class Followed:
    """The ends of a search's trials by number, and the number of trials with which each setting ends it."""

    curves: Curves
    reference: tuple[float, float]
    seed: int
    ends: dict[int, tuple[int, int, bool]] = field(default_factory=dict)  # network, epochs, complete
    stops: dict[tuple[float, int], tuple[int, float]] = field(default_factory=dict)  # trials begun, expected gain

    def estimate(self, begun: int) -> None:
        """Note which settings end the search before its next trial."""
        ended = [self.ends[number] for number in sorted(self.ends)]
        points: Array = np.full((len(ended), 2), np.nan)
        for row, (network, _, complete) in enumerate(ended):
            if complete:
                points[row] = self.curves.errors[network, -1], self.curves.cost[network]
        for within in {within for _, within in SETTINGS}:
            random = np.random.default_rng([self.seed, begun, within])
            gain = gain_of_next(points, within, self.reference, random)
            for setting in SETTINGS:
                if setting[1] == within and gain < setting[0]:
                    self.stops.setdefault(setting, (begun, gain))

    def reached(self, begun: int) -> tuple[float, int]:
        """Return hypervolume and epochs of the trials with numbers below `begun`."""
        own = [end for number, end in self.ends.items() if number < begun]
        complete = [network for network, _, is_complete in own if is_complete]
        return volume(self.curves, complete, self.reference), sum(epochs for _, epochs, _ in own)


def follow(table: str, seed: int) -> Followed:
    """Run one search to its 120 trials and ask the estimate before each."""
    propose, report, curves, reference = searching(table, seed)
    found, begun = Followed(curves=curves, reference=reference, seed=seed), 0

    def next_network(number: int) -> int | None:
        nonlocal begun
        if number >= TRIALS:
            return None
        found.estimate(number)
        begun += 1
        return propose(number)

    def take(number: int, network: int, epoch: int) -> bool:
        goes_on = report(number, network, epoch)
        if epoch == curves.epochs or not goes_on:
            found.ends[number] = network, epoch, epoch == curves.epochs
        return goes_on

    simulate(curves, next_network, take, workers=WORKERS)
    return found


def searching(table: str, seed: int) -> tuple[Callable[[int], int | None], Any, Curves, tuple[float, float]]:
    """Return proposal, report, curves and reference of a search."""
    networks, curves = recorded(table)
    fields = yaml.safe_load((CURVES / f"{table}.yaml").read_text())
    fields |= {"seed": seed, "budget": {"trials": TRIALS}, "sampler": {}, "scheduler": {}}
    study = Study.model_validate(fields)
    rows = Table(study, networks, curves)
    asked = Ablate(study, curves)

    quality, cost = (objective.reference for objective in study.objectives)
    assert quality is not None
    assert cost is not None
    return proposals(asked, rows), asked.report, curves, (1 - quality, float(np.log10(cost)))


def rows_of(table: str, repetitions: int) -> list[Mapping[str, object]]:
    """Return one row per setting."""
    runs = [follow(table, seed) for seed in range(repetitions)]
    rows = []
    for gain, within in SETTINGS:
        ended, saved, lost, expected, came = [], [], [], [], []
        for run in runs:
            whole, epochs = run.reached(TRIALS)
            begun, estimate = run.stops.get((gain, within), (TRIALS, np.nan))
            value, spent = run.reached(begun)
            ended.append(begun)
            saved.append(1 - spent / epochs)
            lost.append(1 - value / whole)
            if begun + within <= TRIALS:
                expected.append(estimate)
                came.append(run.reached(begun + within)[0] / value - 1)
        cells = {
            "trials": np.mean(ended),
            "saved": np.mean(saved),
            "lost": np.mean(lost),
            "most_lost": np.max(lost),
            "expected": np.mean(expected) if expected else np.nan,
            "came": np.mean(came) if came else np.nan,
        }
        rows.append({"table": table, "gain": gain, "within": within, "repetitions": repetitions}
                    | {name: f"{value:.4f}" for name, value in cells.items()})  # fmt: skip
    return rows


def main() -> None:
    """Measure every table, print each row, and write them after a whole run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--table", choices=list(TABLES))
    asked = parser.parse_args()
    for table in [asked.table] if asked.table else TABLES:
        found = rows_of(table, asked.repetitions or 5)
        for row in found:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if asked.repetitions is None:
            write_csv(RESULTS / "stopping.csv", found, packages=PACKAGES, key="table")


if __name__ == "__main__":
    main()
