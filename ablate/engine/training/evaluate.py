"""Loss and metrics of every replicate on a part of the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.engine.models.equal_replicates import WHOLE, filled
from ablate.engine.tasks import Task
from ablate.engine.training.replica_group import ReplicaGroup
from ablate.engine.training.samples import Samples

BATCH = 256  # samples per replicate: fits a core's cache
GPU_BATCH = 1024  # the same on a GPU, where Python's time to launch operations limits a small network
GPU_TOKENS = 2**18  # of all replicates in a GPU batch at most, unless BATCH samples have more


class Means:
    """Running means over targets that are not `pad`, per replicate."""

    def __init__(self, pad: int | None) -> None:
        self.pad = pad
        self.sums: dict[str, Tensor] = {}
        self.count: int | Tensor = 0

    def add(self, values: Mapping[str, Tensor], targets: Tensor, *, losses: Tensor | None = None) -> None:
        """Add `values` [R, B, ...], one per target and 0 at padding; `losses` [R] is a mean over these targets."""
        count = targets[0].numel() if self.pad is None else (targets != self.pad).flatten(1).sum(-1)
        self.count = self.count + count
        sums = {} if losses is None else {"loss": (losses * count).double()}
        sums |= {name: value.detach().flatten(1).sum(-1, dtype=torch.float64) for name, value in values.items()}
        self.sums = {name: self.sums[name] + total if name in self.sums else total for name, total in sums.items()}

    def values(self) -> dict[str, Tensor]:
        """Return the means by name, float64 [R] each; NaN if there was no target."""
        return {name: total / self.count for name, total in self.sums.items()}

    def part(self, start: int, stop: int) -> Means:
        """Return the means of the replicates from `start` to `stop`."""
        found = Means(self.pad)
        found.sums = {name: total[start:stop] for name, total in self.sums.items()}
        found.count = self.count[start:stop] if isinstance(self.count, Tensor) and self.count.dim() else self.count
        return found

    @staticmethod
    def joined(parts: Sequence[Means]) -> Means:
        """Return the means of the replicates of all parts, which have seen equally many batches."""
        found, counts = Means(parts[0].pad), [part.count for part in parts]
        found.sums = {name: torch.cat([part.sums[name] for part in parts]) for name in parts[0].sums}
        per_replicate = [count for count in counts if isinstance(count, Tensor) and count.dim()]
        found.count = torch.cat(per_replicate) if per_replicate else counts[0]
        return found


class SampleMeans:
    """Gathers what each replicate scores on each sample of a split: the mean over its targets that are not `pad`."""

    def __init__(self, pad: int | None) -> None:
        self._pad = pad
        self._sums: dict[str, list[Tensor]] = {}
        self._counts: list[Tensor] = []

    def add(self, values: Mapping[str, Tensor], targets: Tensor) -> None:
        """Add a batch of `values` [R, B, ...], one per target and 0 at padding."""
        there = torch.ones_like(targets, dtype=torch.bool) if self._pad is None else targets != self._pad
        self._counts.append(there.flatten(2).sum(-1).cpu() if there.dim() > 2 else there.long().cpu())
        for name, value in values.items():
            sums = value.flatten(2).sum(-1, dtype=torch.float64) if value.dim() > 2 else value.double()
            self._sums.setdefault(name, []).append(sums.cpu())

    def values(self) -> dict[str, NDArray[np.float32]]:
        """Return one value per sample and metric, float32 [R, n], whose mean is the metric's mean over all targets.

        For samples of unequal length these are the linear terms of sum / count.
        """
        count = torch.cat(self._counts, dim=1).double()
        found = {}
        for name, parts in self._sums.items():
            sums = torch.cat(parts, dim=1)
            mean = sums.sum(1, keepdim=True) / count.sum(1, keepdim=True)
            found[name] = (mean + (sums - mean * count) / count.mean(1, keepdim=True)).float().numpy()
        return found


@torch.no_grad()
def evaluate(
    group: ReplicaGroup,
    task: Task,
    samples: Samples,
    *,
    replicates: Sequence[int],
    batch: int = BATCH,
    between: Callable[[], None] | None = None,
    each: SampleMeans | None = None,
) -> dict[str, Tensor]:
    """Return `loss` (without label smoothing) and the task's metrics, as means over the targets, of some replicates.

    Each is float64 [R] by name. `samples.index` has a part for each. `between` is called before every batch and may
    raise. `each` gathers the values of every sample.

    `batch` is rounded to a multiple of WHOLE. The last batch is filled up with a sample whose results are dropped
    (`models.equal_replicates`).
    """
    group.module.eval()
    forward = group.forward if len(replicates) == group.replicates else group.forward_of(replicates)
    means, left = Means(group.pad), samples.index.shape[1]
    with closing(samples.batches(filled(samples.index), max(batch // WHOLE, 1) * WHOLE)) as batches:
        for x, targets in batches:
            if between is not None:
                between()
            scores = forward(x)
            values = {"loss": task.loss(scores, targets, 0.0), **task.metrics(scores, targets)}
            values = {name: value[:, :left] for name, value in values.items()}
            means.add(values, targets[:, :left])
            if each is not None:
                each.add(values, targets[:, :left])
            left -= targets.shape[1]
    return means.values()
