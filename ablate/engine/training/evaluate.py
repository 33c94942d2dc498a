"""Loss and metrics of every replicate on a part of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.engine.tasks import Task
from ablate.engine.tasks.base import Scored
from ablate.engine.training.rows import ReplicaGroup
from ablate.engine.training.samples import Samples

PARTS = {"val": "validation", "test": "test"}
NAMED = 5  # classes named in a line
BATCH = 256  # samples per replicate: fits a core's cache
GPU_BATCH = 1024  # the same on a GPU, where Python's time to launch operations limits a small network
GPU_TOKENS = 2**18  # of all replicates in a GPU batch at most, unless BATCH samples have more
WHOLE = 32  # samples: a replicate's values then fill whole vectors and cache lines, for any shape of a sample


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
        per_row = [count for count in counts if isinstance(count, Tensor) and count.dim()]
        found.count = torch.cat(per_row) if per_row else counts[0]
        return found


class SampleMeans:
    """Gathers what each replicate scores on each sample of a split: the mean over its targets that are not `pad`."""

    def __init__(self, pad: int | None) -> None:
        self._pad = pad
        self._sums: dict[str, list[Tensor]] = {}
        self._counts: list[Tensor] = []
        self._of_batches = True  # whether each loss is constant over its batch

    def add(self, values: Mapping[str, Tensor], targets: Tensor) -> None:
        """Add a batch of `values` [R, B, ...], one per target and 0 at padding."""
        there = torch.ones_like(targets, dtype=torch.bool) if self._pad is None else targets != self._pad
        self._counts.append(there.flatten(2).sum(-1).cpu() if there.dim() > 2 else there.long().cpu())
        for name, value in values.items():
            sums = value.flatten(2).sum(-1, dtype=torch.float64) if value.dim() > 2 else value.double()
            self._sums.setdefault(name, []).append(sums.cpu())
        loss = self._sums["loss"][-1]
        self._of_batches &= bool(((loss == loss[:, :1]) | loss.isnan()).all())

    def values(self) -> dict[str, NDArray[np.float32]]:
        """Return one value per sample and metric, float32 [R, n], whose mean is the metric's mean over all targets.

        For samples of unequal length these are the linear terms of sum / count. A loss that is constant over each batch
        is a user's mean over a batch, which says nothing about a sample, and is left out.
        """
        count = torch.cat(self._counts, dim=1).double()
        found = {}
        for name, parts in self._sums.items():
            if name == "loss" and self._of_batches:
                continue
            sums = torch.cat(parts, dim=1)
            mean = sums.sum(1, keepdim=True) / count.sum(1, keepdim=True)
            found[name] = (mean + (sums - mean * count) / count.mean(1, keepdim=True)).float().numpy()
        return found


class WholeSplit:
    """Gathers the scores and targets of a split for a task's metrics over all of it."""

    def __init__(self, task: Scored | None) -> None:
        self._task = task if task is not None and task.split_names else None
        self._scores: list[Tensor] = []
        self._targets: list[Tensor] = []
        self.undefined: dict[str, str] = {}  # metrics without a finite value in the last `values`: on which targets

    def add(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch, [R, B, ...] each."""
        if self._task is not None:
            self._scores.append(scores.cpu())
            self._targets.append(targets.cpu())

    def values(self, start: int, stop: int, *, device: torch.device) -> dict[str, Tensor]:
        """Return the metrics of the replicates from `start` to `stop` by name, float64 [R]; NaN where one diverged."""
        if self._task is None:
            return {}
        scores = torch.cat([part[start:stop] for part in self._scores], dim=1)
        targets = torch.cat([part[start:stop] for part in self._targets], dim=1)
        names, rows = self._task.split_names, []
        self.undefined = {}
        for one, wanted in zip(scores, targets, strict=True):
            finite = bool(torch.isfinite(one).all())
            rows.append(self._task.split_metrics(one, wanted) if finite else dict.fromkeys(names, float("nan")))
            if finite:
                missing = [name for name, value in rows[-1].items() if not math.isfinite(value)]
                self.undefined |= dict.fromkeys(missing, _described(wanted))
        found = {name: [row[name] for row in rows] for name in names}
        return {n: torch.tensor(v, dtype=torch.float64, device=device) for n, v in found.items()}


def _described(targets: Tensor) -> str:
    """Return how many samples a split has, and of which classes or how many values."""
    values, counts = torch.unique(targets, return_counts=True)
    if targets.is_floating_point():
        kinds = "all with one target" if len(values) == 1 else f"with {len(values):,} different targets"
        return f"{len(targets):,} samples, {kinds}"
    listed = ", ".join(
        f"{n:,} of class {v}" for v, n in list(zip(values.tolist(), counts.tolist(), strict=True))[:NAMED]
    )
    return f"{len(targets):,} samples, {listed}" + (", …" if len(values) > NAMED else "")


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What the replicates of a group scored on a part of the data: `means` by name, float64 [R] each."""

    means: Mapping[str, Tensor]
    whole: WholeSplit

    def values(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return loss and metrics, also those over the whole split, of the replicates from `start` to `stop`.

        Raises TrialError if a user's metric fails.
        """
        means = {name: value[start:stop] for name, value in self.means.items()}
        return means | self.whole.values(start, stop, device=self.means["loss"].device)

    def undefined(self, prefix: str) -> list[str]:
        """Return a line for each metric that had no finite value in the last `values`, of finite scores."""
        return [
            f"{prefix}_{name} has no finite value on the {PARTS[prefix]} part ({on})"
            for name, on in self.whole.undefined.items()
        ]


@torch.no_grad()
def evaluate(
    group: ReplicaGroup,
    task: Task,
    samples: Samples,
    *,
    rows: Sequence[int],
    batch: int = BATCH,
    between: Callable[[], None] | None = None,
    judged: bool = True,
    each: SampleMeans | None = None,
) -> Evaluated:
    """Return `loss` (without label smoothing) and the task's metrics, as means over the targets, of some rows.

    `samples.index` has a row for each of `rows`. Metrics over the whole split are among them unless `judged` is False.
    `between` is called before every batch and may raise. `each` gathers the values of every sample.

    `batch` is rounded to a multiple of WHOLE. The last batch is filled up with a sample whose results are dropped,
    because CPU kernels round the end of a tensor by other instructions, and results must not depend on R.
    """
    group.module.eval()
    forward = group.forward if len(rows) == group.rows else group.forward_of(rows)
    means, whole = Means(group.pad), WholeSplit(task if judged and isinstance(task, Scored) else None)
    left = samples.index.shape[1]
    filled = torch.cat([samples.index, samples.index[:, -1:].expand(-1, -left % WHOLE)], dim=1)
    with closing(samples.batches(filled, max(batch // WHOLE, 1) * WHOLE)) as batches:
        for x, targets in batches:
            if between is not None:
                between()
            scores = forward(x)
            if isinstance(task, Scored):  # its loss may be a mean over the batch
                scores, targets = scores[:, :left], targets[:, :left]
            values = {"loss": task.loss(scores, targets, 0.0), **task.metrics(scores, targets)}
            values = {name: value[:, :left] for name, value in values.items()}
            means.add(values, targets[:, :left])
            if each is not None:
                each.add(values, targets[:, :left])
            whole.add(scores[:, :left], targets[:, :left])
            left -= targets.shape[1]
    return Evaluated(means=means.values(), whole=whole)
