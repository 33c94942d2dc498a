"""Runs trials in this process, one pack at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.base.ending import GRACE_SECONDS
from ablate.base.files import Place
from ablate.core.code_version import VERSIONS
from ablate.execution.pack_run import Assignment, PackRun
from ablate.execution.packing import Packing, RunningPack, member_of
from ablate.execution.signals import Interruption

if TYPE_CHECKING:
    from ablate.tuning import Search


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Trains in this process, on one thread as a Ray worker does, so that both give the same numbers on a CPU."""

    home: Path
    store: Place | None = None
    data_dir: Path | None = None
    device: str = "auto"
    trainer: str | None = None
    threads: int = 1
    pack: int = 1
    grace_seconds: float = GRACE_SECONDS
    seeds_at_once: int | None = None

    def run(self, search: Search, *, on_event: Callable[[], None]) -> None:
        """Run `search` as `Executor.run` describes."""
        device = _own_device() if self.device == "auto" else self.device
        store = self.home.absolute() if self.store is None else self.store
        member = partial(member_of, search=search, store=store)
        packing = Packing(search=search, member=member, most=self.pack if self.trainer is None else 1)
        with (
            Interruption(self.grace_seconds) as interruption,
            search.listening(interruption.ask),
            _threads_restored(),
        ):
            while (pack := packing.begin()) is not None:
                on_event()
                assignment = Assignment(
                    members=tuple(pack.members.values()),
                    data_dir=self.data_dir.absolute() if self.data_dir else None,
                    device=device,
                    trainer=self.trainer,
                    threads=self.threads,
                    seeds_at_once=self.seeds_at_once,
                    packed=pack.packed,
                    versions=self.home.absolute() / VERSIONS,
                    grace_seconds=self.grace_seconds,
                )
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
    omp = os.environ.get("OMP_NUM_THREADS")
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else None
    try:
        yield
    finally:
        if omp is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = omp
        if torch and threads:
            torch.set_num_threads(threads)
