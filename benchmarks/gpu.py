"""One part of the GPU check; `bash benchmarks/gpu.sh OUT` runs all of them.

    python benchmarks/gpu.py PART OUT [--device cpu] [--small]

`device`: names, versions, measured peaks of matrix products and of copies. `packs`: trials per hour of the 500-epoch
MNIST trial (6 blocks, N = 60, batch 256) in packs of 1 to 64, with and without MLP, in float32 and bfloat16. `plain`:
a hand-written loop, and `processes`: four of them at a time. `table2`: the first row of paper A's Table 2 at 27 epochs.
MFU is 3 forward passes' operations over the measured peak of a matrix product in the same arithmetic. "bandwidth" is
what a step must at least move (what autograd keeps, written and read, and the optimiser's matrices) over the measured
peak of a copy. Trials per hour count the training steps alone. An empty row: memory does not suffice.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from plain_network import Plain

from ablate.config import TaskConfig
from ablate.models import measure
from ablate.models.settings import InputShape, ModelConfig
from ablate.registry import read_task
from ablate.tasks import Data, load_task
from ablate.training.family import FamilySettings
from ablate.training.loop import train
from ablate.training.made_up import made_up_data
from ablate.training.pack_size import PackBench
from ablate.training.settings import Schedule, TrainConfig
from ablate.trial import TrialConfig, TrialKey

EPOCHS, STEPS_PER_EPOCH, BATCH = 500, 234, 256
PEAKS = "device.csv"
PACK_COLUMNS = ("variant", "precision", "pack", "trials_per_hour", "mfu", "bandwidth")
VARIANTS = {
    "with MLP": ModelConfig(width=60, depth=6, mlp=256),
    "without MLP": ModelConfig(width=60, depth=6, mlp=0),
}


def main() -> None:
    """Run one part and write its CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a miniature, to test the script")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU here: torch.cuda.is_available() is False")
    rows = list(PARTS[asked.part](asked))
    with (asked.out / f"{asked.part}.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def device(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the device, and its measured peaks: operations per second of products, bytes per second of copies."""
    size, count = (256, 2**20) if asked.small else (8192, 2**28)
    name = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor() or platform.machine()
    source = torch.ones(count, device=asked.device)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds_of(partial(target.copy_, source), asked.device)
    peaks = {}
    for precision in (torch.float32, torch.bfloat16):
        matrix = torch.randn(size, size, device=asked.device).to(precision)
        peaks[precision] = 2 * size**3 / seconds_of(partial(torch.mm, matrix, matrix), asked.device)
    yield {
        "device": name,
        "float32_flops": f"{peaks[torch.float32]:.4g}",
        "bfloat16_flops": f"{peaks[torch.bfloat16]:.4g}",
        "bytes_per_s": f"{copied:.4g}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


def packs(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield trials per hour and MFU over variants, arithmetic and pack sizes."""
    peaks = next(csv.DictReader((asked.out / PEAKS).read_text().splitlines()))
    sizes = (1, 2) if asked.small else (1, 2, 4, 8, 16, 32, 64)
    for (name, model), precision in ((v, p) for v in VARIANTS.items() for p in ("float32", "bfloat16")):
        config = mnist_trial(small(model) if asked.small else model, precision=precision)
        flops = measure(model_of(config), load_task(config.task).shape(None)).flops
        bench = PackBench.of(config, data_dir=None, device=asked.device)
        for size in sizes:
            rate = bench.throughput(size)
            if rate is None:
                yield dict.fromkeys(PACK_COLUMNS, "") | {"variant": name, "precision": precision, "pack": size}
                break
            yield {
                "variant": name,
                "precision": precision,
                "pack": size,
                "trials_per_hour": round(rate * 3600 / (EPOCHS * STEPS_PER_EPOCH), 3),
                "mfu": f"{3 * flops * BATCH * rate / float(peaks[f'{precision}_flops']):.4f}",
                "bandwidth": f"{bench.step_bytes() * rate / float(peaks['bytes_per_s']):.4f}",
            }


def plain(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield trials per hour of a hand-written loop."""
    for name, model in VARIANTS.items():
        rate = plain_rate(small(model) if asked.small else model, asked.device, 2 if asked.small else 60)
        yield {"variant": name, "processes": 1, "trials_per_hour": round(per_hour(rate), 3)}


def processes(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield trials per hour of four hand-written loops that share the device."""
    count, steps = 4, 2 if asked.small else 60
    context = multiprocessing.get_context("spawn")
    for name, model in VARIANTS.items():
        used = small(model) if asked.small else model
        with context.Pool(count) as pool:
            pool.starmap(plain_rate, [(used, asked.device, 2)] * count, chunksize=1)  # imports and kernels
            rates = pool.starmap(plain_rate, [(used, asked.device, steps)] * count, chunksize=1)
        yield {"variant": name, "processes": count, "trials_per_hour": round(per_hour(sum(rates)), 3)}


def table2(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the epochs of the first row of paper A's Table 2, three seeds side by side."""
    task, data = task_and_data(asked)
    model, epochs = (small(VARIANTS["with MLP"]), 2) if asked.small else (VARIANTS["with MLP"], 27)
    config = mnist_trial(model, epochs=epochs, precision="float32", seeds=(0, 1, 2), task=task)
    begun = time.perf_counter()
    for report in train(config, device=asked.device, data=data):
        yield {
            "epoch": report.epoch,
            "data": "made up" if data is not None else "MNIST",
            "val_accuracy": f"{report.mean('val_accuracy'):.4f}",
            "train_seconds": round(report.wall_seconds, 3),
            "seconds": round(time.perf_counter() - begun, 3),
        }


def small(model: ModelConfig) -> ModelConfig:
    """Return a network that a CPU trains in no time."""
    return model.model_copy(update={"width": 8, "depth": 1, "mlp": 16 if model.mlp else 0})


def task_and_data(asked: argparse.Namespace) -> tuple[TaskConfig, Data | None]:
    """Return MNIST, and made-up data of its shape if it is not here."""
    limit = {"train_limit": 512} if asked.small else {}
    task = read_task({"task": "mnist", "patch": (7, 7), "share": 0.01 if asked.small else 1.0, **limit})
    try:
        load_task(task).check(None)
    except Exception:  # whatever is wrong with the data, the check of the device goes on
        return task, made_up_data(load_task(task).shape(None), samples=4096, test=512)
    return task, None


def mnist_trial(
    model: ModelConfig, *, epochs: int = EPOCHS, precision: str, seeds: tuple[int, ...] = (0,), task: Any = None
) -> TrialConfig:
    """Return the trial that is measured."""
    schedule = Schedule(name="cosine")
    training = {"epochs": epochs, "batch_size": BATCH, "precision": precision, "schedule": schedule}
    return TrialConfig(
        key=TrialKey(study="gpu", dataset="mnist", number=0),
        stage="search",
        settings=FamilySettings(model=model, training=TrainConfig.model_validate(training)),
        task=task or read_task({"task": "mnist", "patch": (7, 7)}),
        seeds=seeds,
        study_seed=0,
        protocol="paper",
    )


def model_of(config: TrialConfig) -> ModelConfig:
    """Return the network of a trial."""
    assert isinstance(config.settings, FamilySettings)
    return config.settings.model


def plain_rate(model: ModelConfig, device: str, steps: int) -> float:
    """Return the steps per second of a hand-written loop with torch.optim.AdamW, data on the device."""
    torch.manual_seed(0)
    module = Plain(model, InputShape(tokens=16, features=49, outputs=10, train_samples=60_000)).to(device)
    optimizer = torch.optim.AdamW(module.parameters(), fused=device == "cuda")
    inputs, targets = torch.rand(4096, 16, 49, device=device), torch.randint(10, (4096,), device=device)

    def step() -> None:
        index = torch.randint(len(targets), (BATCH,), device=device)
        loss = F.cross_entropy(module(inputs[index]), targets[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize(device)
    return steps / (time.perf_counter() - begun)


def per_hour(rate: float) -> float:
    """Return trials per hour from steps per second."""
    return rate * 3600 / (EPOCHS * STEPS_PER_EPOCH)


def seconds_of(work: Callable[[], object], device: str, repeats: int = 10) -> float:
    """Return the fastest of some runs, after one that is not timed."""
    best = float("inf")
    for _ in range(repeats + 1):
        synchronize(device)
        begun = time.perf_counter()
        work()
        synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return best


def synchronize(device: str) -> None:
    """Wait until the device has done all work."""
    if device == "cuda":
        torch.cuda.synchronize()


PARTS: Mapping[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "device": device,
    "packs": packs,
    "plain": plain,
    "processes": processes,
    "table2": table2,
}

if __name__ == "__main__":
    main()
