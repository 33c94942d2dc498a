"""Describes a trained trial of the family for prediction: its network, data units, inputs and outputs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ablate.base.files import Place
from ablate.core.trainable import ServedNetwork, Tensor
from ablate.core.trial import TrialConfig
from ablate.engine.tasks import Data, data_folder, load_task
from ablate.engine.tasks.base import Stream
from ablate.engine.tasks.images.patches import join
from ablate.engine.training import served_model
from ablate.engine.training.family import family
from ablate.engine.training.modules import predictor
from ablate.engine.training.served_model import Description

EXAMPLES = 2


def serve(
    config: TrialConfig, *, checkpoints: Place, data_dir: Path | None, replicate: int = 0, examples: int = EXAMPLES
) -> ServedNetwork:
    """Return a replicate of a trained trial for prediction, with the first `examples` inputs of the test split.

    `checkpoints` is the trial's own folder. Raises CheckpointError without a whole checkpoint, DataError without the
    data: their scale is part of the model.
    """
    task = load_task(config.task)
    folder = data_folder(data_dir)
    data = task.load(folder)
    module = predictor(config, checkpoints, replicate)
    shape = task.shape(folder)
    patch = shape.patch if data.image else None
    description = Description(
        model=family(config).model,
        shape=shape,
        scale=_factors(data.scale),
        shift=_factors(data.shift),
        class_names=data.class_names,
        start=data.start,
        end=data.end,
        image=data.image,
        patch=patch,
    )
    return describe(module, description, _example(data, patch, examples))


def describe(module: nn.Module, description: Description, example: Any) -> ServedNetwork:
    """Return a network with its inputs and outputs.

    `example` is an array of images [n, H, W] or [n, H, W, C], of inputs [n, T, F] in stored units, or of ids [n, T].
    """
    shape = description.shape
    text = Tensor(dtype="int64", shape=(-1,))
    tokens = -1 if shape.inputs == "ids" else shape.tokens
    sample = (-1,) if shape.inputs == "ids" else tuple(example.shape[1:])
    scores = Tensor(dtype="float32", shape=served_model.output_shape(shape, tokens))
    return ServedNetwork(
        loader=served_model.__name__,
        write=partial(served_model.write, module=module, description=description),
        example=example,
        inputs=text if description.writes else Tensor(dtype=example.dtype.name, shape=sample),
        outputs=text if description.writes else scores,
        options={} if description.writes else {"output": served_model.OUTPUTS[0]},
        class_names=description.class_names,
    )


def _example(data: Data, patch: Any, count: int) -> Any:
    """Return the first `count` test inputs as a caller passes them.

    Images are [n, H, W, C], grey ones [n, H, W], ids int64 [n, T], others as stored: [n, T, F].
    """
    if isinstance(data.test_inputs, Stream):
        first = data.test_inputs.batches(torch.arange(min(count, len(data.test_inputs)))[None], count, None)
        examples = next(iter(first))[0].cpu()
    else:
        examples = data.test_inputs[:count].cpu()
    if data.image is None:
        return (examples.long() if data.ids else examples).numpy()
    images = join(examples, patch, data.image[:2])
    return (images.squeeze(-1) if data.image[2] == 1 else images).numpy()


def _factors(value: float | torch.Tensor) -> tuple[float, ...]:
    return (float(value),) if isinstance(value, int | float) else tuple(float(number) for number in value.flatten())
