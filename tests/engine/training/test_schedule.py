"""Schedules against torch.optim.lr_scheduler."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
)

from ablate.engine.training import multipliers
from ablate.engine.training.train_config import Schedule

EPOCHS, STEPS = 5, 8
TOTAL = EPOCHS * STEPS
PEAK = 0.7


def reference(make: Callable[[Optimizer], LRScheduler]) -> list[float]:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = make(optimizer)
    rates = []
    for _ in range(TOTAL):
        rates.append(optimizer.param_groups[0]["lr"] / PEAK)
        optimizer.step()
        scheduler.step()
    return rates


def rising_then(after: Callable[[Optimizer], LRScheduler], steps: int) -> Callable[[Optimizer], LRScheduler]:
    def make(optimizer: Optimizer) -> LRScheduler:
        rise = LinearLR(optimizer, start_factor=1 / steps, total_iters=steps - 1)
        return SequentialLR(optimizer, [rise, after(optimizer)], milestones=[steps])

    return make


def cosine(steps: int, floor: float = 0.0) -> Callable[[Optimizer], LRScheduler]:
    return lambda optimizer: CosineAnnealingLR(optimizer, T_max=steps, eta_min=floor * PEAK)


def constant(optimizer: Optimizer) -> LRScheduler:
    return ConstantLR(optimizer, factor=1.0)


def multistep(optimizer: Optimizer) -> LRScheduler:
    return MultiStepLR(optimizer, milestones=[TOTAL // 2, TOTAL * 3 // 4], gamma=0.1)


def noam(warmup: int) -> Callable[[Optimizer], LRScheduler]:
    """The rule of Vaswani et al. 2017, section 5.3, divided by its peak (d w)^-.5."""
    width = 64

    def rule(step: int) -> float:
        counted = step + 1
        return float(width**-0.5 * min(counted**-0.5, counted * warmup**-1.5) * (width * warmup) ** 0.5)

    return lambda optimizer: LambdaLR(optimizer, rule)


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (Schedule(name="constant"), constant),
        (Schedule(name="cosine"), cosine(TOTAL)),
        (Schedule(name="cosine", floor=0.2), cosine(TOTAL, 0.2)),
        (Schedule(name="multistep"), multistep),
        (Schedule(name="cosine", warmup_epochs=1.5), rising_then(cosine(TOTAL - 12), 12)),
        (Schedule(name="cosine", warmup_epochs=1, floor=0.1), rising_then(cosine(TOTAL - 8, 0.1), 8)),
        (Schedule(name="constant", warmup_epochs=2), rising_then(constant, 16)),
        (Schedule(name="constant", warmup_epochs=2, warmup_steps=5), rising_then(constant, 5)),
        (Schedule(name="cosine", warmup_steps=7), rising_then(cosine(TOTAL - 7), 7)),
        (Schedule(name="inverse_sqrt", warmup_steps=10), noam(10)),
        (Schedule(name="inverse_sqrt", warmup_epochs=1.5), noam(12)),
        (Schedule(name="inverse_sqrt", warmup_steps=4000), noam(4000)),
        (Schedule(name="inverse_sqrt"), noam(1)),
    ],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning")
def test_multipliers_are_those_of_torch(schedule: Schedule, make: Callable[[Optimizer], LRScheduler]) -> None:
    got = multipliers(schedule, epochs=EPOCHS, steps_per_epoch=STEPS)
    assert got.tolist() == pytest.approx(reference(make), abs=1e-12)


def test_milestones_count_from_the_start_of_the_trial_whatever_the_warm_up() -> None:
    schedule = Schedule(name="multistep", warmup_epochs=1, milestones=(0.5,), gamma=0.25)
    got = multipliers(schedule, epochs=4, steps_per_epoch=2)
    assert got.tolist() == [0.5, 1.0, 1.0, 1.0, 0.25, 0.25, 0.25, 0.25]


def test_a_warm_up_longer_than_the_trial_is_all_warm_up() -> None:
    got = multipliers(Schedule(name="cosine", warmup_epochs=100), epochs=1, steps_per_epoch=4)
    assert got.tolist() == [0.25, 0.5, 0.75, 1.0]
