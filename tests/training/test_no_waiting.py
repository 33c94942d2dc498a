"""A step on a GPU as far as a machine without one can show it: on tensors of the device "cuda" that hold no numbers.

torch refuses an operation on such tensors that needs their numbers, which would wait for the GPU, and one that mixes
them with tensors of the CPU. The backward pass is torch's own and needs a real device.
"""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from ablate.models import build, initial_parameters
from ablate.models.settings import InputShape, ModelConfig
from ablate.tasks import Classification
from ablate.training import ReplicaGroup, multipliers
from ablate.training.evaluate import Means
from ablate.training.optim import StepFactors
from ablate.training.rows import _install
from ablate.training.settings import Schedule, TrainConfig
from ablate.training.state import RowState

CUDA = torch.device("cuda")
PICTURES = InputShape(tokens=16, features=4, outputs=10, train_samples=1000)
TEXT = InputShape(tokens=12, features=20, outputs=20, train_samples=100, inputs="ids", output="token", causal=True)
ROWS, BATCH = 2, 32
MODELS: dict[str, tuple[InputShape, dict[str, object]]] = {
    "with an MLP": (PICTURES, {"mlp": 12}),
    "class token, heads": (PICTURES, {"mlp": 0, "heads": 4, "similarity": "shared", "pool": "cls"}),
    "+Pos, normalised diagonal": (PICTURES, {"mlp": 0, "pair_position": 4, "diagonal": "normalised"}),
    "mirrored": (PICTURES, {"mlp": 0, "similarity": "mirrored", "value": "none"}),
    "cholesky, stacked": (PICTURES, {"mlp": 0, "similarity": "cholesky", "value": "stacked"}),
    "collapsed": (PICTURES, {"mlp": 0, "similarity": "collapsed", "value": "collapsed"}),
    "a causal text": (TEXT, {"mlp": 12, "position": "learned"}),
}


def on_a_gpu_without_numbers(group: ReplicaGroup, mode: FakeTensorMode) -> None:
    """Move all that a group computes with to `cuda`, as `mode` imagines it."""

    def moved(value: Tensor) -> Tensor:
        return mode.from_tensor(value).to(CUDA)

    state, settings = group.state, group.settings
    columns = {name: moved(getattr(state, name)) for name in ("weights", "first", "second", "step", "alive")}
    group.device, group.layout = CUDA, replace(group.layout, device=CUDA)
    group.state = RowState(**columns, fixed={name: moved(value) for name, value in state.fixed.items()})
    group.settings = replace(settings, **{f.name: moved(getattr(settings, f.name)) for f in fields(settings)})
    group.factors = StepFactors(group.layout.optimizer, group.settings, group.dtype)
    group.smoothing = moved(group.smoothing) if isinstance(group.smoothing, Tensor) else group.smoothing
    group.grads, group.work = moved(group.grads), moved(group.work)
    group.pads = {name: moved(value) for name, value in group.pads.items()}
    group.leaves = {place.name: nn.Parameter(place.of(group.state.weights)) for place in group.layout.places}
    for part in group.module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, moved(buffer))
    _install(group.module, group.values)


def new_group(shape: InputShape, model: dict[str, object], optimizer: str) -> ReplicaGroup:
    config = ModelConfig.model_validate({"width": 16, "depth": 2} | model)
    train = TrainConfig.model_validate(
        {
            "learning_rate": 1e-3,
            "clip_norm": 1.0,
            "label_smoothing": 0.1 if shape.output == "sample" else 0.0,
            "optimizer": optimizer,
        }
    )
    start = [initial_parameters(config, shape, study_seed=1, dataset="d", seed=seed) for seed in range(ROWS)]
    schedule = multipliers(Schedule(name="constant"), epochs=1, steps_per_epoch=10)
    return ReplicaGroup(build(config, shape), start, [train] * ROWS, [schedule] * ROWS, loss=Classification().loss)


def batch(shape: InputShape) -> tuple[Tensor, Tensor]:
    if shape.inputs == "ids":
        ids = torch.zeros(ROWS, BATCH, shape.tokens, dtype=torch.int64, device=CUDA)
        return ids, ids
    x = torch.zeros(ROWS, BATCH, shape.tokens, shape.features, device=CUDA)
    return x, torch.zeros(ROWS, BATCH, dtype=torch.int64, device=CUDA)


def make_step(group: ReplicaGroup, x: Tensor, targets: Tensor) -> None:
    scores = group.forward(x)
    losses = group._mean(group.loss(scores, targets, group.smoothing), targets)
    group.update([torch.zeros_like(leaf) for leaf in group.leaves.values()], losses.detach())
    means = Means(None)
    means.add(Classification().metrics(scores, targets), targets, losses=losses.detach())
    assert {value.device.type for value in means.values().values()} == {"cuda"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_no_operation_needs_the_numbers_or_the_cpu(name: str, optimizer: str) -> None:
    shape, model = MODELS[name]
    group = new_group(shape, model, optimizer)
    with FakeTensorMode() as mode:
        on_a_gpu_without_numbers(group, mode)
        for _ in range(2):
            make_step(group, *batch(shape))


def test_a_step_that_asks_for_a_number_is_found() -> None:
    group = new_group(PICTURES, {"mlp": 12}, "adamw")
    with FakeTensorMode() as mode:
        on_a_gpu_without_numbers(group, mode)
        group.loss = lambda scores, targets, smoothing: scores.mean(-1) / bool(group.alive.all())
        with pytest.raises(DataDependentOutputException):
            make_step(group, *batch(PICTURES))
