"""AdamW, Adam and SGD as operations on rows: weights, gradients and moments are [R, P], settings are [R, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ablate.training.settings import TrainConfig
from ablate.training.state import RowState

CLIP_GUARD = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """The settings that may differ from row to row, float64 [R, 1]; `multipliers` [R, S] is the schedule of S steps.

    They are float64 for any dtype of the weights, so that 1 - beta2 and the bias corrections round as in torch.optim.
    """

    learning_rate: Tensor
    weight_decay: Tensor
    beta1: Tensor
    beta2: Tensor
    epsilon: Tensor
    momentum: Tensor
    clip_norm: Tensor
    label_smoothing: Tensor
    multipliers: Tensor

    @staticmethod
    def of(configs: Sequence[TrainConfig], schedules: Sequence[Tensor]) -> RowSettings:
        """Return the settings of one row per configuration; shorter schedules repeat their last factor."""
        longest = max(len(schedule) for schedule in schedules)
        padded = [torch.cat([s, s[-1:].expand(longest - len(s))]) for s in schedules]

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64)[:, None]

        return RowSettings(
            learning_rate=column([c.learning_rate for c in configs]),
            weight_decay=column([c.weight_decay for c in configs]),
            beta1=column([c.beta1 for c in configs]),
            beta2=column([c.beta2 for c in configs]),
            epsilon=column([c.epsilon for c in configs]),
            momentum=column([c.momentum for c in configs]),
            clip_norm=column([float("inf") if c.clip_norm is None else c.clip_norm for c in configs]),
            label_smoothing=column([c.label_smoothing for c in configs]),
            multipliers=torch.stack(padded),
        )

    def rate(self, step: Tensor) -> Tensor:
        """Return the learning rate of every row at its own `step` [R, 1], counted from 0."""
        return self.learning_rate * self.multipliers.gather(1, step.clamp(max=self.multipliers.shape[1] - 1))

    def to(self, device: torch.device) -> RowSettings:
        """Return the settings on `device`."""
        return replace(self, **{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def apply_update(optimizer: str, state: RowState, grads: Tensor, settings: RowSettings, *, work: Tensor) -> None:
    """Make one step of `optimizer` in every live row; `grads` and `work` [R, P] are overwritten.

    The formulas are those of torch.optim, with the bias corrections folded into the step size and epsilon. A row that
    is not alive keeps its weights bit for bit, for any gradient and moments.
    """
    rate = torch.where(state.alive, settings.rate(state.step), 0.0)
    state.step.add_(state.alive)
    dtype = state.weights.dtype
    if optimizer == "adamw":
        state.weights.mul_((1 - rate * settings.weight_decay).to(dtype))
    else:
        grads.add_(torch.mul(state.weights, settings.weight_decay.to(dtype), out=work))
    rule = _sgd if optimizer == "sgd" else _adam
    update = rule(state, grads, settings, rate, work)
    if state.weights.device.type != "cpu" or not state.alive.all():
        update.masked_fill_(~state.alive, 0.0)
    state.weights.sub_(update)


def _adam(state: RowState, grads: Tensor, settings: RowSettings, rate: Tensor, work: Tensor) -> Tensor:
    """Return rate / c1 * m / (sqrt(v / c2) + eps) with c = 1 - beta^t (Kingma & Ba, section 2, last paragraph)."""
    dtype = grads.dtype
    step = state.step.clamp(min=1)
    root = (1 - settings.beta2**step).sqrt()
    size = (rate * root / (1 - settings.beta1**step)).to(dtype)
    state.first.lerp_(grads, (1 - settings.beta1).to(dtype))
    state.second.lerp_(grads.mul_(grads), (1 - settings.beta2).to(dtype))
    torch.sqrt(state.second, out=work).add_((settings.epsilon * root).to(dtype))
    return torch.div(state.first, work, out=work).mul_(size)


def _sgd(state: RowState, grads: Tensor, settings: RowSettings, rate: Tensor, work: Tensor) -> Tensor:
    state.first.mul_(settings.momentum.to(grads.dtype)).add_(grads)
    return torch.mul(state.first, rate.to(grads.dtype), out=work)


def clip_rows(grads: Tensor, norm: Tensor, clip_norm: Tensor) -> None:
    """Scale every row of `grads` [R, P] with 2-norm `norm` [R, 1] down to `clip_norm` [R, 1], in place.

    A row with an infinite `clip_norm` does not change, whatever its values are.
    """
    scale = (clip_norm / (norm + CLIP_GUARD)).clamp(max=1.0)
    grads.mul_(torch.where(torch.isinf(clip_norm), 1.0, scale).to(grads.dtype))
