"""Label smoothing as a KL divergence, for large vocabularies (paper B, section 4.3)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ablate.engine.models.layers import widen
from ablate.engine.tasks.text.tokens import per_token


def smoothed_divergence(logits: Tensor, targets: Tensor, label_smoothing: float | Tensor, *, pad: int) -> Tensor:
    """Return the KL divergence of scores from smoothed targets in nats, [*R, B, T]; 0 where the target is `pad`.

    The target class has probability 1 - s, `pad` has none, and all other classes share s evenly. `logits` are
    [*R, B, T, M], `targets` [*R, B, T] or [B, T] for all replicates, s is a number or [R, 1], one per replicate. With
    s = 0 it is the cross-entropy. Half precision is converted to float32. Equals `torch.nn.KLDivLoss`.
    """
    index = targets.expand(logits.shape[:-1]).long()
    smoothing = per_token(label_smoothing)
    even = smoothing / (logits.shape[-1] - 2)
    crossed: Tensor = _CrossEntropy.apply(widen(logits), index, 1 - smoothing, even, pad)
    return (crossed - _entropy(smoothing, even)).masked_fill(index == pad, 0.0)


def _entropy(smoothing: float | Tensor, even: float | Tensor) -> float | Tensor:
    """Return the entropy of smoothed targets in nats."""
    if isinstance(smoothing, Tensor):
        entropy: Tensor = -torch.special.xlog1py(1 - smoothing, -smoothing) - torch.xlogy(smoothing, even)
        return entropy
    return -(1 - smoothing) * math.log1p(-smoothing) - (smoothing * math.log(even) if even else 0.0)


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy from smoothed targets, with one array of the size of the scores in each direction.

    Automatic differentiation takes 1.5 times as long (1,280 words, 8,000 classes, one CPU core).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, confidence: Any, even: Any, pad: int) -> Tensor:
        log_p = torch.log_softmax(logits, dim=-1)
        picked = log_p.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(log_p, index)
        ctx.confidence, ctx.even, ctx.pad = confidence, even, pad
        if not isinstance(even, Tensor) and even == 0:
            return picked.neg()
        crossed: Tensor = -confidence * picked - even * (log_p.sum(dim=-1) - picked - log_p[..., pad])
        return crossed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        log_p, index = ctx.saved_tensors
        confidence, even = ctx.confidence, ctx.even
        difference = log_p.exp()
        if isinstance(even, Tensor):
            difference.sub_(even.unsqueeze(-1))
        elif even:
            difference.sub_(even)
        difference[..., ctx.pad] += even
        at_target = torch.zeros_like(gradient) + (even - confidence)
        difference.scatter_add_(-1, index.unsqueeze(-1), at_target.unsqueeze(-1))
        return difference.mul_(gradient.unsqueeze(-1)), None, None, None, None
