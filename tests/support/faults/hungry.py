"""The counting trainer, but some trials want more memory than there is, after their first report."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablate.core.trial import Report, TrialConfig
from support.faults import counting

SPARE, MUCH = 256 * 2**20, 2**32  # bytes left to the process, and bytes that are asked for
ROOM = 3 * 2**30  # bytes that the machine has for a worker before Ray kills it
ALWAYS, ONCE, TORCH = 1, 2, 3  # the trials that are hungry at each attempt, at the first, and by way of torch


def train(config: TrialConfig, *, data_dir: Path | None, attempt: int = 1, **rest: Any) -> Iterator[Report]:
    """Yield what the counting trainer yields, unless the memory does not suffice."""
    for report in counting.train(config, data_dir=data_dir, attempt=attempt, **rest):
        yield report
        if hungry(config, report, attempt):
            with limited():
                eat(by_torch=config.key.number == TORCH)


def gorge(config: TrialConfig, *, data_dir: Path | None, attempt: int = 1, **rest: Any) -> Iterator[Report]:
    """Yield what the counting trainer yields, and fill the machine's memory meanwhile until somebody ends that."""
    for report in counting.train(config, data_dir=data_dir, attempt=attempt, **rest):
        yield report
        held: list[bytes] = []
        while hungry(config, report, attempt):
            held.append(b"x" * 2**27 if len(held) * 2**27 < 2 * ROOM else b"")  # written to: it is really there
            time.sleep(0.02)


def hungry(config: TrialConfig, report: Report, attempt: int) -> bool:
    """Whether a trial needs more memory now."""
    number = config.key.number
    return report.epoch == 1 and (number == ALWAYS or (number in (ONCE, TORCH) and attempt == 1))


def watched_by_ray() -> None:
    """Let the Ray of this process kill workers once they take more than ROOM beside what is in use now."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(facts[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    threshold = f"{(total - free + ROOM) / total:.4f}"
    os.environ.update({"RAY_memory_usage_threshold": threshold, "RAY_memory_monitor_refresh_ms": "100"})
    counting.count("support.faults.hungry:gorge")


@contextmanager
def limited() -> Iterator[None]:
    """Let this process have little more address space than it uses; the kernel refuses the rest."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    former = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)


def eat(*, by_torch: bool) -> None:
    """Ask for memory that is not there."""
    if by_torch:
        import torch

        torch.ones(MUCH, dtype=torch.uint8)
    else:
        bytearray(MUCH)
