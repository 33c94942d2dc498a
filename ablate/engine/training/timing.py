"""Estimates the duration of a trial from a few steps of a small and a middle network, on made-up data."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ablate.core.config import Protocol, Size, TaskConfig
from ablate.core.trial import TrialConfig, TrialKey
from ablate.engine.models.equal_replicates import WHOLE
from ablate.engine.models.model_config import InputShape
from ablate.engine.training.family import FamilySettings
from ablate.engine.training.made_up import made_up_data
from ablate.engine.training.one_trial import train
from ablate.engine.training.train_config import TrainConfig

STEPS, BATCH, EPOCHS = 8, 128, 4
FORWARD = 1 / 3  # of the arithmetic of a training step: its backward pass costs twice the forward pass
FLOPS_PER_EPOCH = 2e10  # forward operations that one measured epoch may cost: about a second of one core


Paced = tuple[FamilySettings, Size]  # one architecture whose training time is to be estimated


def seconds_per_trial(
    networks: Sequence[Paced],
    *,
    task: TaskConfig,
    shape: InputShape,
    data_dir: Path | None,
    replicates: int,
    protocol: Protocol,
) -> float:
    """Return the mean time of a full-length trial over `networks`, all replicates together, on one thread or one GPU.

    `shape` is the task's in `data_dir`. Time per sample is assumed to be linear in a network's FLOPs, and a validated
    sample to cost a third of a trained one: the forward pass alone. Reading images from disk is not included, nor is
    the decoding of text.
    """
    ordered = sorted(networks, key=lambda network: network[1]["flops"])
    small, middle = ordered[0], ordered[len(ordered) // 2]
    base = _seconds_per_sample(small, task, shape, data_dir, replicates)
    at_middle = base if middle is small else _seconds_per_sample(middle, task, shape, data_dir, replicates)
    rise = max(0.0, at_middle - base) / max(1, middle[1]["flops"] - small[1]["flops"])
    total = 0.0
    for settings, size in networks:
        validated = _validated(shape, task, protocol) / settings.training.report_every
        per_epoch = _samples_per_epoch(settings.training, task, shape, protocol) + FORWARD * validated
        total += (base + rise * (size["flops"] - small[1]["flops"])) * settings.length * per_epoch
    return total / len(networks)


def _samples_per_epoch(training: TrainConfig, task: TaskConfig, shape: InputShape, protocol: Protocol) -> int:
    samples = shape.trained_samples(task, protocol)
    steps = training.steps_per_epoch
    return samples if steps is None else min(samples, steps * training.batch_size)


def _validated(shape: InputShape, task: TaskConfig, protocol: Protocol) -> float:
    """Return the number of validation samples; 0 where a data set ships them and nothing says how many."""
    known, _ = shape.evaluated_samples(task, protocol)
    if known is not None or protocol == "paper" or shape.ships_validation:
        return known or 0
    held_out = task.share * task.validation * shape.train_samples
    return held_out / max(shape.window, 1)  # windows on a text that do not overlap


_known: dict[str, float] = {}  # tasks of the same shape are timed once


def _seconds_per_sample(
    network: Paced, task: TaskConfig, shape: InputShape, data_dir: Path | None, replicates: int
) -> float:
    """Return the training seconds of one sample, all replicates together."""
    settings = network[0].model_dump_json(exclude={"training": {"epochs", "learning_rate"}})
    key = f"{settings} {shape.model_dump_json()} {replicates}"
    if key not in _known:
        _known[key] = _measure(network, task, shape, data_dir, replicates)
    return _known[key]


def _measure(network: Paced, task: TaskConfig, shape: InputShape, data_dir: Path | None, replicates: int) -> float:
    """Return the training seconds of one sample, all replicates together."""
    settings, size = network
    affordable = FLOPS_PER_EPOCH / (3 * max(size["flops"], 1) * replicates)
    batch = max(min(settings.training.batch_size, BATCH, int(affordable)), min(settings.training.batch_size, 2))
    steps = min(STEPS, max(int(affordable / batch), 1))
    epochs = EPOCHS if steps == STEPS else 2
    training = settings.training.model_copy(
        update={"epochs": epochs, "report_every": 1, "batch_size": batch, "steps_per_epoch": None}
    )
    config = TrialConfig(
        key=TrialKey(study="plan", dataset="made-up", number=0),
        stage="search",
        settings=settings.model_copy(update={"training": training}),
        task=task.model_copy(update={"train_limit": None, "share": 1.0}),
        seeds=tuple(range(replicates)),
        study_seed=0,
        protocol="paper",
    )
    data = made_up_data(shape, samples=batch * steps, test=1)
    # on a CPU, what else runs here does not count
    clock = time.process_time if _device() == "cpu" else time.perf_counter
    moments = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a trial's worker has
    try:
        # the output is not scored: a task has reference answers for its own data only
        for _ in train(config, data_dir=data_dir, device=_device(), data=data, judged=False):
            moments.append(clock())
    finally:
        torch.set_num_threads(threads)
    if len(moments) < 2:  # all replicates diverged in the first epoch
        return 0.0
    # the first epoch includes the setup of memory and kernels; the fastest is the least disturbed
    seconds = min(after - before for before, after in itertools.pairwise(moments))
    return seconds / (batch * steps + FORWARD * WHOLE)  # the one sample that is validated is filled up to WHOLE


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
