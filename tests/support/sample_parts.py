"""Parts of a data set as trials see them."""

from __future__ import annotations

from dataclasses import replace

import torch

from ablate.core.registry import read_task
from ablate.core.trial import TrialConfig
from ablate.engine.tasks import Data
from ablate.engine.training.splits import Splits, split

CPU = torch.device("cpu")


def parts(data: Data, config: TrialConfig) -> Splits:
    return split(data, config, device=CPU, dtype=torch.float32)


def with_task(config: TrialConfig, **changes: object) -> TrialConfig:
    task = config.task.model_dump() | changes
    return replace(config, task=read_task(task))
