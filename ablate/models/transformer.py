"""The transformer family: patches in, class scores out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ablate.config import InputShape, ModelConfig
from ablate.models.block import Block
from ablate.models.layers import Draw, Projection, prefixed, under
from ablate.models.positions import pair_sinusoidal, sinusoidal

EMBEDDING_GAIN = 0.4  # near the root mean square of the centred places: content and place weigh alike
HEAD_GAIN = 0.1  # near-uniform scores at the start, whatever the depth adds to the tokens


def build(config: ModelConfig, shape: InputShape) -> Transformer:
    """Return the transformer of `config` for inputs of `shape`, initialised from torch's global generator."""
    return Transformer(config, shape)


class Transformer(nn.Module):
    """Patch embedding, positions, blocks, pooling and head (papers A and B).

    Shapes: x [*R, B, T, F] to scores [*R, B, M], where *R is nothing or one replicate axis. Called through
    `torch.func.functional_call` with every weight stacked to [R, ...], it computes R replicates by batched matmul.
    `value: stacked` has its one matrix behind the last block (paper A, Eq. 9).
    """

    row_native = True
    class_token: nn.Parameter | None
    position: nn.Parameter | None
    fixed_position: Tensor | None

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        width, with_class = config.width, config.pool == "cls"
        tokens = shape.tokens + with_class
        self.embedding = Projection(shape.features, width, bias=True)
        self.register_parameter("class_token", nn.Parameter(torch.empty(width)) if with_class else None)
        learned = nn.Parameter(torch.empty(tokens, width)) if config.position == "learned" else None
        self.register_parameter("position", learned)
        fixed = sinusoidal(tokens, width) if config.position == "sinusoidal" else None
        self.register_buffer("fixed_position", fixed, persistent=False)
        pair_code = pair_sinusoidal(tokens, config.pair_position) if config.pair_position else None
        self.blocks: Sequence[Block] = nn.ModuleList(  # type: ignore[assignment]
            Block(config, pair_code=pair_code) for _ in range(config.depth)
        )
        stacked = config.value == "stacked"
        self.value_output = Projection(width, width, bias="output" in config.biases()) if stacked else None
        self.head = Projection(width, shape.outputs, bias=True)
        if not self.head.weight.is_meta:
            self._reset()

    def forward(self, x: Tensor, *, return_weights: bool = False) -> Tensor | tuple[Tensor, tuple[Tensor, ...]]:
        """Return scores; with `return_weights` also each block's attention weights [*R, B, H, T, T]."""
        tokens, maps = self.embedded(x), []
        for block in self.blocks:
            tokens, weights = block.attend(tokens)
            if return_weights:
                maps.append(weights)
        if self.value_output is not None:
            tokens = self.value_output(tokens)
        pooled = tokens.mean(-2) if self.class_token is None else tokens[..., 0, :]
        scores: Tensor = self.head(pooled)
        return (scores, tuple(maps)) if return_weights else scores

    def embedded(self, x: Tensor) -> Tensor:
        """Return token vectors [*R, B, T, N], the class token first, with positions added."""
        tokens: Tensor = self.embedding(x)
        if self.class_token is not None:
            first = self.class_token[..., None, None, :].expand(*tokens.shape[:-2], 1, -1)
            tokens = torch.cat([first, tokens], dim=-2)
        if self.position is not None:
            return tokens + self.position.unsqueeze(-3)
        fixed = self.fixed_position
        return tokens if fixed is None else tokens + fixed.to(tokens.dtype)

    def initial(self, draw: Draw) -> dict[str, Tensor]:
        """Return initial values by parameter name, from standard normal values drawn per path.

        The embedding's bias starts at minus the mean of the fixed positions: most of their channels hardly change
        over a few tokens, and a part that all tokens share would rule every similarity and every norm.
        """
        values = prefixed("embedding", self.embedding.initial(under(draw, "embedding"), gain=EMBEDDING_GAIN))
        if self.fixed_position is not None:
            of_patches = self.fixed_position[0 if self.class_token is None else 1 :]
            values["embedding.bias"] = -of_patches.mean(0)
        values |= prefixed("head", self.head.initial(under(draw, "head"), gain=HEAD_GAIN))
        if self.class_token is not None:
            values["class_token"] = draw("class_token", tuple(self.class_token.shape))
        if self.position is not None:
            values["position"] = draw("position", tuple(self.position.shape))
        for index, block in enumerate(self.blocks):
            values |= prefixed(f"blocks.{index}", block.initial(under(draw, f"blocks.{index}")))
        if self.value_output is not None:
            values |= prefixed("value_output", self.value_output.initial(under(draw, "value_output")))
        return values

    @torch.no_grad()
    def _reset(self) -> None:
        values = self.initial(lambda _, shape: torch.randn(shape, dtype=torch.float64))
        for name, parameter in self.named_parameters():
            parameter.copy_(values[name])
