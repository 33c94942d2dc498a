"""What `front` finds when many trials run at a time, on a made-up loss; 8, 64 and 512 workers.

    python benchmarks/many_workers.py                   # 5 repetitions, a quarter of an hour; results/many_workers.csv
    python benchmarks/many_workers.py --repetitions 2   # printed only

Each worker has a trial; trials end after .8 to 1.2 times the same while, and then the search is asked for the next
one. `hv_half` and `hv` are the hypervolumes of the networks of the trials that have ended after half and all of three
rounds of the workers, by their loss without noise; the sampler is told of losses with noise. Differences from `front`
are paired, with 95% t intervals. `cpu_ms` is the CPU time of a trial.

    front               as it is: while 128 or more trials run, one model makes a suggestion for each 64 of them
    a model each        one model for each suggestion
    all running         the model sees all running trials instead of the newest 125
    random              random proposals
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import moocore
import numpy as np
import optuna
import yaml
from paired import interval
from record import RESULTS, ROOT, write_csv

from ablate.core.trainable import load_trainable
from ablate.core.trial import TrialState
from ablate.study import Study
from ablate.tuning.sampling.suggester import Suggester
from ablate.tuning.state.trial_progress import TrialProgress

SPACE = {"width": {"int": [8, 256], "step": 4}, "mlp": {"int": [1, 512]}}
NOISE, ROUNDS, NEVER = 0.004, 3, 10**9
VARIANTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "front": (),
    "a model each": (("ablate.tuning.sampling.suggester.TOGETHER", NEVER),),
    "all running": (
        ("ablate.tuning.sampling.suggester.TOGETHER", NEVER),
        ("ablate.tuning.sampling.bounded_history.RUNNING", NEVER),
    ),
    "random": (),
}


def loss_of(settings: Any, seed: int) -> float:
    """Return a made-up loss that falls with size and depth, at a price, and has a best learning rate for each depth."""
    model, weights = settings.model, random.Random(f"weights {seed}")
    size, depth, value, collapsed, shared, shift, mlp = (weights.uniform(0.2, 1) for _ in range(7))
    found = 0.5 * math.exp(-math.log10(model.width) * size - 0.3 * model.depth * depth)
    found += 0.03 * value * (model.value == "none") + 0.02 * collapsed * (model.similarity == "collapsed")
    found += 0.01 * shared * (model.similarity == "shared") + 0.01 * mlp * abs(math.log2(model.mlp) - 5)
    rate = math.log10(settings.training.learning_rate) + 2.5 + 0.2 * shift * model.depth
    return found + 0.05 * rate**2 + 0.01


def study_of(seed: int, sampler: str) -> Study:
    """Return a search of a wide space of small transformers."""
    fields = yaml.safe_load((ROOT / "search_spaces" / "digits.yaml").read_text())
    changed = {"seed": seed, "sampler": {"name": sampler}, "scheduler": {"name": "none"}, "replicates": 1}
    return Study.model_validate(fields | changed | {"model": fields["model"] | SPACE})


def search(variant: str, workers: int, seed: int) -> list[float]:
    """Return the hypervolumes and the CPU milliseconds of a trial."""
    study = study_of(seed, "random" if variant == "random" else "front")
    trainable = load_trainable(study.trainable)
    facts = trainable.find_facts(study.task("digits"), None)
    asked = Suggester(study=study, dataset="digits", measure=trainable.measure, facts=lambda: facts)
    pace, trials = random.Random(f"pace {seed}"), ROUNDS * workers
    due: list[tuple[float, int, TrialProgress]] = []
    points: list[tuple[float, float]] = []
    begun, now = time.process_time(), 0.0
    for number in range(trials + workers):
        if number >= workers:
            now, _, ended = heapq.heappop(due)
            points.append(tell(asked, ended, seed))
        if number < trials:
            new = asked.suggest(number)
            assert new is not None
            trial = TrialProgress(
                config=new.config, size=new.size, sampler_state={}, state=TrialState.RUNNING, epoch=0, means={}
            )
            asked.put(trial)
            heapq.heappush(due, (now + pace.uniform(0.8, 1.2), number, trial))
    spent = 1000 * (time.process_time() - begun) / trials
    parts = (points[: trials // 2], points)
    return [*(moocore.hypervolume(np.array(part), ref=np.array([1.0, 6.0])) for part in parts), spent]


def tell(asked: Suggester, trial: TrialProgress, seed: int) -> tuple[float, float]:
    """Tell the sampler of a trial's loss with noise; return the loss without it and the size."""
    loss = loss_of(trial.config.settings, seed)
    noise = NOISE * random.Random(f"noise {seed} {trial.number}").gauss(0.0, 1.0)
    means = {"val_accuracy": 1 - loss - noise}
    asked.put(
        TrialProgress(
            config=trial.config, size=trial.size, sampler_state={}, state=TrialState.COMPLETE, epoch=27, means=means
        )
    )
    assert trial.size
    return loss, math.log10(trial.size["params"])


def rows_of(workers: int, repetitions: int) -> Iterator[dict[str, object]]:
    """Yield one row per variant: means, and the paired difference from `front`."""
    found: dict[str, np.ndarray] = {}
    for name, changes in VARIANTS.items():
        with ExitStack() as stack:
            for place, value in changes:
                stack.enter_context(patch(place, value))
            found[name] = np.array([search(name, workers, seed) for seed in range(repetitions)])
        means, row = found[name].mean(axis=0), {"workers": workers, "variant": name, "repetitions": repetitions}
        row |= {key: f"{mean:.4f}" for key, mean in zip(("hv_half", "hv"), means, strict=False)}
        for place, key in enumerate(("half", "all")):
            about = interval(found[name][:, place] - found["front"][:, place])
            row |= {f"{key}{end}": f"{cell:.4f}" for end, cell in zip(("_minus", "_low", "_high"), about, strict=True)}
        yield row | {"cpu_ms": f"{means[-1]:.1f}"}


def main() -> None:
    """Measure each number of workers, print each row, and write the table after a whole run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int)
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found = []
    for workers in (8, 64, 512):
        for row in rows_of(workers, asked.repetitions or 5):
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            found.append(row)
    if asked.repetitions is None:
        write_csv(RESULTS / "many_workers.csv", found, packages=("numpy", "scipy", "optuna"))


if __name__ == "__main__":
    main()
