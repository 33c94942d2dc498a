"""The built-in trainer, with data cached in memory between the trials of one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from ablate.files import Place
from ablate.registry import read_task
from ablate.tasks import Data, load_task
from ablate.training import train as train_trial
from ablate.trial import Report, TrialConfig

DATA_SETS = 2  # kept in memory: a worker alternates between those of one study


def train(
    config: TrialConfig,
    *,
    data_dir: Path | None,
    checkpoints: Place,
    device: str,
    attempt: int,
    pause: Callable[[], bool],
) -> Iterator[Report]:
    """Return `ablate.training.train` on data that this process loads once per data set."""
    data = _load(config.task.model_dump_json(), data_dir)
    return train_trial(
        config, data_dir=data_dir, checkpoints=checkpoints, device=device, attempt=attempt, pause=pause, data=data
    )


@lru_cache(maxsize=DATA_SETS)
def _load(task: str, data_dir: Path | None) -> Data:
    return load_task(read_task(json.loads(task))).load(data_dir)
