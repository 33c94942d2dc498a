"""Replicates against torch.optim run one at a time, and against themselves in other company."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.engine.models import build, initial_parameters
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.tasks import Classification
from ablate.engine.training import ReplicaGroup, multipliers
from ablate.engine.training.train_config import Schedule, TrainConfig

SHAPE = InputShape(tokens=6, features=5, outputs=4, train_samples=640)
STEPS, BATCH = 30, 16
PLAIN_LOOP = 1e-13  # float64 losses of order 1; Adam carries rounding of 2e-15 up to 1e-14 in 30 steps


def model(**changes: object) -> ModelConfig:
    return ModelConfig.model_validate({"width": 8, "depth": 2, "mlp": 12, "pool": "cls"} | changes)


def batches(replicates: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    drawn = []
    for _ in range(STEPS):
        x = torch.randn(replicates, BATCH, SHAPE.tokens, SHAPE.features, generator=generator, dtype=torch.float64)
        drawn.append((x.to(dtype), torch.randint(SHAPE.outputs, (replicates, BATCH), generator=generator)))
    return drawn


def weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    return initial_parameters(config, SHAPE, study_seed=1, dataset="d", seed=seed)


def train_together(
    config: ModelConfig, trains: Sequence[TrainConfig], *, seeds: Sequence[int], data: list[tuple[Tensor, Tensor]]
) -> tuple[ReplicaGroup, Tensor]:
    schedules = [multipliers(t.schedule, epochs=1, steps_per_epoch=STEPS) for t in trains]
    start = [weights(config, seed) for seed in seeds]
    group = ReplicaGroup(build(config, SHAPE), start, trains, schedules, loss=Classification().loss)
    return group, torch.stack([group.step(x, y)[1] for x, y in data])


def train_alone(config: ModelConfig, train: TrainConfig, *, seed: int, data: list[tuple[Tensor, Tensor]]) -> Tensor:
    module = build(config, SHAPE)
    module.load_state_dict(weights(config, seed))
    module.double()
    adam = {"lr": train.learning_rate, "betas": (train.beta1, train.beta2), "eps": train.epsilon}
    if train.optimizer == "sgd":
        lr, momentum = train.learning_rate, train.momentum
        optimizer: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
    else:
        rule = torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam
        optimizer = rule(module.parameters(), **adam)
    optimizer.param_groups[0]["weight_decay"] = train.weight_decay
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y, label_smoothing=train.label_smoothing)
        loss.backward()
        if train.clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), train.clip_norm)
        optimizer.step()
        if train.schedule.name == "cosine":
            cosine.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def four(**common: object) -> list[TrainConfig]:
    base = {"precision": "float64", "schedule": {"name": "constant"}} | common
    rates, decays = (1e-3, 1e-2, 3e-3, 3e-2), (0.0, 0.1, 0.01, 1.0)
    beta2, epsilons, momenta = (0.999, 0.95, 0.99, 0.9), (1e-8, 1e-6, 1e-8, 1e-4), (0.9, 0.0, 0.5, 0.99)
    return [
        TrainConfig.model_validate(
            base
            | {"learning_rate": rates[i], "weight_decay": decays[i], "beta2": beta2[i], "epsilon": epsilons[i]}
            | {"momentum": momenta[i], "beta1": momenta[i]}
        )
        for i in range(4)
    ]


CASES = [
    pytest.param({"mlp": 12, "heads": 1}, {}, id="mlp-1-head"),
    pytest.param({"mlp": 12, "heads": 4}, {}, id="mlp-4-heads"),
    pytest.param({"mlp": 0, "heads": 1}, {}, id="no-mlp-1-head"),
    pytest.param({"mlp": 0, "heads": 4}, {}, id="no-mlp-4-heads"),
    pytest.param({}, {"optimizer": "adam"}, id="adam"),
    pytest.param({}, {"optimizer": "sgd"}, id="sgd"),
    pytest.param({}, {"clip_norm": 0.3}, id="clipped"),
    pytest.param({}, {"label_smoothing": 0.2}, id="smoothed"),
    pytest.param({}, {"schedule": {"name": "cosine"}}, id="cosine"),
    pytest.param({"similarity": "cholesky", "value": "none", "mlp": 0}, {}, id="minimum"),
]


@pytest.mark.services
@pytest.mark.parametrize(("architecture", "training"), CASES)
def test_losses_are_those_of_separate_torch_optim_runs(
    architecture: dict[str, object], training: dict[str, object]
) -> None:
    config, trains, data = model(**architecture), four(**training), batches(4, torch.float64)
    group, losses = train_together(config, trains, seeds=(0, 1, 2, 3), data=data)
    alone = [train_alone(config, train, seed=r, data=[(x[r], y[r]) for x, y in data]) for r, train in enumerate(trains)]
    torch.testing.assert_close(losses, torch.stack(alone, dim=1), rtol=0, atol=PLAIN_LOOP)
    assert (losses[-1] != losses[0]).all()
    assert group.alive.all()


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("places", [(2,), (2, 0), (11, 1, 2), tuple(reversed(range(16)))], ids=str)
def test_a_replica_is_bitwise_the_same_in_any_company(places: tuple[int, ...], optimizer: str) -> None:
    config = model(width=20, mlp=24, heads=2, similarity="shared")
    trains = 4 * four(precision="float32", optimizer=optimizer, clip_norm=0.5, label_smoothing=0.1)
    data = batches(16, torch.float32)
    group, losses = train_together(config, trains, seeds=range(16), data=data)
    chosen = [(x[list(places)], y[list(places)]) for x, y in data]
    other, in_company = train_together(config, [trains[s] for s in places], seeds=places, data=chosen)
    assert torch.equal(in_company, losses[:, list(places)])
    assert torch.equal(other.state.weights, group.state.weights[list(places)])


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_a_diverged_row_is_frozen_and_leaves_the_others_bitwise_alone(optimizer: str) -> None:
    trains = four(precision="float32", optimizer=optimizer)
    data = batches(4, torch.float32)
    healthy, expected = train_together(model(), trains, seeds=(0, 1, 2, 3), data=data)
    wild = [t.model_copy(update={"learning_rate": 1e30}) if r == 1 else t for r, t in enumerate(trains)]
    group, losses = train_together(model(), wild, seeds=(0, 1, 2, 3), data=data)
    others = [0, 2, 3]
    assert group.alive.tolist() == [True, False, True, True]
    assert torch.equal(losses[:, others], expected[:, others])
    assert torch.equal(group.state.weights[others], healthy.state.weights[others])
    frozen, step = group.state.weights[1].clone(), int(group.state.step[1])
    group.step(*data[0])
    assert torch.equal(group.state.weights[1], frozen)
    assert step == int(group.state.step[1]) < STEPS


def test_a_poisoned_row_never_steps() -> None:
    data = batches(2, torch.float32)
    config, trains = model(), four(precision="float32")[:2]
    start = [weights(config, 0), weights(config, 1)]
    start[0]["head.bias"] = torch.full_like(start[0]["head.bias"], torch.nan)
    schedules = [multipliers(Schedule(name="constant"), epochs=1, steps_per_epoch=STEPS)] * 2
    group = ReplicaGroup(build(config, SHAPE), start, trains, schedules, loss=Classification().loss)
    for x, y in data[:3]:
        group.step(x, y)
    assert group.state.step[:, 0].tolist() == [0, 3]
    assert torch.equal(group.layout.tensors(group.state)["weights.embedding.weight"][0], start[0]["embedding.weight"])
