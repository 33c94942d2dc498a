"""The network of the benchmarks' hand-written loops: nn.Module as one would write it by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.models.settings import InputShape, ModelConfig


class PlainBlock(nn.Module):
    """A pre-norm encoder block of nn.Linear and nn.LayerNorm, one head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        n, biases = config.width, config.biases()
        self.norm1, self.norm2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.query = None if config.similarity == "shared" else nn.Linear(n, n, bias="query" in biases)
        self.key = None if config.similarity == "collapsed" else nn.Linear(n, n, bias="key" in biases)
        self.value = nn.Linear(n, n, bias="value" in biases) if config.value == "separate" else None
        self.output = nn.Linear(n, n, bias="output" in biases) if config.value == "separate" else None
        self.mlp = nn.Sequential(nn.Linear(n, config.mlp), nn.GELU(), nn.Linear(config.mlp, n)) if config.mlp else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's outputs for x [B, T, N]."""
        h = self.norm1(x)
        key = h if self.key is None else self.key(h)
        query = key if self.query is None else self.query(h)
        weights = torch.softmax(query @ key.mT * x.shape[-1] ** -0.5, dim=-1)
        mixed = weights @ (h if self.value is None else self.value(h))
        x = x + (mixed if self.output is None else self.output(mixed))
        h = self.norm2(x)
        y: Tensor = x + (h if self.mlp is None else self.mlp(h))
        return y


class Plain(nn.Module):
    """Embedding, sinusoidal positions, blocks, pooling, head."""

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.embedding = nn.Linear(shape.features, config.width)
        self.token = nn.Parameter(torch.randn(1, 1, config.width)) if config.pool == "cls" else None
        angles = torch.arange(shape.tokens + (config.pool == "cls"))[:, None] / 10_000 ** (
            torch.arange(0, config.width, 2) / config.width
        )
        self.register_buffer("position", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))
        self.blocks = nn.Sequential(*[PlainBlock(config) for _ in range(config.depth)])
        self.head = nn.Linear(config.width, shape.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, M] of x [B, T, F]."""
        x = self.embedding(x)
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = self.blocks(x + self.get_buffer("position"))
        scores: Tensor = self.head(x.mean(1) if self.token is None else x[:, 0])
        return scores
