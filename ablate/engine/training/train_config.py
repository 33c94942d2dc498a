"""The settings of training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ablate.core.config import Frozen, NotNegative, Positive


class Schedule(Frozen):
    """Learning-rate schedule; it multiplies the learning rate once per step."""

    name: Literal["constant", "cosine", "multistep", "inverse_sqrt"] = "cosine"
    """`cosine` falls to `floor` over the trial; `multistep` multiplies by `gamma` at each milestone; `inverse_sqrt`
    falls as one over the square root of the step from the end of the warm-up."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    """Length of the linear warm-up, in epochs (may be a fraction). Of n steps, step k has k/n of the rate."""
    warmup_steps: NotNegative = 0
    """Length of the linear warm-up, in steps. It replaces `warmup_epochs`."""
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.5, 0.75)
    """Shares of the trial at which `multistep` multiplies by `gamma`."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Factor of `multistep`."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Last factor of `cosine`."""


class TrainConfig(Frozen):
    """How one trial is trained."""

    epochs: Positive = 20
    """Length of a full trial. The schedule covers all of it."""
    batch_size: Positive = 64
    """Samples per step and replicate."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """Update rule, as in `torch.optim`."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled for adamw, an L2 term for adam and sgd."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """First-moment decay of adamw and adam."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Second-moment decay of adamw and adam."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Denominator term of adamw and adam."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of sgd."""
    schedule: Schedule = Schedule()
    """Learning-rate schedule."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Clip each replicate's gradient to this 2-norm."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target spread evenly over the classes."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """Arithmetic of forward and backward; weights and moments stay float32 (float64 for float64)."""
    report_every: Positive = 1
    """Epochs per Report."""
    steps_per_epoch: Positive | None = None
    """Steps that count as one epoch, at most one pass over the data. Default: all full batches."""
