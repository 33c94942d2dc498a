"""Made-up data and scores of a given shape, for timing and for asking a task what it measures."""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import Data
from ablate.engine.tasks.base import Decoded, Task


def made_up_data(shape: InputShape, *, samples: int, test: int) -> Data:
    """Return made-up data of `shape`, in the form in which a task loads them."""
    texts = shape.source_tokens > 0
    inputs, targets = zip(*(_made_up_split(shape, count) for count in (samples, test)), strict=True)
    return Data(
        train_inputs=inputs[0],
        train_targets=targets[0],
        test_inputs=inputs[1],
        test_targets=targets[1],
        validation_inputs=inputs[1] if texts else None,
        validation_targets=targets[1] if texts else None,
        ids=shape.inputs == "ids",
        pad=shape.pad,
        start=1 if texts else None,
        end=2 if texts else None,
    )


def made_up_scores(shape: InputShape) -> tuple[Tensor, Tensor]:
    """Return scores and targets of one made-up sample, as a task's loss and metrics take them."""
    if shape.output == "token":
        return torch.zeros(1, shape.tokens, shape.outputs), torch.zeros(1, shape.tokens, dtype=torch.int64)
    return torch.zeros(1, shape.outputs), torch.zeros(1, dtype=torch.int64)


def metric_names(task: Task, shape: InputShape) -> tuple[str, ...]:
    """Return the names of what a trial reports on training and validation samples."""
    own = tuple(task.metrics(*(value[None] for value in made_up_scores(shape))))
    whole = task.corpus_names if isinstance(task, Decoded) else ()
    return (*(f"{part}_{name}" for part in ("val", "train") for name in ("loss", *own)), *(f"val_{n}" for n in whole))


def _made_up_split(shape: InputShape, count: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets; every second text has full length, the others half of it."""
    per_sample = (count, shape.tokens) if shape.output == "token" else (count,)
    targets = torch.arange(per_sample[0]).reshape(-1, *[1] * (len(per_sample) - 1)).expand(per_sample) % shape.outputs
    if shape.source_tokens:
        length = torch.where(torch.arange(count) % 2 == 0, 1.0, 0.5)[:, None]
        here = torch.arange(shape.tokens) < (length * shape.tokens).ceil()
        source = torch.full((count, shape.source_tokens), 3)
        there = torch.arange(shape.source_tokens) < (length * shape.source_tokens).ceil()
        return source.where(there, torch.tensor(shape.pad or 0)), torch.full_like(targets, 3).where(
            here, shape.pad or 0
        )
    if shape.inputs == "ids":
        return torch.zeros(count, shape.tokens, dtype=torch.int64), targets
    return torch.zeros(count, shape.tokens, shape.features, dtype=torch.uint8), targets
