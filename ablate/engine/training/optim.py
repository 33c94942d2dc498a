"""AdamW, Adam and SGD for R replicates at once: weights, gradients and moments are [R, P], settings are [R, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ablate.engine.training.state import ReplicaState
from ablate.engine.training.train_config import TrainConfig

CHUNK = 64  # steps; a multiple of any vector length
CLIP_GUARD = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """The settings that replicates of a group may differ in, float64 [R, 1]; `multipliers` [R, S] are the schedule.

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
    def of(configs: Sequence[TrainConfig], schedules: Sequence[Tensor]) -> ReplicaSettings:
        """Return the settings of one replicate per configuration; shorter schedules repeat their last factor."""
        longest = max(len(schedule) for schedule in schedules)
        padded = [torch.cat([s, s[-1:].expand(longest - len(s))]) for s in schedules]

        def column(name: str) -> Tensor:
            values = (getattr(config, name) for config in configs)
            return torch.tensor([torch.inf if v is None else v for v in values], dtype=torch.float64)[:, None]

        columns = {field.name: column(field.name) for field in fields(ReplicaSettings) if field.name != "multipliers"}
        return ReplicaSettings(**columns, multipliers=torch.stack(padded))

    def rate(self, step: Tensor) -> Tensor:
        """Return the learning rate of every replicate at its own `step` [R, n], counted from 0."""
        return self.learning_rate * self.multipliers.gather(1, step.clamp(max=self.multipliers.shape[1] - 1))

    def to(self, device: torch.device) -> ReplicaSettings:
        """Return the settings on `device`."""
        return replace(self, **{field.name: getattr(self, field.name).to(device) for field in fields(self)})


class StepFactors:
    """The factors [R, 1] of each step, from settings and step counts; computed for CHUNK steps at once.

    Powers [R, 1] of a single step would depend on R (`models.equal_replicates`).
    """

    def __init__(self, optimizer: str, settings: ReplicaSettings, dtype: torch.dtype) -> None:
        self._optimizer, self._settings, self._dtype = optimizer, settings, dtype
        self.first_share = (1 - settings.beta1).to(dtype)
        self.second_share = (1 - settings.beta2).to(dtype)
        self.momentum, self.weight_decay = settings.momentum.to(dtype), settings.weight_decay.to(dtype)
        self._table, self._next = torch.empty(0), 0

    def next(self, step: Tensor) -> tuple[Tensor, ...]:
        """Return the factor of weight decay, the step size and epsilon of the next step, [R, 1] each.

        `step` int64 [R, 1] counts the steps done; only every CHUNK-th call reads it. For sgd the three are 1, the
        learning rate and 0.
        """
        if self._next == len(self._table):
            self._table, self._next = self._computed(step), 0
        self._next += 1
        return self._table[self._next - 1].unbind()

    def _computed(self, step: Tensor) -> Tensor:
        """Return the factors of the next CHUNK steps, [CHUNK, 3, R, 1]."""
        own, place = self._settings, step + torch.arange(CHUNK, device=step.device)
        rate = own.rate(place)
        decay = 1 - rate * own.weight_decay if self._optimizer == "adamw" else torch.ones_like(rate)
        if self._optimizer == "sgd":
            found = [decay, rate, torch.zeros_like(rate)]
        else:
            count = (place + 1).double()
            root = (1 - own.beta2.expand_as(count).contiguous() ** count).sqrt()
            size = rate * root / (1 - own.beta1.expand_as(count).contiguous() ** count)
            found = [decay, size, own.epsilon * root]
        return torch.stack(found).permute(2, 0, 1).unsqueeze(-1).to(self._dtype).contiguous()


def apply_update(optimizer: str, state: ReplicaState, grads: Tensor, factors: StepFactors, *, work: Tensor) -> None:
    """Make one step of `optimizer` in every live replicate; `grads` and `work` [R, P] are overwritten.

    The formulas are those of torch.optim, with the bias corrections folded into the step size and epsilon. A replicate
    that is not alive keeps its weights bit for bit, for any gradient and moments.
    """
    decay, size, epsilon = factors.next(state.step)
    state.step.add_(state.alive)
    all_alive = state.known_alive
    if optimizer == "adamw":
        state.weights.mul_(decay if all_alive else decay.masked_fill(~state.alive, 1.0))
    else:
        grads.add_(torch.mul(state.weights, factors.weight_decay, out=work))
    if optimizer == "sgd":
        state.first.mul_(factors.momentum).add_(grads)
        torch.mul(state.first, size, out=work)
    else:
        _adam(state, grads, factors, size, epsilon, work)
    if not all_alive:
        work.masked_fill_(~state.alive, 0.0)
    state.weights.sub_(work)


def _adam(
    state: ReplicaState, grads: Tensor, factors: StepFactors, size: Tensor, epsilon: Tensor, work: Tensor
) -> None:
    """Set `work` to rate / c1 * m / (sqrt(v / c2) + eps), c = 1 - beta^t (Kingma & Ba, section 2, last paragraph)."""
    state.first.lerp_(grads, factors.first_share)
    state.second.lerp_(grads.mul_(grads), factors.second_share)
    torch.sqrt(state.second, out=work).add_(epsilon)
    torch.div(state.first, work, out=work).mul_(size)


def clip_gradients(grads: Tensor, norm: Tensor, clip_norm: Tensor) -> None:
    """Scale `grads` [R, P] with 2-norms `norm` [R, 1] down to `clip_norm` [R, 1], in place.

    An infinite `clip_norm` changes nothing, whatever the gradient is.
    """
    scale = (clip_norm / (norm + CLIP_GUARD)).clamp(max=1.0)
    grads.mul_(scale.masked_fill_(torch.isinf(clip_norm), 1.0).to(grads.dtype))
