"""The built-in trainer as users have it, packs included, with a line on disk for each step of each of its trials.

`counting` takes the trainer's place, and a trainer of one's own is in no pack. Here `into` is put into a forked command
(see killing), or `python -m support.faults.packed search …` is run. The same files in DATA_DIR are read and written:
`steps.jsonl`, `pace` and `mortal-NUMBER`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from ablate.execution import tune_adapter
from ablate.execution.worker import TrialActor
from support.faults.counting import MORTAL, PACE, STEPS, append, count, number


def into(then: Callable[[], object] | None = None) -> None:
    """Let every command of this process train with the built-in trainer, here or on Ray, and watch its steps.

    `then` puts a fault into it as well.
    """
    count(None)
    tune_adapter.TrialActor = WatchedActor  # type: ignore[attr-defined]  # the name by which the executor finds it
    watch()
    if then is not None:
        then()


class WatchedActor(TrialActor):
    """The actor of a Ray worker, whose steps are watched."""

    def setup(self, config: dict[str, Any]) -> None:
        watch()
        super().setup(config)


def watch() -> None:
    """Write a line for each step of each trial of this process's packs, and take the time that a step should last."""
    from ablate.engine.training.pack import TrialPack
    from ablate.engine.training.replica_group import ReplicaGroup

    train, step = TrialPack._train, ReplicaGroup.step
    if train.__module__ == __name__:
        return
    now: list[tuple[Any, Any]] = []  # the data folder and a trial, for each trial that trains now
    taken: dict[Any, int] = {}

    def watched_train(self: Any, common: Any, trials: Any) -> Any:
        now[:] = [(self._data_dir, trial) for trial in trials]
        try:
            return train(self, common, trials)
        finally:
            now.clear()

    def watched_step(self: Any, *arguments: Any, **options: Any) -> Any:
        found = step(self, *arguments, **options)
        for folder, trial in now:
            key, attempt = trial.config.key, trial.progress.attempt
            who = {"dataset": key.dataset, "trial": key.number, "attempt": attempt, "pid": os.getpid()}
            append(folder / STEPS, who | {"at": time.time(), "beside": len(now) - 1})
            taken[key, attempt] = taken.get((key, attempt), 0) + 1
            if number(folder / (MORTAL % key.number)) == taken[key, attempt]:
                os.kill(os.getpid(), signal.SIGKILL)
        if now:
            time.sleep(number(now[0][0] / PACE))
        return found

    TrialPack._train = watched_train  # type: ignore[method-assign]
    ReplicaGroup.step = watched_step  # type: ignore[method-assign]


def main() -> None:
    """Run the command line with the built-in trainer, watched."""
    from ray import cloudpickle

    from support.faults import counting, packed

    for module in (counting, packed):  # the workers of a cluster cannot import them
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    packed.into()
    from ablate.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
