"""The shared parts of tasks with one target per token: loss, metrics, windows on one text, unused fields."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ablate.base.errors import RequestError
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks.base import Classification, Data
from ablate.engine.tasks.task_config import SequenceConfig

WINDOW_PAD = 255  # the target in a window that another window counts; every vocabulary here is smaller


class TokenPrediction:
    """Loss and metrics of a task with one class per token; targets equal to `pad` are ignored."""

    pad: int | None = None

    def loss(self, logits: Tensor, targets: Tensor, label_smoothing: float | Tensor = 0.0) -> Tensor:
        """Return each token's smoothed cross-entropy in nats, [*R, B, T]; equals `torch.nn.functional.cross_entropy`.

        `logits` are [*R, B, T, M], `targets` [*R, B, T] or [B, T] for all replicates, `label_smoothing` is a number or
        [R, 1], one per replicate. Half precision is converted to float32; padding has the loss 0.
        """
        padding = None if self.pad is None else targets == self.pad
        index = targets if padding is None else targets.masked_fill(padding, 0)
        losses = Classification().loss(logits, index, per_token(label_smoothing))
        return losses if padding is None else losses.masked_fill(padding, 0.0)

    def metrics(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return `accuracy` of each token, 1.0 or 0.0, [*R, B, T] float32; 0 at padding."""
        right = logits.argmax(dim=-1) == targets
        if self.pad is not None:
            right &= targets != self.pad
        return {"accuracy": right.float()}


def per_token(label_smoothing: float | Tensor) -> float | Tensor:
    """Return a smoothing [R, 1] as [R, 1, 1], to broadcast with losses [R, B, T]; a number is returned unchanged."""
    return label_smoothing.unsqueeze(-1) if isinstance(label_smoothing, Tensor) else label_smoothing


def sliding_windows(text: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return every window of `text` [n] and the tokens that follow: views [n - length, length] without a copy."""
    return text[:-1].unfold(0, length, 1), text[1:].unfold(0, length, 1)


def disjoint_windows(text: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [ceil((n - 1) / length), length] that cover text[1:], each token exactly once.

    The last window is moved left until it fits; its targets that the previous window has are `WINDOW_PAD`.
    """
    inputs, targets = sliding_windows(text, length)
    last = len(inputs) - 1
    starts = torch.arange(0, last + length, length).clamp(max=last)
    chosen_inputs, chosen_targets = inputs[starts], targets[starts]
    again = 0 if len(starts) == 1 else length - int(starts[-1] - starts[-2])
    chosen_targets[-1, :again] = WINDOW_PAD
    return chosen_inputs, chosen_targets


def text_data(train: Tensor, test: Tensor, length: int) -> Data:
    """Return windows of `length` on two texts uint8 [n]: all of `train`, and of `test` each token once."""
    train_inputs, train_targets = sliding_windows(train, length)
    test_inputs, test_targets = disjoint_windows(test, length)
    return Data(
        train_inputs=train_inputs,
        train_targets=train_targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        ids=True,
        pad=WINDOW_PAD,
        window=length,
    )


class TextWindows(TokenPrediction):
    """Windows on one text of `symbols` different tokens, whose parts are `train` and `test` tokens long."""

    pad = WINDOW_PAD

    def __init__(self, config: SequenceConfig, usual: int, *, symbols: int, train: int, test: int) -> None:
        self.length, self.symbols, self.train = config.length or usual, symbols, train
        if self.length >= test:
            raise RequestError(
                f"task {config.task}: length={self.length:,} does not fit into the test part of {test:,} tokens;"
                f" take at most {test - 1:,}"
            )

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape."""
        return InputShape(
            tokens=self.length,
            features=self.symbols,
            outputs=self.symbols,
            train_samples=self.train - self.length,
            inputs="ids",
            output="token",
            causal=True,
            window=self.length,
        )
