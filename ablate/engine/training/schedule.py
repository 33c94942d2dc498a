"""Learning-rate schedules as one closed-form multiplier per step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ablate.engine.training.train_config import Schedule


def multipliers(schedule: Schedule, *, epochs: int, steps_per_epoch: int) -> Tensor:
    """Return the factor of the learning rate at every step of a trial, float64 [epochs * steps_per_epoch].

    Warm-up reaches 1 at its last step, and its first factor is above 0: step t of w has (t + 1) / w. After it `cosine`
    falls from 1 towards `floor` over the remaining steps, as torch's CosineAnnealingLR. `multistep` counts its
    milestones from the start of the trial, as torch's MultiStepLR. `inverse_sqrt` has sqrt(w / (t + 1)), the rule of
    Vaswani et al. 2017, section 5.3, scaled to a peak of 1. A warm-up longer than the trial is shortened to it, except
    that of `inverse_sqrt`, whose rule does not depend on the end of the trial.
    """
    total = epochs * steps_per_epoch
    warmup = schedule.warmup_steps or round(schedule.warmup_epochs * steps_per_epoch)
    if schedule.name != "inverse_sqrt":
        warmup = min(warmup, total)
    step = torch.arange(total, dtype=torch.float64)
    if schedule.name == "cosine":
        phase = (step - warmup).clamp(min=0) / max(total - warmup, 1)
        factor = schedule.floor + (1 - schedule.floor) * (1 + torch.cos(math.pi * phase)) / 2
    elif schedule.name == "multistep":
        passed = sum((step >= round(share * total)).double() for share in schedule.milestones)
        factor = torch.as_tensor(schedule.gamma, dtype=torch.float64) ** passed * torch.ones_like(step)
    elif schedule.name == "inverse_sqrt":
        factor = (max(warmup, 1) / (step + 1)).sqrt().clamp(max=1.0)
    else:
        factor = torch.ones_like(step)
    return torch.where(step < warmup, (step + 1) / max(warmup, 1), 1.0) * factor
