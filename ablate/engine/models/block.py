"""One block: attention, then the MLP or the identity, with norms and residuals."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ablate.engine.models.attention import Attention
from ablate.engine.models.layers import BRANCH_GAIN, Draw, Dropout, LayerNorm, Projection, add_prefix, under
from ablate.engine.models.model_config import ModelConfig


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
        return add_prefix("hidden", hidden) | add_prefix("output", output)


class Sublayers(nn.Module):
    """The shared parts of encoder and decoder blocks: attention, the MLP or the identity, norms and residuals.

    Dropout applies to the outputs of attention and of the MLP, not to the identity that replaces the MLP.
    """

    def __init__(self, config: ModelConfig, *, pair_code: Tensor | None = None, dropout: Dropout | None = None) -> None:
        super().__init__()
        self.norm, self.residual = config.norm, config.residual
        self.attention = Attention(config, pair_code=pair_code)
        self.attention_norm = None if config.norm == "none" else LayerNorm(config.width)
        self.mlp = MLP(config.width, config.hidden) if config.hidden else None
        self.mlp_norm = None if config.norm == "none" else LayerNorm(config.width)
        self.dropout = dropout

    def similarity(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the similarities of the self-attention before softmax, s [*R, B, H, T, T], unmasked."""
        return self.attention.similarity(self._before(self.attention_norm, x), mask)

    def _mixed(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return x after self-attention."""
        return self._added(self.attention_norm, x, self.attention(self._before(self.attention_norm, x), mask))

    def _attended(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        z, weights = self.attention.attend(self._before(self.attention_norm, x), mask)
        return self._added(self.attention_norm, x, z), weights

    def _finished(self, z: Tensor) -> Tensor:
        """Return z after the MLP, or after the identity that replaces it."""
        if self.mlp is not None:
            return self._added(self.mlp_norm, z, self.mlp(self._before(self.mlp_norm, z)))
        if self.norm != "pre":
            return self._after(self.mlp_norm, z)
        y = self._before(self.mlp_norm, z)
        return z + y if self.residual else y

    def _added(self, norm: LayerNorm | None, x: Tensor, branch: Tensor) -> Tensor:
        y = branch if self.dropout is None else self.dropout(branch)
        return self._after(norm, x + y if self.residual else y)

    def _before(self, norm: LayerNorm | None, x: Tensor) -> Tensor:
        return norm(x) if norm is not None and self.norm == "pre" else x

    def _after(self, norm: LayerNorm | None, x: Tensor) -> Tensor:
        return norm(x) if norm is not None and self.norm == "post" else x

    def initial(self, draw: Draw) -> dict[str, Tensor]:
        """Return initial values by parameter name."""
        values = add_prefix("attention", self.attention.initial(under(draw, "attention")))
        if self.mlp is not None:
            values |= add_prefix("mlp", self.mlp.initial(under(draw, "mlp")))
        for name, norm in (("attention_norm", self.attention_norm), ("mlp_norm", self.mlp_norm)):
            values |= {} if norm is None else add_prefix(name, norm.initial())
        return values


class Block(Sublayers):
    """An encoder block; both LayerNorms remain when the MLP is removed, consistent with paper A's weight counts.

    pre-norm: z = x + attention(LN1 x), y = z + mlp(LN2 z); post-norm: z = LN1(x + attention x), y = LN2(z + mlp z).
    Without an MLP the identity replaces it: pre-norm y = z + LN2 z, post-norm y = LN2 z. Without norms too, y = z.
    Without residuals the sums keep their last term only. Shapes: x [*R, B, T, N] to the same.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the block's outputs."""
        return self._finished(self._mixed(x, mask))

    def attend(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the block's outputs and its attention weights [*R, B, H, T, T]."""
        z, weights = self._attended(x, mask)
        return self._finished(z), weights
