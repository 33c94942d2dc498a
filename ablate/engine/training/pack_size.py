"""How many trials a pack should have on a device: throughput and memory of a few steps on made-up data."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.core.trainable import Member
from ablate.core.trial import TrialConfig
from ablate.engine.models.fused import checked_kernels
from ablate.engine.tasks import load_task
from ablate.engine.training.common import Common, Trained
from ablate.engine.training.family import family
from ablate.engine.training.graph import WARM_UP, training_step
from ablate.engine.training.optim import RowSettings
from ablate.engine.training.samples import ModelInput
from ablate.engine.training.state import RowState
from ablate.engine.training.timing import stand_in_data

NEAR = 0.05  # share of the best throughput that a smaller pack may lack
FALL = 0.2  # share below the best throughput at which the search ends
STEPS, SECONDS = 3, 0.05  # timed at least, for each number of trials; the fastest step is the least disturbed
MEMORY_SHARE = 0.8  # of what is free; the rest is for evaluation and for other processes
BUFFERS = 6  # matrices [R, P] of a group: weights, two moments, gradients twice, scratch

Throughput = Callable[[int], float | None]


def measure_pack(config: TrialConfig, *, data_dir: Path | None, device: str, most: int) -> int:
    """Return the least number of trials like `config` with a throughput near the best, from 1 to `most`.

    A few steps of 1, 2, 4, ... trials are timed, while memory suffices and throughput does not fall.
    """
    if most < 2:
        return 1
    with _one_thread(device):
        return choose(PackBench.of(config, data_dir=data_dir, device=device).throughput, most)


def choose(throughput: Throughput, most: int) -> int:
    """Return the least count whose throughput is at most NEAR below the best of 1, 2, 4, ... and `most`.

    The search ends where throughput is FALL below the best, or is None: memory does not suffice.
    """
    counts = [2**power for power in range(math.floor(math.log2(most)) + 1)]
    found: dict[int, float] = {}
    for count in dict.fromkeys([*counts, most]):
        rate = throughput(count)
        if rate is None:
            break
        found[count] = rate
        if rate < (1 - FALL) * max(found.values()):
            break
    return min((count for count, rate in found.items() if rate >= (1 - NEAR) * max(found.values())), default=1)


@dataclass(kw_only=True)
class PackBench:
    """One trial that is repeated, and a batch of it."""

    common: Common
    trial: Trained
    start: RowState
    x: ModelInput
    targets: Tensor

    @staticmethod
    def of(config: TrialConfig, *, data_dir: Path | None, device: str) -> PackBench:
        """Prepare one trial on made-up data; its batch has the size of training."""
        training = family(config).training.model_copy(update={"epochs": 1, "steps_per_epoch": None})
        task = config.task.model_copy(update={"train_limit": None, "share": 1.0})
        settings = family(config).model_copy(update={"training": training})
        alike = replace(config, settings=settings, task=task, stage="search", protocol="paper", evaluates=None)
        shape = load_task(task).shape(data_dir)
        data = stand_in_data(load_task(task), shape, data_dir, training.batch_size)
        common = Common.of(alike, data_dir=data_dir, device=device, load=lambda _: data, judged=False)
        trial = common.prepared(Member(config=alike, checkpoints=None, attempt=1))
        samples = trial.parts.train
        x, targets = next(samples.batches(samples.index, training.batch_size))
        return PackBench(common=common, trial=trial, start=trial.replicas.state, x=x, targets=targets)

    def throughput(self, count: int) -> float | None:
        """Return the row steps per second of `count` trials, or None if memory does not suffice."""
        group = self.common.group
        if group.device.type == "cpu" and count * self.step_bytes() > MEMORY_SHARE * _free_bytes():
            return None
        try:
            self._take(count)
            group.module.train()
            x, targets = _repeated(self.x, count), self.targets.repeat(count, *[1] * (self.targets.dim() - 1))
            fastest = self._fastest(x, targets)
            if group.device.type == "cuda":
                peak = torch.cuda.max_memory_allocated(group.device)
                total = torch.cuda.mem_get_info(group.device)[0] + torch.cuda.memory_reserved(group.device)
                if peak > MEMORY_SHARE * total:
                    return None
        except torch.OutOfMemoryError:
            return None
        return group.rows / max(fastest, 1e-9)

    def _fastest(self, x: ModelInput, targets: Tensor) -> float:
        """Return the seconds of the fastest step, of at least STEPS steps that take at least SECONDS together.

        On a CPU these are CPU seconds. A first step, and on a GPU those before the step is replayed, are not timed.
        """
        group = self.common.group
        step = training_step(group, self.trial.config.task.task, steps=0)  # too few to compile blocks
        untimed = 1 if step == group.step else WARM_UP + 1
        on_cpu = group.device.type == "cpu"
        now = time.process_time if on_cpu else time.perf_counter
        if not on_cpu:
            torch.cuda.reset_peak_memory_stats(group.device)
        seconds: list[float] = []
        while len(seconds) < untimed + STEPS or sum(seconds[untimed:]) < SECONDS:
            before = now()
            step(x, targets)
            if not on_cpu:
                torch.cuda.synchronize(group.device)
            seconds.append(now() - before)
        return min(seconds[untimed:])

    def step_bytes(self) -> int:
        """Return the bytes of one trial in a step on the CPU: its rows, and twice what autograd keeps.

        The second half stands for gradients and temporary values.
        """
        group, kept = self.common.group, dict[int, int]()

        def keep(value: Tensor) -> Tensor:
            kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            return value

        self._take(1)
        checked_kernels()  # its first call computes gradients itself, which must not count
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            group.forward(self.x)
        return BUFFERS * self.start.weights.nbytes + 2 * sum(kept.values())

    def _take(self, count: int) -> None:
        group, rows = self.common.group, count * self.start.rows
        settings = RowSettings.of([self.trial.training] * rows, [self.trial.schedule] * rows)
        group.take(RowState.joined([self.start] * count), settings)
        group.key_dropout(range(rows))


def _repeated(x: Any, count: int) -> Any:
    """Return an input of the model with every row `count` times."""
    if isinstance(x, tuple):
        return tuple(_repeated(one, count) for one in x)
    return x.repeat(count, *[1] * (x.dim() - 1))


def _free_bytes() -> int:
    """Return the memory of this machine that is free or can be freed at once."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    """Train with one thread on the CPU, as a trial's worker does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
