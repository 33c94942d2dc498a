"""The decoder: self-attention in any variant, and cross-attention to the source with query, key and value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ablate.engine.models.attention import Past, apply_mask, by_head, join_heads
from ablate.engine.models.block import Sublayers
from ablate.engine.models.layers import BRANCH_GAIN, Draw, Dropout, LayerNorm, Projection, add_prefix, softmax, under
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.models.stack import Stack


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Keys and values [R*B*H, S, N/H] that a cross-attention computes once from the source.

    `visible` [*R, B, 1, 1, S] is False where the source is padding; None means that there is no padding.
    """

    keys: Tensor
    values: Tensor
    visible: Tensor | None


class CrossAttention(nn.Module):
    """Attention of a text to its source, with separate query, key, value and output matrices in every variant.

    Shapes: x [*R, B, T, N], source [*R, B, S, N]. Sources: Vaswani et al. (2017), section 3.2; paper B, section 3.2.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.scale = 1.0 / math.sqrt(width // config.heads)
        biases = config.cross_biases()
        self.query = Projection(width, width, bias="query" in biases)
        self.key = Projection(width, width, bias="key" in biases)
        self.value = Projection(width, width, bias="value" in biases)
        self.output = Projection(width, width, bias="output" in biases)

    def memory(self, source: Tensor, visible: Tensor | None) -> Memory:
        """Return keys and values of the source."""
        keys, values = by_head(self.key(source), self.heads), by_head(self.value(source), self.heads)
        return Memory(keys=keys, values=values, visible=visible)

    def attend(self, x: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return the outputs [*R, B, T, N] and the attention weights [*R, B, H, T, S]."""
        similarity = torch.bmm(by_head(self.query(x), self.heads), memory.keys.mT) * self.scale
        if memory.visible is not None:
            similarity = apply_mask(similarity, memory.visible, like=x, heads=self.heads)
        weights = softmax(similarity)
        mixed: Tensor = self.output(join_heads(torch.bmm(weights, memory.values), self.heads, like=x))
        return mixed, weights.view(*x.shape[:-2], self.heads, *weights.shape[1:])

    def initial(self, draw: Draw) -> dict[str, Tensor]:
        """Return initial values by parameter name."""
        values = add_prefix("output", self.output.initial(under(draw, "output"), gain=BRANCH_GAIN))
        for name, part in (("query", self.query), ("key", self.key), ("value", self.value)):
            values |= add_prefix(name, part.initial(under(draw, name)))
        return values


class DecoderBlock(Sublayers):
    """Self-attention, cross-attention to the source, then the MLP or the identity; norms and residuals as in Block.

    pre-norm: z = x + attention(LN1 x), c = z + cross(LNc z, source), y = c + mlp(LN2 c); post-norm:
    z = LN1(x + attention x), c = LNc(z + cross(z, source)), y = LN2(c + mlp c). Shapes: x [*R, B, T, N] to the same.
    """

    def __init__(self, config: ModelConfig, *, pair_code: Tensor | None, dropout: Dropout | None) -> None:
        super().__init__(config, pair_code=pair_code, dropout=dropout)
        self.cross = CrossAttention(config)
        self.cross_norm = None if config.norm == "none" else LayerNorm(config.width)

    def forward(self, x: Tensor, mask: Tensor | None, memory: Memory) -> Tensor:
        """Return the block's outputs."""
        return self._rest(self._mixed(x, mask), memory)[0]

    def attend(self, x: Tensor, mask: Tensor | None, memory: Memory) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs, self-attention weights [*R, B, H, T, T] and cross-attention weights [*R, B, H, T, S]."""
        z, weights = self._attended(x, mask)
        y, over_source = self._rest(z, memory)
        return y, weights, over_source

    def continued(self, x: Tensor, past: Past | None, memory: Memory) -> tuple[Tensor, Past]:
        """Return the output [*R, B, 1, N] of the next token, and the updated cache."""
        z, past = self.attention.continued(self._before(self.attention_norm, x), past)
        return self._rest(self._added(self.attention_norm, x, z), memory)[0], past

    def _rest(self, z: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        crossed, weights = self.cross.attend(self._before(self.cross_norm, z), memory)
        return self._finished(self._added(self.cross_norm, z, crossed)), weights

    def initial(self, draw: Draw) -> dict[str, Tensor]:
        """Return initial values by parameter name."""
        values = super().initial(draw) | add_prefix("cross", self.cross.initial(under(draw, "cross")))
        return values | ({} if self.cross_norm is None else add_prefix("cross_norm", self.cross_norm.initial()))


class Decoder(Stack):
    """A stack of decoder blocks."""

    blocks: Sequence[DecoderBlock]
    block = DecoderBlock

    def memories(self, source: Tensor, visible: Tensor | None) -> tuple[Memory, ...]:
        """Return the keys and values of each block for the encoded source [*R, B, S, N]."""
        return tuple(block.cross.memory(source, visible) for block in self.blocks)

    def decoded(
        self, x: Tensor, memories: Sequence[Memory], maps: tuple[list[Tensor], list[Tensor]] | None = None
    ) -> Tensor:
        """Return the stack's output [*R, B, T', N]; append self- and cross-attention weights to `maps`."""
        tokens = self.embedded(x)
        mask = self.seen(tokens.shape[-2])
        for block, memory in zip(self.blocks, memories, strict=True):
            if maps is None:
                tokens = block(tokens, mask, memory)
            else:
                tokens, own, over_source = block.attend(tokens, mask, memory)
                maps[0].append(own)
                maps[1].append(over_source)
        return self.left(tokens)

    def continued(
        self, x: Tensor, pasts: Sequence[Past | None], memories: Sequence[Memory], *, after: int
    ) -> tuple[Tensor, list[Past]]:
        """Return the stack's output for the next token x [*R, B, 1] at position `after`, and the updated cache."""
        tokens, kept = self.embedded(x, after=after), []
        for block, past, memory in zip(self.blocks, pasts, memories, strict=True):
            tokens, longer = block.continued(tokens, past, memory)
            kept.append(longer)
        return self.left(tokens), kept
