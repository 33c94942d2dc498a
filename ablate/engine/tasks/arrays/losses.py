"""Losses and metrics of `ablate.Task`, for one replicate: scores [B, ...] and targets [B, ...]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ablate.base.errors import TrialError
from ablate.base.redaction import error_text

Loss = Callable[[Tensor, Tensor, float], Tensor]


def per_row(value: float | Tensor, rows: int) -> list[float]:
    """Return one number per replicate of a number or a tensor [R, 1]."""
    return [float(v) for v in value.flatten()] if isinstance(value, Tensor) else [float(value)] * rows


def matching(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return both without the scores' last axis if it is one score for each target."""
    one = scores.ndim == targets.ndim + 1 and scores.shape[-1] == 1
    return (scores.squeeze(-1) if one else scores), targets


def cross_entropy(scores: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return the cross-entropy of each target in nats; the classes are the second axis of the scores."""
    return F.cross_entropy(scores, targets.long(), reduction="none", label_smoothing=smoothing)


def mse(scores: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return the squared error of each target."""
    scores, targets = matching(scores, targets)
    return (scores - targets.to(scores.dtype)) ** 2


def bce(scores: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return the binary cross-entropy of each target 0 or 1, in nats."""
    scores, targets = matching(scores, targets)
    return F.binary_cross_entropy_with_logits(scores, targets.to(scores.dtype), reduction="none")


NAMED: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse, "bce": bce}


def plain(function: Any) -> Loss:
    """Return a user's function of (scores, targets) as a loss."""

    def called(scores: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        scores, targets = matching(scores, targets)
        found = function(scores, targets)
        if not isinstance(found, Tensor):
            raise TrialError(f"the loss returned a {type(found).__name__}, not a tensor")
        return found

    return called


def each_target(loss: Loss, scores: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return the loss of each target, shaped as `targets`; a mean over samples or over all is spread over them.

    Raises TrialError if the loss fails or has another shape.
    """
    try:
        found = loss(scores, targets, smoothing)
    except TrialError:
        raise
    except Exception as error:  # a user's loss may fail in any way
        raise TrialError(
            f"the loss failed on scores {list(scores.shape)} and targets {list(targets.shape)}:"
            f" {error_text(error, first_line=True)}"
        ) from error
    if found.shape != targets.shape[: found.ndim]:
        raise TrialError(
            f"the loss has the shape {list(found.shape)} for targets {list(targets.shape)}: return its mean, or one"
            " value for each sample"
        )
    return found.reshape(*found.shape, *[1] * (targets.ndim - found.ndim)).expand(targets.shape)


def correct(scores: Tensor, targets: Tensor) -> Tensor:
    """Return whether each target is the class of the highest score on the second axis, 1.0 or 0.0."""
    return (scores.argmax(1) == targets).float()


def over_split(metric: Any, scores: Tensor, targets: Tensor) -> Any:
    """Return a metric over a whole split; a torchmetrics object is reset first, so that it holds nothing else."""
    if all(callable(getattr(metric, name, None)) for name in ("reset", "update", "compute")):
        metric.reset()
        metric.update(scores, targets)
        found = metric.compute()
        metric.reset()
        return found
    return metric(scores, targets)
