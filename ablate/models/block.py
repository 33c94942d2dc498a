"""One encoder block: attention, then the MLP or nothing in its place, with norms and residuals."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ablate.config import ModelConfig
from ablate.models.attention import Attention
from ablate.models.layers import BRANCH_GAIN, Draw, LayerNorm, Projection, prefixed, under


class MLP(nn.Module):
    """GELU(z W1 + b1) W2 + b2 (paper A, Eq. 7)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = Projection(width, hidden, bias=True)
        self.output = Projection(hidden, width, bias=True)

    def forward(self, z: Tensor) -> Tensor:
        """Return the MLP of z [*R, B, T, N], token by token."""
        y: Tensor = self.output(F.gelu(self.hidden(z)))
        return y

    def initial(self, draw: Draw) -> dict[str, Tensor]:
        """Return initial values by parameter name."""
        hidden = self.hidden.initial(under(draw, "hidden"))
        output = self.output.initial(under(draw, "output"), gain=BRANCH_GAIN)
        return prefixed("hidden", hidden) | prefixed("output", output)


class Block(nn.Module):
    """An encoder block; both LayerNorms stay when the MLP goes, as paper A's weight counts say.

    pre-norm: z = x + attention(LN1 x), y = z + mlp(LN2 z); post-norm: z = LN1(x + attention x), y = LN2(z + mlp z).
    Without an MLP the identity stands in its place: pre-norm y = z + LN2 z, post-norm y = LN2 z. Without norms too,
    y = z. Without residuals the sums keep their last term only. Shapes: x [*R, B, T, N] to the same.
    """

    def __init__(self, config: ModelConfig, *, pair_code: Tensor | None = None) -> None:
        super().__init__()
        self.norm, self.residual = config.norm, config.residual
        self.attention = Attention(config, pair_code=pair_code)
        self.attention_norm = None if config.norm == "none" else LayerNorm(config.width)
        self.mlp = MLP(config.width, config.hidden) if config.hidden else None
        self.mlp_norm = None if config.norm == "none" else LayerNorm(config.width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the block's outputs."""
        return self.attend(x, mask)[0]

    def attend(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the block's outputs and its attention weights [*R, B, H, T, T]."""
        z, weights = self.attention.attend(_before(self.norm, self.attention_norm, x), mask)
        z = _after(self.norm, self.attention_norm, x + z if self.residual else z)
        if self.mlp is None and self.norm != "pre":
            return _after(self.norm, self.mlp_norm, z), weights
        y = _before(self.norm, self.mlp_norm, z)
        y = y if self.mlp is None else self.mlp(y)
        return _after(self.norm, self.mlp_norm, z + y if self.residual else y), weights

    def initial(self, draw: Draw) -> dict[str, Tensor]:
        """Return initial values by parameter name."""
        values = prefixed("attention", self.attention.initial(under(draw, "attention")))
        if self.mlp is not None:
            values |= prefixed("mlp", self.mlp.initial(under(draw, "mlp")))
        for name, norm in (("attention_norm", self.attention_norm), ("mlp_norm", self.mlp_norm)):
            values |= {} if norm is None else prefixed(name, norm.initial())
        return values


def _before(place: str, norm: LayerNorm | None, x: Tensor) -> Tensor:
    return norm(x) if norm is not None and place == "pre" else x


def _after(place: str, norm: LayerNorm | None, x: Tensor) -> Tensor:
    return norm(x) if norm is not None and place == "post" else x
