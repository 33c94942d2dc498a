"""Networks as users have them: images with BatchNorm, tied weights, an LSTM, and dropout."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from ablate.engine.models.settings import InputShape, ModelConfig


class Cnn(nn.Module):
    """Two convolutions with BatchNorm on whole images; `options.middle: false` leaves the second one out."""

    takes = "samples"

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        assert shape.sample is not None
        self.first = nn.Sequential(
            nn.Conv2d(shape.sample[0], 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
        )
        if config.options.get("middle", True):
            self.middle = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, shape.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, M] of images [B, C, H, W]."""
        assert x.ndim == 4
        x = self.first(x)
        x = self.middle(x) if hasattr(self, "middle") else x
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


class Tied(nn.Module):
    """The last matrix is the first one transposed."""

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.first = nn.Linear(shape.features, shape.outputs, bias=False)
        self.middle = nn.Linear(shape.outputs, shape.features)
        self.last = nn.Linear(shape.features, shape.outputs, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, M] of tokens [B, T, F]."""
        scores: Tensor = self.last(self.middle(self.first(x)).tanh()).mean(-2)
        return scores


class Lstm(nn.Module):
    """An LSTM over the tokens: `torch.func.vmap` has no rule for it."""

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.body = nn.LSTM(shape.features, 5, batch_first=True)
        self.head = nn.Linear(5, shape.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, M] of tokens [B, T, F]."""
        scores: Tensor = self.head(self.body(x)[0][..., -1, :])
        return scores


class Dropping(nn.Module):
    """Dropout and BatchNorm over the features."""

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(shape.features, 6, bias=False),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(6, shape.outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, M] of tokens [B, T, F]."""
        scores: Tensor = self.body(x.mean(-2))
        return scores


class Keyed(nn.Module):
    """BatchNorm and dropout in a module that draws its own weights by `initial`."""

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(shape.features, 6, bias=False), nn.BatchNorm1d(6), nn.Dropout(0.2))
        self.head = nn.Linear(6, shape.outputs)

    def initial(self, draw: Callable[[str, tuple[int, ...]], Tensor]) -> dict[str, Tensor]:
        """Return standard normal weights of the head."""
        return {"head.weight": draw("head.weight", tuple(self.head.weight.shape)).float()}

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, M] of tokens [B, T, F]."""
        scores: Tensor = self.head(self.body(x.mean(-2)))
        return scores


class Assigning(nn.Module):
    """A running mean that is assigned, random features that no state dict holds, and draws of NumPy and Python."""

    mean: Tensor
    features: Tensor

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape.features))
        self.register_buffer("features", torch.randn(shape.features, 6), persistent=False)
        self.head = nn.Linear(6, shape.outputs)
        self.draws = config.options.get("draws", True)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, M] of tokens [B, T, F]."""
        flat = x.mean(-2)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * flat.detach().mean(0)
        if self.training and self.draws:
            flat = flat * (1 + 0.1 * np.random.rand() + 0.1 * random.random())
        scores: Tensor = self.head((flat - self.mean) @ self.features)
        return scores


NETWORKS = {kind.__name__: f"{__name__}:{kind.__name__}" for kind in (Cnn, Tied, Lstm, Dropping, Keyed, Assigning)}
STACKED = {"Cnn": True, "Tied": True, "Lstm": False, "Dropping": False, "Keyed": False, "Assigning": False}


def plain_losses(module: nn.Module, data: list[tuple[Tensor, Tensor]], *, rate: float, seed: int) -> Tensor:
    """Return the losses of an ordinary PyTorch loop, float64, whose global generator begins with `seed`."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.1)
    losses = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for x, y in data:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses)
