"""Estimates the duration of a trial from a few steps of a small and a middle network, on made-up data."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ablate.config import InputShape, ModelConfig, Protocol, Size, TaskConfig, TrainConfig
from ablate.tasks import Data
from ablate.training import train
from ablate.trial import TrialConfig, TrialKey

STEPS, BATCH, EPOCHS = 3, 64, 4
FLOPS_PER_EPOCH = 2e10  # forward operations that one measured epoch may cost: about a second of one core


@dataclass(frozen=True, kw_only=True)
class Paced:
    """One architecture whose training time is to be estimated."""

    model: ModelConfig
    train: TrainConfig
    size: Size


def seconds_per_trial(
    rows: Sequence[Paced],
    *,
    task: TaskConfig,
    shape: InputShape,
    data_dir: Path | None,
    replicates: int,
    protocol: Protocol,
) -> float:
    """Return the mean time of a full-length trial over `rows`, all replicates together, on one thread or one GPU.

    `shape` is the task's in `data_dir`. Time per sample is assumed to be linear in a row's FLOPs. Validation and
    reading images from disk are not included.
    """
    ordered = sorted(rows, key=lambda row: row.size.flops)
    small, middle = ordered[0], ordered[len(ordered) // 2]
    base = _seconds_per_sample(small, task, shape, data_dir, replicates)
    at_middle = base if middle is small else _seconds_per_sample(middle, task, shape, data_dir, replicates)
    rise = max(0.0, at_middle - base) / max(1, middle.size.flops - small.size.flops)
    total = 0.0
    for row in rows:
        per_epoch = _samples_per_epoch(row.train, task, shape, protocol)
        total += (base + rise * (row.size.flops - small.size.flops)) * row.train.epochs * per_epoch
    return total / len(rows)


def made_up_data(shape: InputShape, *, samples: int, test: int) -> Data:
    """Return made-up data of `shape`, in the form in which a task loads them."""
    texts = shape.source_tokens > 0
    inputs, targets = zip(*(_made_up_split(shape, count) for count in (samples, test)), strict=True)
    return Data(
        train_inputs=inputs[0],
        train_targets=targets[0],
        test_inputs=inputs[1],
        test_targets=targets[1],
        validation_inputs=inputs[1] if texts else None,
        validation_targets=targets[1] if texts else None,
        ids=shape.inputs == "ids",
        pad=shape.pad,
        start=1 if texts else None,
        end=2 if texts else None,
    )


def made_up_scores(shape: InputShape) -> tuple[Tensor, Tensor]:
    """Return scores and targets of one made-up sample, as a task's loss and metrics take them."""
    if shape.output == "token":
        return torch.zeros(1, shape.tokens, shape.outputs), torch.zeros(1, shape.tokens, dtype=torch.int64)
    return torch.zeros(1, shape.outputs), torch.zeros(1, dtype=torch.int64)


def _made_up_split(shape: InputShape, count: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets; every second text has full length, the others half of it."""
    per_sample = (count, shape.tokens) if shape.output == "token" else (count,)
    targets = torch.arange(per_sample[0]).reshape(-1, *[1] * (len(per_sample) - 1)).expand(per_sample) % shape.outputs
    if shape.source_tokens:
        length = torch.where(torch.arange(count) % 2 == 0, 1.0, 0.5)[:, None]
        here = torch.arange(shape.tokens) < (length * shape.tokens).ceil()
        source = torch.full((count, shape.source_tokens), 3)
        there = torch.arange(shape.source_tokens) < (length * shape.source_tokens).ceil()
        return source.where(there, torch.tensor(shape.pad or 0)), torch.full_like(targets, 3).where(
            here, shape.pad or 0
        )
    if shape.inputs == "ids":
        return torch.zeros(count, shape.tokens, dtype=torch.int64), targets
    return torch.zeros(count, shape.tokens, shape.features, dtype=torch.uint8), targets


def _samples_per_epoch(training: TrainConfig, task: TaskConfig, shape: InputShape, protocol: Protocol) -> int:
    samples = shape.trained_samples(task, protocol)
    steps = training.steps_per_epoch
    return samples if steps is None else min(samples, steps * training.batch_size)


_known: dict[str, float] = {}  # tasks of the same shape are timed once


def _seconds_per_sample(
    row: Paced, task: TaskConfig, shape: InputShape, data_dir: Path | None, replicates: int
) -> float:
    """Return the training time of one sample, all replicates together; cached per network and shape."""
    settings = row.train.model_dump_json(exclude={"epochs", "learning_rate"})
    key = f"{row.model.model_dump_json()} {settings} {shape.model_dump_json()} {replicates}"
    if key not in _known:
        _known[key] = _measure(row, task, shape, data_dir, replicates)
    return _known[key]


def _measure(row: Paced, task: TaskConfig, shape: InputShape, data_dir: Path | None, replicates: int) -> float:
    """Return the training time of one sample, all replicates together."""
    affordable = FLOPS_PER_EPOCH / (3 * max(row.size.flops, 1) * replicates)
    batch = max(min(row.train.batch_size, BATCH, int(affordable / STEPS)), 1)
    steps = min(STEPS, max(int(affordable / batch), 1))
    epochs = EPOCHS if steps == STEPS else 2
    config = TrialConfig(
        key=TrialKey(study="plan", dataset="made-up", number=0),
        stage="search",
        model=row.model,
        task=task.model_copy(update={"train_limit": None, "share": 1.0}),
        train=row.train.model_copy(
            update={"epochs": epochs, "report_every": 1, "batch_size": batch, "steps_per_epoch": None}
        ),
        seeds=tuple(range(replicates)),
        study_seed=0,
        protocol="paper",
    )
    data = made_up_data(shape, samples=batch * steps, test=1)
    moments = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a trial's worker has
    try:
        # the output is not scored: a task has reference answers for its own data only
        for _ in train(config, data_dir=data_dir, device=_device(), data=data, judged=False):
            moments.append(time.perf_counter())
    finally:
        torch.set_num_threads(threads)
    # the first epoch includes the setup of memory and kernels; the fastest is the least disturbed
    return min(after - before for before, after in itertools.pairwise(moments)) / (batch * steps)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
