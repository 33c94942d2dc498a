"""Runs trials in this process, one pack at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablate.execution.own_ray import environment
from ablate.execution.pack_run import Assignment, PackRun
from ablate.execution.packing import PackExecutor, Packing, RunningPack
from ablate.execution.signals import Interruption

if TYPE_CHECKING:
    from ablate.tuning import Search


@dataclass(frozen=True, kw_only=True)
class LocalExecutor(PackExecutor):
    """Trains in this process, on one thread as a Ray worker does, so that both give the same numbers on a CPU."""

    threads: int = 1

    def run(self, search: Search, *, on_event: Callable[[], None]) -> None:
        """Run `search` as `Executor.run` describes."""
        device = _own_device() if self.device == "auto" else self.device
        packing = self.packing(search)
        with (
            Interruption(self.grace_seconds) as interruption,
            search.listening(interruption.ask),
            _threads_restored(),
        ):
            while (pack := packing.begin()) is not None:
                on_event()
                assignment = self.assignment(pack, device=device, threads=self.threads)
                _run_pack(packing, pack, assignment, interruption, on_event)


def _run_pack(
    packing: Packing,
    pack: RunningPack,
    assignment: Assignment,
    interruption: Interruption,
    on_event: Callable[[], None],
) -> None:
    with closing(PackRun(assignment, lambda: interruption.arrived)) as run:
        while pack.members:
            if interruption.arrived:
                run.change(packing.pause(pack), ())
                on_event()
            if not pack.members:
                break
            with interruption.breakable():
                turn = run.turn()
            ended = packing.take(pack, turn)
            on_event()
            run.change(ended, () if interruption.arrived else packing.fill(pack))
    interruption.check()


def _own_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def _threads_restored() -> Iterator[None]:
    """Restore the process's number of threads afterwards, for callers that continue (a notebook, a test)."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else None
    with environment(OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS")):
        try:
            yield
        finally:
            if torch and threads:
                torch.set_num_threads(threads)
