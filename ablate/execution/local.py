"""Runs trials in this process, one at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.execution.executor import Assignment, advance, commit
from ablate.execution.signals import Interruption
from ablate.files import Place

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
    grace_seconds: float = 25.0

    def run(self, search: Search, *, on_event: Callable[[], None]) -> None:
        """Run `search` as `Executor.run` describes."""
        device = _own_device() if self.device == "auto" else self.device
        with (
            Interruption(self.grace_seconds) as interruption,
            search.listening(interruption.ask),
            _threads_restored(),
        ):
            while (config := search.next_trial()) is not None:
                on_event()
                assignment = Assignment(
                    config=config,
                    attempt=search.attempt(config.key),
                    store=self.home if self.store is None else self.store,
                    data_dir=self.data_dir,
                    device=device,
                    trainer=self.trainer,
                    threads=self.threads,
                )
                _run_trial(search, assignment, interruption, on_event)


def _run_trial(
    search: Search, assignment: Assignment, interruption: Interruption, on_event: Callable[[], None]
) -> None:
    with closing(assignment.reports(lambda: interruption.arrived)) as reports:
        going = True
        while going:
            with interruption.breakable():
                outcome = advance(reports)
            going = commit(search, assignment, outcome)
            on_event()
            if going and interruption.arrived:
                search.pause(assignment.config.key)
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
