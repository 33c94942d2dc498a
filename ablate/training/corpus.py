"""Metrics of a whole corpus: what every replicate writes for it, by greedy decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ablate.config import InputShape
from ablate.errors import RequestError, TrialError
from ablate.tasks import Data, Task
from ablate.tasks.base import Decoded
from ablate.training.evaluate import WHOLE
from ablate.training.rows import ReplicaGroup
from ablate.training.samples import Samples, lengths
from ablate.trial import TrialConfig


def check_decoding(task: Task, data: Data, group: ReplicaGroup, config: TrialConfig) -> None:
    """Raise RequestError where the task is judged by what a model writes, and this one cannot write."""
    if not isinstance(task, Decoded):
        if hasattr(task, "corpus_metrics"):
            raise RequestError(f"task {config.task.task!r} has corpus_metrics but no corpus_names, which name them")
        return
    if data.start is None or data.end is None:
        raise RequestError(
            f"task {config.task.task!r} has corpus_metrics, but its data have start={data.start} and end={data.end}:"
            " writing begins and ends with an id"
        )
    if not (group.row_native and callable(getattr(group.module, "greedy", None))):
        raise RequestError(
            f"model.builder={config.model.builder!r} made {type(group.module).__name__}, which cannot write: task"
            f" {config.task.task!r} needs a module with row_native = True and greedy(source, start=, end=, steps=)"
        )


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

    Float64 [R] each. `between` is called before every batch that is decoded and may raise. Raises TrialError where the
    task does not give one value per replicate.
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
        if len(values) != group.rows:
            raise TrialError(f"corpus_metrics gave {len(values)} values of {name} for {group.rows} replicates")
    return {name: torch.tensor(v, dtype=torch.float64, device=group.device) for name, v in found.items()}


def _decoder(
    group: ReplicaGroup, data: Data, *, steps: int, batch: int, between: Callable[[], None]
) -> Callable[[Tensor], Tensor]:
    """Return what maps source ids [n, S] to what each replicate writes, int64 [R, n, T'] on the CPU.

    Sources are taken by length, `batch` at a time, so that a batch is encoded without much padding and over early.
    """
    assert data.start is not None
    assert data.end is not None
    start, end, pad = data.start, data.end, data.end if data.pad is None else data.pad

    def decode(source_ns: Tensor) -> Tensor:
        length = lengths(source_ns, data.pad)
        order = length.argsort(stable=True)
        order = torch.cat([order, order[-1:].expand(-len(order) % WHOLE)])  # as in evaluation: rounded alike
        written = []
        for chosen in torch.split(order, batch):
            between()
            rows = source_ns[chosen, : int(length[chosen].max())].to(group.device).long()
            source = rows.expand(group.rows, *rows.shape).contiguous()
            written.append(group.greedy(source, start=start, end=end, steps=steps).cpu())
        found = torch.full((group.rows, len(source_ns), max(ids.shape[2] for ids in written)), pad)
        for chosen, ids in zip(torch.split(order, batch), written, strict=True):
            found[:, chosen, : ids.shape[2]] = ids
        return found

    return decode
