"""One epoch of `ablate.engine.training.train` beside one epoch of a plain PyTorch loop, alternately in one run.

    python benchmarks/training.py                     # MNIST, three variants, two epochs, about four minutes
    python benchmarks/training.py --epochs 1 --limit 6400 --variants minimum

Both sides: MNIST in 7x7 patches, N = 60, 6 blocks, 1 head, pre-norm, AdamW 1e-3, weight decay 0.01, batch 64 or that of
`--batch`, constant learning rate, data in memory, test accuracy after every epoch, one thread. The plain side is
nn.Module, F.cross_entropy and torch.optim.AdamW as one would write them by hand, in float32. Each side runs in a
separate process, and the two train alternately, one epoch at a time. Ours is set up as a trial's worker is. Times are
of training and evaluation together.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from plain import DECAY, RATE, VARIANTS, plain_epochs
from record import made_by

from ablate.core.registry import read_task
from ablate.core.trial import TrialConfig, TrialKey
from ablate.engine.models import measure
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.tasks import Data, load_task
from ablate.engine.training import FamilySettings, train
from ablate.engine.training.train_config import Schedule, TrainConfig
from ablate.functions.memory import keep_freed_memory

TASK = read_task({"task": "mnist", "patch": (7, 7)})


def our_epochs(
    config: ModelConfig, data: Data, *, epochs: int, batch: int, limit: int | None, precision: str
) -> Iterator[float]:
    """Yield the test accuracy after each epoch of `train` (protocol `paper`: it validates on the test part)."""
    settings = {
        "epochs": epochs,
        "batch_size": batch,
        "learning_rate": RATE,
        "weight_decay": DECAY,
        "schedule": Schedule(name="constant"),
        "precision": precision,
    }
    trial = TrialConfig(
        key=TrialKey(study="benchmark", dataset="mnist", number=0),
        stage="search",
        settings=FamilySettings(model=config, training=TrainConfig.model_validate(settings)),
        task=TASK.model_copy(update={"train_limit": limit}),
        seeds=(0,),
        study_seed=0,
        protocol="paper",
    )
    for report in train(trial, data=data):
        yield report.mean("val_accuracy")


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What one epoch of one side cost and gave."""

    accuracy: float
    wall_seconds: float
    cpu_seconds: float


def timed(epochs: Iterator[float]) -> Epoch:
    """Run one more epoch and time it."""
    wall, cpu = time.perf_counter(), time.process_time()
    accuracy = next(epochs)
    return Epoch(accuracy=accuracy, wall_seconds=time.perf_counter() - wall, cpu_seconds=time.process_time() - cpu)


def serve_epochs(line: Connection, side: str, name: str, arguments: argparse.Namespace) -> None:
    """Run in a process of one side: train an epoch whenever told to, and send what it cost."""
    torch.set_num_threads(1)
    task = load_task(TASK)
    data, shape = task.load(arguments.data_dir), task.shape(arguments.data_dir)
    if side == "plain":
        epochs = plain_epochs(VARIANTS[name], shape, data, batch=arguments.batch, limit=arguments.limit)
    else:
        keep_freed_memory()
        limits = {"epochs": arguments.epochs, "batch": arguments.batch, "limit": arguments.limit}
        epochs = our_epochs(VARIANTS[name], data, precision=arguments.precision, **limits)
    while line.recv():
        line.send(timed(epochs))


@contextmanager
def started(side: str, name: str, arguments: argparse.Namespace) -> Iterator[Connection]:
    """Start the process of one side and yield its end of the line."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve_epochs, args=(there, side, name, arguments))
    process.start()
    there.close()  # so that a side that dies ends the line
    yield here
    here.send(False)
    process.join()


def compare(name: str, params: int, arguments: argparse.Namespace) -> None:
    """Print a line per epoch of one variant; the two sides train alternately."""
    with started("plain", name, arguments) as plain, started("ours", name, arguments) as ours:
        for epoch in range(1, arguments.epochs + 1):
            plain.send(True)
            a: Epoch = plain.recv()
            ours.send(True)
            b: Epoch = ours.recv()
            print(
                f"{name:10} {params:7,d} {epoch:5d}   {a.accuracy:6.1%} {b.accuracy:6.1%}"
                f"   {a.wall_seconds:7.2f} {b.wall_seconds:6.2f} {b.wall_seconds / a.wall_seconds:6.2f}"
                f"   {a.cpu_seconds:7.2f} {b.cpu_seconds:6.2f} {b.cpu_seconds / a.cpu_seconds:6.2f}",
                flush=True,
            )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="size of a batch")
    parser.add_argument("--limit", type=int, default=None, help="train on so many samples only")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument(
        "--precision", choices=["float32", "bfloat16", "float64"], default="float32", help="of our side"
    )
    arguments = parser.parse_args()
    task = load_task(TASK)
    data, shape = task.load(arguments.data_dir), task.shape(arguments.data_dir)
    samples = min(arguments.limit or len(data.train_targets), len(data.train_targets))
    print(f"n = {samples:,} training and {len(data.test_targets):,} test samples, 1 seed, 1 thread")
    print("; ".join(made_by(["torch"]).values()))
    print("                            test accuracy      wall s an epoch         CPU s an epoch")
    print("variant    weights epoch    plain   ours     plain   ours  ratio     plain   ours  ratio")
    for name in arguments.variants:
        compare(name, measure(VARIANTS[name], shape).params, arguments)


if __name__ == "__main__":
    main()
