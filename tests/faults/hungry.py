"""The counting trainer, but some trials ask for more memory than their process may have, at their second report."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import counting

from ablate.trial import Report, TrialConfig

SPARE, MUCH = 256 * 2**20, 2**32  # bytes left to the process, and bytes that are asked for
ALWAYS, ONCE, TORCH = 1, 2, 3  # the trials that are hungry at each attempt, at the first, and by way of torch


def train(config: TrialConfig, *, data_dir: Path | None, attempt: int = 1, **rest: Any) -> Iterator[Report]:
    """Yield what the counting trainer yields, unless the memory does not suffice."""
    number, last = config.key.number, 0
    for report in counting.train(config, data_dir=data_dir, attempt=attempt, **rest):
        yield report
        last = report.epoch
        if last == 1 and (number == ALWAYS or (number in (ONCE, TORCH) and attempt == 1)):
            with limited():
                eat(by_torch=number == TORCH)


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
