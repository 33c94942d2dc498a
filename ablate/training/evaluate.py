"""Loss and metrics of every replicate on a part of the data."""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.tasks import Task
from ablate.training.order import Samples
from ablate.training.rows import RowGroup

BATCH = 256  # samples per replicate: fits a core's cache, and fills a GPU with rows


@torch.no_grad()
def evaluate(group: RowGroup, task: Task, samples: Samples) -> dict[str, Tensor]:
    """Return `loss` (without label smoothing) and the task's metrics as means over the samples, float64 [R] each."""
    group.module.eval()
    sums: dict[str, Tensor] = {}
    for index in torch.split(samples.index, BATCH, dim=1):
        x, targets = samples.batch(index)
        scores = group.forward(x)
        add(sums, {"loss": task.loss(scores, targets, 0.0), **task.metrics(scores, targets)})
    return {name: total / samples.index.shape[1] for name, total in sums.items()}


def add(sums: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Add per-sample `values` [R, B] to running `sums`, float64 [R]."""
    for name, value in values.items():
        total = value.detach().sum(-1, dtype=torch.float64)
        sums[name] = sums[name] + total if name in sums else total
