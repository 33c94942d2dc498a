"""One of the processes that search FOLDER/study.yaml with Optuna alone until they are ended.

    python benchmarks/live_optuna.py FOLDER tpe 0      # and, at the same time, with 1
    python benchmarks/live_optuna.py FOLDER random 0

It is written as Optuna's documentation shows: the processes share one study in a journal file. TPE has its defaults and
both objectives. Nothing is stopped early, because Optuna does not prune trials of several objectives.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from live_training import Training
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from ablate.study.space import Choices, FloatRange, IntRange

SAMPLERS: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
}


def suggest(trial: optuna.Trial, name: str, spec: Any) -> Any:
    """Return Optuna's suggestion for a range of a study file."""
    if isinstance(spec, Choices):
        return trial.suggest_categorical(name, spec.choices)
    if isinstance(spec, IntRange):
        return trial.suggest_int(name, *spec.bounds, log=spec.log, step=spec.step or 1)
    assert isinstance(spec, FloatRange)
    return trial.suggest_float(name, *spec.bounds, log=spec.log)


def main() -> None:
    """Search."""
    folder, sampler, process = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    training = Training(folder)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        chosen: dict[str, Any] = {}
        for name, spec in training.space.ranges.items():
            if training.space.is_active(name, chosen):
                chosen[name] = suggest(trial, name, spec)
        *_, (accuracy, params) = training.epochs(chosen)
        return accuracy, math.log10(params)

    study = optuna.create_study(
        study_name="live",
        storage=JournalStorage(JournalFileBackend(str(folder / "journal.log"))),
        sampler=SAMPLERS[sampler](seed=1000 * training.study.seed + process),
        directions=["maximize", "minimize"],
        load_if_exists=True,
    )
    study.optimize(objective)


if __name__ == "__main__":
    main()
