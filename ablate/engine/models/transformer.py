"""The transformer family: maps patches, vectors or ids to scores of a sample, of each token or of a set's members."""

from __future__ import annotations

from torch import Tensor

from ablate.engine.models.encoder_decoder import EncoderDecoder
from ablate.engine.models.equal_replicates import round_alike
from ablate.engine.models.layers import HEAD_GAIN, TOKEN_HEAD_GAIN, Draw, Dropout, Projection, add_prefix, start, under
from ablate.engine.models.model_config import InputShape, ModelConfig, refuse_pool
from ablate.engine.models.stack import Encoder, Tokens

round_alike()  # when the family is imported, not a user's training function: before the first product


def build(config: ModelConfig, shape: InputShape) -> Transformer | EncoderDecoder:
    """Return the network of `config` for inputs of `shape`, initialised from torch's global generator."""
    refuse_pool(config, shape)
    if shape.source_tokens:
        return EncoderDecoder(config, shape)
    return Transformer(config, shape)


class Transformer(Encoder):
    """Embedding, positions, blocks, pooling and head (papers A and B).

    Shapes: x [*R, B, T, F] or ids [*R, B, T] to scores [*R, B, M], [*R, B, T, M] (`output: token`) or [*R, B, T]
    (`output: set`, which gets no positions), where *R is nothing or one replicate axis, on x and every weight.
    x may have fewer than T tokens. With `value: stacked` one matrix follows the last block (paper A, Eq. 9).
    """

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        given = Tokens(
            tokens=shape.tokens,
            features=shape.features,
            ids=shape.inputs == "ids",
            ordered=shape.output != "set",
            causal=shape.causal,
            class_token=config.pool == "cls",
        )
        dropout = Dropout(config.dropout, tokens=given.tokens + given.class_token) if config.dropout else None
        super().__init__(config, given, dropout)
        self.output = shape.output
        self.head = Projection(config.width, 1 if shape.output == "set" else shape.outputs, bias=True)
        start(self, self.initial)

    def forward(self, x: Tensor, *, return_weights: bool = False) -> Tensor | tuple[Tensor, tuple[Tensor, ...]]:
        """Return scores; with `return_weights` also each block's attention weights [*R, B, H, T, T]."""
        maps: list[Tensor] | None = [] if return_weights else None
        scores = self._scores(self.encoded(x, maps=maps))
        return scores if maps is None else (scores, tuple(maps))

    def _scores(self, tokens: Tensor) -> Tensor:
        if self.output == "sample":
            tokens = tokens.mean(-2) if self.class_token is None else tokens[..., 0, :]
        scores: Tensor = self.head(tokens)
        return scores.squeeze(-1) if self.output == "set" else scores

    def initial(self, draw: Draw) -> dict[str, Tensor]:
        """Return initial values by parameter name, from standard normal values drawn per path."""
        gain = HEAD_GAIN if self.output == "sample" else TOKEN_HEAD_GAIN
        return super().initial(draw) | add_prefix("head", self.head.initial(under(draw, "head"), gain=gain))
