"""A plain PyTorch loop, as one would write it by hand, beside which ours is measured."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.engine.models import measure
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.tasks import Data

RATE, DECAY, DEPTH, WIDTH = 1e-3, 0.01, 6, 60
VARIANTS = {
    "unchanged": ModelConfig(width=WIDTH, depth=DEPTH, mlp=256),
    "symmetric": ModelConfig(width=WIDTH, depth=DEPTH, mlp=0, similarity="shared", bias="none", pool="cls"),
    "minimum": ModelConfig(width=WIDTH, depth=DEPTH, mlp=0, similarity="collapsed", value="none", bias="none"),
}


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


def plain_epochs(
    config: ModelConfig,
    shape: InputShape,
    data: Data,
    *,
    batch: int,
    limit: int | None = None,
    device: str = "cpu",
    precision: str = "float32",
) -> Iterator[float]:
    """Yield the test accuracy after each epoch of a hand-written loop; the data live on `device`."""
    torch.manual_seed(0)
    module = Plain(config, shape).to(device)
    assert sum(p.numel() for p in module.parameters()) == measure(config, shape).params
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=DECAY)
    data = data.to(device)
    inputs, targets = data.train_inputs[:limit], data.train_targets[:limit]

    def scores(x: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            found: Tensor = module(data.tokens(x))
        return found.float()

    while True:
        module.train()
        order = torch.randperm(len(targets), device=device)
        for index in torch.split(order[: len(order) // batch * batch], batch):
            loss = F.cross_entropy(scores(inputs[index]), targets[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        module.eval()
        with torch.no_grad():
            parts = zip(torch.split(data.test_inputs, 256), torch.split(data.test_targets, 256), strict=True)
            right = sum((scores(x).argmax(-1) == y).sum() for x, y in parts)
        yield float(right) / len(data.test_targets)
