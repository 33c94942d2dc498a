"""A stack of blocks, preceded by the embedding, the positions and a class token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ablate.engine.models.block import Block, Sublayers
from ablate.engine.models.embedding import Lookup
from ablate.engine.models.layers import Draw, Dropout, Projection, add_prefix, under
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.models.positions import first_places, pair_sinusoidal, sinusoidal

EMBEDDING_GAIN = 0.4  # near the root mean square of the centred positions: content and position have equal weight


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The input of a stack: T tokens of F features, and whether it uses their order."""

    tokens: int
    features: int
    ids: bool = False
    ordered: bool = True
    causal: bool = False
    class_token: bool = False


class Stack(nn.Module):
    """Embedding, positions, `depth` blocks and, with `value: stacked`, one matrix after them (paper A, Eq. 9).

    Shapes: x [*R, B, T', F], or ids [*R, B, T'], of T' <= T tokens. Embedding and blocks share one Dropout.
    """

    class_token: nn.Parameter | None
    position: nn.Parameter | None
    fixed_position: Tensor | None
    visible: Tensor | None
    blocks: Sequence[Sublayers]
    block: type[Sublayers]

    def __init__(self, config: ModelConfig, given: Tokens, dropout: Dropout | None) -> None:
        super().__init__()
        width, tokens = config.width, given.tokens + given.class_token
        kind = Lookup if given.ids else Projection
        self.embedding = kind(given.features, width, bias=True)
        self.register_parameter("class_token", nn.Parameter(torch.empty(width)) if given.class_token else None)
        position = config.position if given.ordered else "none"
        learned = nn.Parameter(torch.empty(tokens, width)) if position == "learned" else None
        self.register_parameter("position", learned)
        fixed = sinusoidal(tokens, width) if position == "sinusoidal" else None
        self.register_buffer("fixed_position", fixed, persistent=False)
        visible = torch.ones(tokens, tokens, dtype=torch.bool).tril() if given.causal else None
        self.register_buffer("visible", visible, persistent=False)
        pair_code = pair_sinusoidal(tokens, config.pair_position) if config.pair_position else None
        self.dropout = dropout
        self.blocks = nn.ModuleList(  # type: ignore[assignment]
            self.block(config, pair_code=pair_code, dropout=dropout) for _ in range(config.depth)
        )
        stacked = config.value == "stacked"
        self.value_output = Projection(width, width, bias="output" in config.biases()) if stacked else None

    def embedded(self, x: Tensor, *, after: int = 0) -> Tensor:
        """Return token vectors [*R, B, T', N] with positions and, in training, dropout; the class token comes first.

        The first token of x is at position `after`.
        """
        tokens: Tensor = self.embedding(x)
        if self.class_token is not None:
            first = self.class_token[..., None, None, :].expand(*tokens.shape[:-2], 1, -1)
            tokens = torch.cat([first, tokens], dim=-2)
        upto = after + tokens.shape[-2]
        if self.position is not None:
            tokens = tokens + first_places(self.position, upto)[..., after:, :].unsqueeze(-3)
        elif self.fixed_position is not None:
            tokens = tokens + first_places(self.fixed_position, upto)[after:].to(tokens.dtype)
        return tokens if self.dropout is None else self.dropout(tokens)

    def seen(self, tokens: int) -> Tensor | None:
        """Return the causal mask [T', T'], True where row i may see column j, or None if all see all."""
        if self.visible is None:
            return None
        return first_places(self.visible, tokens)[:, :tokens]

    def left(self, tokens: Tensor) -> Tensor:
        """Return the stack's output: the last block's outputs, multiplied by the stack's one matrix if it has one."""
        if self.value_output is None:
            return tokens
        mapped: Tensor = self.value_output(tokens)
        return mapped

    def initial(self, draw: Draw) -> dict[str, Tensor]:
        """Return initial values by parameter name, from standard normal values drawn per path.

        The embedding's bias starts at minus the mean of the fixed positions. A part that
        all tokens share would dominate every similarity and every norm.
        """
        values = add_prefix("embedding", self.embedding.initial(under(draw, "embedding"), gain=EMBEDDING_GAIN))
        if self.fixed_position is not None:
            of_patches = self.fixed_position[0 if self.class_token is None else 1 :]
            values["embedding.bias"] = -of_patches.mean(0)
        if self.class_token is not None:
            values["class_token"] = draw("class_token", tuple(self.class_token.shape))
        if self.position is not None:
            values["position"] = draw("position", tuple(self.position.shape))
        for index, block in enumerate(self.blocks):
            values |= add_prefix(f"blocks.{index}", block.initial(under(draw, f"blocks.{index}")))
        if self.value_output is not None:
            values |= add_prefix("value_output", self.value_output.initial(under(draw, "value_output")))
        return values


def run_block(block: Block, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the outputs of one block."""
    outputs: Tensor = block(x, mask)
    return outputs


class Encoder(Stack):
    """A stack of encoder blocks; `run_block` runs one of them, and may be replaced by a compiled one."""

    blocks: Sequence[Block]
    block = Block
    run_block = staticmethod(run_block)

    def encoded(self, x: Tensor, mask: Tensor | None = None, maps: list[Tensor] | None = None) -> Tensor:
        """Return the stack's output [*R, B, T', N], and append each block's attention weights to `maps`.

        `mask` replaces the stack's own mask (causal or none).
        """
        tokens = self.embedded(x)
        mask = self.seen(tokens.shape[-2]) if mask is None else mask
        for block in self.blocks:
            if maps is None:
                tokens = self.run_block(block, tokens, mask)
            else:
                tokens, weights = block.attend(tokens, mask)
                maps.append(weights)
        return self.left(tokens)

    def similarities(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the unmasked similarities of each block before softmax, s [*R, B, H, T', T']."""
        tokens, found = self.embedded(x), []
        mask = self.seen(tokens.shape[-2]) if mask is None else mask
        for block in self.blocks:
            found.append(block.similarity(tokens, mask))
            tokens = block(tokens, mask)
        return tuple(found)
