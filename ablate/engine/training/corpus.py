"""Metrics of a whole corpus that every replicate generates by greedy decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ablate.base.errors import TrialError
from ablate.engine.models.equal_replicates import filled
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import Data
from ablate.engine.tasks.base import Decoded
from ablate.engine.training.replica_group import ReplicaGroup
from ablate.engine.training.samples import Samples, lengths


def corpus_metrics(
    group: ReplicaGroup,
    task: Decoded,
    data: Data,
    samples: Samples,
    *,
    part: str,
    shape: InputShape,
    batch: int,
    between: Callable[[], None],
) -> dict[str, Tensor]:
    """Return the task's corpus metrics of `samples`, which are `part` of `data` and the same for every replicate.

    Each is float64 [R]. `between` is called before every decoded batch and may raise. Raises TrialError if the task
    does not return one value per replicate.
    """
    chosen = samples.index[0].sort().values.to(samples.targets.device)
    assert isinstance(samples.inputs, Tensor)
    judged: dict[str, Any] = {
        f"{part}_inputs": samples.inputs.index_select(0, chosen).cpu(),
        f"{part}_targets": samples.targets.index_select(0, chosen).cpu(),
    }
    decode = _decoder(group, data, steps=shape.tokens, batch=batch, between=between)
    found = task.corpus_metrics(decode, replace(data, **judged), part)
    for name, values in found.items():
        if len(values) != group.replicates:
            raise TrialError(f"corpus_metrics gave {len(values)} values of {name} for {group.replicates} replicates")
    return {name: torch.tensor(v, dtype=torch.float64, device=group.device) for name, v in found.items()}


def _decoder(
    group: ReplicaGroup, data: Data, *, steps: int, batch: int, between: Callable[[], None]
) -> Callable[[Tensor], Tensor]:
    """Return a function from source ids [n, S] to the ids that each replicate generates, int64 [R, n, T'] on the CPU.

    Sources are sorted by length and decoded `batch` at a time, so that batches have little padding and end early.
    """
    assert data.start is not None
    assert data.end is not None
    start, end, pad = data.start, data.end, data.end if data.pad is None else data.pad

    def decode(source_ns: Tensor) -> Tensor:
        length = lengths(source_ns, data.pad)
        order = filled(length.argsort(stable=True))
        written = []
        for chosen in torch.split(order, batch):
            between()
            ids = source_ns[chosen, : int(length[chosen].max())].to(group.device).long()
            source = ids.expand(group.replicates, *ids.shape).contiguous()
            written.append(group.greedy(source, start=start, end=end, steps=steps).cpu())
        found = torch.full((group.replicates, len(source_ns), max(ids.shape[2] for ids in written)), pad)
        for chosen, ids in zip(torch.split(order, batch), written, strict=True):
            found[:, chosen, : ids.shape[2]] = ids
        return found

    return decode
