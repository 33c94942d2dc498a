"""What each ingredient of the sampler `front` is worth, on the recorded tables of benchmarks/search.py.

    python benchmarks/front_ablation.py                    # 20 repetitions, 4 minutes; results/front_ablation.csv
    python benchmarks/front_ablation.py --repetitions 3    # printed only
    python benchmarks/front_ablation.py --workers 16 --variants "no believer"    # printed only

Each variant changes one thing; `hv_3` to `hv_20` are hypervolumes after the epochs of as many full trials, and the
difference `variant - front` after 20 is paired, with a 95% t interval. Two workers, as in benchmarks/search.py.

    front                   as it is
    sizes guessed           a Gaussian process of the trials' sizes in place of the exact ones
    random                  random proposals after the start
    no early stopping       `scheduler: none`
    complete trials only    the model does not see stopped trials
    no believer             running trials are neither in the model nor on the front
    size as a coordinate    the logarithm of the size is one more coordinate of the model
    16 networks             as for networks that must be built to be counted
    no references           the study file gives no reference points
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import optuna
from paired import interval
from record import RESULTS, write_csv
from search import FULL, PACKAGES, TABLES, WORKERS, study_of
from searchers import Ablate, Table, proposals
from simulated_search import recorded, simulate, volume

from ablate.tuning.sampling import front_sampler, known_costs
from ablate.tuning.sampling.front_sampler import FrontSampler
from ablate.tuning.state.trial_progress import UNSEEN

REPETITIONS = 20
BUDGETS = (3, 5, 7, 10, 15, 20)
Patch = Callable[[], Any]


class Guessed(FrontSampler):
    """Guesses the sizes of candidates."""

    def _pool(self, history: Any, rows: Any, costs: Any) -> Any:
        ended = ~history.running
        model = self._model(self._space.coordinates(history.rows[ended]), history.costs[ended, 0])
        return super()._pool(history, rows, model.mean(self._space.coordinates(rows))[:, None])


class Shown(FrontSampler):
    """Sees some trials only."""

    def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
        """Return all dimensions, or none while too few trials are left."""
        found = super().infer_relative_search_space(study, trial)
        self._shown = [each for each in self._shown if self.sees(each)]
        return found if sum(each.state.name == "COMPLETE" for each in self._shown) >= front_sampler.LEAST else {}

    def sees(self, trial: Any) -> bool:
        """Return whether a trial is seen."""
        return bool(trial.state.is_finished())


class Complete(Shown):
    """Sees no stopped trial."""

    def sees(self, trial: Any) -> bool:
        """Return whether a trial is seen."""
        return trial.state.name != "COMPLETE" or trial.constraints.get(UNSEEN, 0.0) <= 0


class Coordinate(FrontSampler):
    """Has the size as one more coordinate."""

    def _pool(self, history: Any, rows: Any, costs: Any) -> Any:
        plain, least = self._space, costs[:, 0].min()

        class Sized:
            groups = np.append(plain.groups, plain.groups.max() + 1)

            @staticmethod
            def coordinates(asked: Any) -> Any:
                size = (history.costs if asked is history.rows else costs)[:, 0]
                return np.column_stack([plain.coordinates(asked), (size - least) / np.ptp(costs[:, 0])])

        with patch.object(self, "_space", Sized):
            return super()._pool(history, rows, costs)


VARIANTS: dict[str, tuple[type[FrontSampler] | None, dict[str, Any]]] = {
    "front": (None, {}),
    "sizes guessed": (Guessed, {}),
    "random": (None, {"sampler": "random"}),
    "no early stopping": (None, {"rule": "none"}),
    "complete trials only": (Complete, {}),
    "no believer": (Shown, {}),
    "size as a coordinate": (Coordinate, {}),
    "16 networks": (None, {}),
    "no references": (None, {}),
}


@contextmanager
def changed(name: str) -> Iterator[None]:
    """Change the sampler as a variant does."""
    sampler = VARIANTS[name][0] or FrontSampler
    most = known_costs.BUILT if name == "16 networks" else known_costs.AT_ONCE
    with patch("ablate.tuning.sampling.samplers.FrontSampler", sampler), patch.object(known_costs, "AT_ONCE", most):
        yield


def run(name: str, table: str, seed: int, workers: int) -> list[float]:
    """Return the hypervolumes of one search after BUDGETS, as shares of the table's."""
    networks, curves = recorded(table)
    study = study_of(table, seed, **VARIANTS[name][1])
    quality, cost = study.objectives
    reference = (1 - (quality.reference or 0.0), math.log10(cost.reference or 1.0))
    rows = Table(study, networks, curves)
    if name == "no references":
        bare = tuple(each.model_copy(update={"reference": None}) for each in study.objectives)
        study = study.model_copy(update={"objectives": bare})
    asked = Ablate(study, curves)

    with changed(name):
        found = simulate(curves, proposals(asked, rows), asked.report, workers=workers, epochs=FULL * curves.epochs)
    whole = volume(curves, sorted(curves.front()), reference)
    ended = [[e.network for e in found.ended if e.complete and e.spent <= k * curves.epochs] for k in BUDGETS]
    return [volume(curves, part, reference) / whole for part in ended]


def rows_of(table: str, repetitions: int, workers: int, variants: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield one row per variant: means, and the paired difference from `front` after the last budget."""
    by_name = defaultdict(list)
    for name in variants:
        by_name[name] = [run(name, table, seed, workers) for seed in range(repetitions)]
        values, base = np.array(by_name[name]), np.array(by_name["front"])
        row: dict[str, object] = {"table": table, "variant": name, "repetitions": repetitions}
        row |= {f"hv_{k}": f"{mean:.4f}" for k, mean in zip(BUDGETS, values.mean(axis=0), strict=True)}
        about = interval(values[:, -1] - base[:, -1])
        yield row | {key: f"{cell:.4f}" for key, cell in zip(("minus_front", "low", "high"), about, strict=True)}


def main() -> None:
    """Measure on every table, print each row, and write the table after a whole run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--table", choices=list(TABLES))
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), help="beside `front` (default: all)")
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for table in [asked.table] if asked.table else TABLES:
        found = []
        variants = ["front", *asked.variants] if asked.variants else list(VARIANTS)
        for row in rows_of(table, asked.repetitions or REPETITIONS, asked.workers, variants):
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            found.append(row)
        if asked.repetitions is None and asked.variants is None and asked.workers == WORKERS:
            write_csv(RESULTS / "front_ablation.csv", found, packages=PACKAGES, key="table")


if __name__ == "__main__":
    main()
