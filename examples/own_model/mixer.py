"""A small MLP-Mixer: one layer over the tokens, one over the features, no attention."""

from __future__ import annotations

from torch import Tensor, nn

from ablate.engine.models.settings import InputShape, ModelConfig


class Mixer(nn.Module):
    def __init__(self, shape: InputShape, *, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Linear(shape.tokens, shape.tokens)
        self.features = nn.Linear(shape.features, hidden)
        self.head = nn.Linear(hidden, shape.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, M] of tokens [B, T, F]."""
        mixed = x + self.tokens(x.mT).relu().mT
        return self.head(self.features(mixed).relu().mean(dim=-2))


def build(config: ModelConfig, shape: InputShape) -> Mixer:
    return Mixer(shape, hidden=config.options["hidden"])
