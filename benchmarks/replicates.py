"""CPU time of a replicate's training step over the number of replicates that are trained in lockstep.

    python benchmarks/replicates.py                        # this checkout, about three minutes
    python benchmarks/replicates.py --against ../before    # and another checkout, alternately

One trial with 1, 4, 16 and 64 seeds, one thread, float32. `cpu_us` is the CPU time of an epoch, with its validation
and checkpoint, over steps and replicates: the fastest epoch after the first, the median over repeats. Pictures are
made up in the shape of the data set, one validation sample for eight training samples. Each measurement starts a new
process. Two checkouts are measured alternately. The result is a CSV file with a line for each variant, number of
replicates and checkout.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import RESULTS, ROOT, commit, write_csv

REPLICATES = (1, 4, 16, 64)
VARIANTS: dict[str, dict[str, Any]] = {
    "digits 16": {"model": {"width": 16, "depth": 1, "mlp": 0}, "task": "digits", "patch": [2, 4], "batch": 32},
    "digits 32": {"model": {"width": 32, "depth": 2, "mlp": 64}, "task": "digits", "patch": [2, 4], "batch": 32},
    "digits 4 heads": {
        "model": {"width": 16, "depth": 4, "mlp": 0, "heads": 4},
        "task": "digits",
        "patch": [2, 2],
        "batch": 64,
    },
    "mnist 6 blocks": {"model": {"width": 60, "depth": 6, "mlp": 256}, "task": "mnist", "patch": [7, 7], "batch": 64},
}
# of an epoch, at most STEPS steps
REPLICATE_STEPS = {"digits 16": 400, "digits 32": 300, "digits 4 heads": 60, "mnist 6 blocks": 32}
STEPS = 50
EPOCHS = 4


def measure(name: str, replicates: int) -> float:
    """Return the microseconds of CPU time per replicate and step in this process."""
    import torch

    from ablate.core.registry import read_task
    from ablate.core.trial import TrialConfig, TrialKey
    from ablate.engine.tasks import load_task
    from ablate.engine.training import FamilySettings, train
    from ablate.engine.training.made_up import made_up_data
    from ablate.functions.memory import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    variant, steps = VARIANTS[name], min(max(REPLICATE_STEPS[name] // replicates, 2), STEPS)
    task = read_task({"task": variant["task"], "patch": variant["patch"]})
    training = {"epochs": EPOCHS, "batch_size": variant["batch"], "steps_per_epoch": steps}
    trial = TrialConfig(
        key=TrialKey(study="benchmark", dataset="made-up", number=0),
        stage="search",
        settings=FamilySettings.model_validate({"model": variant["model"], "training": training}),
        task=task,
        seeds=tuple(range(replicates)),
        study_seed=0,
        protocol="paper",
    )
    samples = steps * variant["batch"]
    data = made_up_data(load_task(task).shape(None), samples=samples, test=samples // 8)
    moments = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in train(trial, data=data, checkpoints=Path(folder, "checkpoints", "trial")):
            moments.append(time.process_time())
    epochs = [after - before for before, after in itertools.pairwise(moments)]
    return min(epochs) / (steps * replicates) * 1e6


def measured(checkout: Path, name: str, replicates: int) -> float:
    """Return what `measure` gives with the code of `checkout`."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", name, str(replicates)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=checkout)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure all variants and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "REPLICATES"), help=argparse.SUPPRESS)
    parser.add_argument("--against", type=Path, help="another checkout, measured alternately")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--replicates", type=int, nargs="+", default=list(REPLICATES))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--output", type=Path, default=RESULTS / "replicates.csv")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return
    checkouts = [*([arguments.against.resolve()] if arguments.against else []), ROOT]
    lines: list[dict[str, Any]] = []
    for name in arguments.variants:
        for replicates in arguments.replicates:
            taken: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
            for _ in range(arguments.repeats):
                for checkout in checkouts:
                    taken[checkout].append(measured(checkout, name, replicates))
            for checkout, each in taken.items():
                found = {"cpu_us": round(statistics.median(each), 1), "least": round(min(each), 1), "n": len(each)}
                lines.append({"variant": name, "replicates": replicates, "commit": commit(checkout), **found})
                print(name, replicates, lines[-1]["commit"], found, flush=True)
    write_csv(arguments.output, lines)


if __name__ == "__main__":
    main()
