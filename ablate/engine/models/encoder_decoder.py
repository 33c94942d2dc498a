"""The encoder-decoder for text to text: it maps a source and a partial target to scores of the next tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ablate.engine.models.attention import Past
from ablate.engine.models.decoder import Decoder
from ablate.engine.models.layers import TOKEN_HEAD_GAIN, Draw, Dropout, Projection, add_prefix, start, under
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.models.stack import Encoder, Tokens


class EncoderDecoder(nn.Module):
    """An encoder of the source, a decoder of the target, and a head over the target's vocabulary.

    Shapes: the pair (source ids [*R, B, S'], target ids shifted right [*R, B, T']) to scores [*R, B, T', M], where *R
    is nothing or one replicate axis, on ids and on every weight alike. `pad` in the source is masked. `pad` in the
    target comes last, so causal attention never sees it. With `value: stacked` each stack has one value matrix.
    Sources: Vaswani et al. (2017); paper B, section 4.3.
    """

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.tokens, self.pad = shape.tokens, shape.pad
        longest = max(shape.tokens, shape.source_tokens)
        dropout = Dropout(config.dropout, tokens=longest) if config.dropout else None
        source = Tokens(tokens=shape.source_tokens, features=shape.source_features, ids=True)
        target = Tokens(tokens=shape.tokens, features=shape.features, ids=True, causal=True)
        self.encoder = Encoder(config, source, dropout)
        self.decoder = Decoder(config, target, dropout)
        self.head = Projection(config.width, shape.outputs, bias=True)
        start(self, self.initial)

    def forward(
        self, x: tuple[Tensor, Tensor], *, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, tuple[Tensor, ...]]:
        """Return scores; with `return_weights` also the weights of encoder, decoder and cross-attention.

        Each of the three has one map per block: [*R, B, H, S', S'], [*R, B, H, T', T'] and [*R, B, H, T', S'].
        """
        source, target = x
        visible = self._visible(source)
        of_source, of_target, across = list[Tensor](), list[Tensor](), list[Tensor]()
        encoded = self.encoder.encoded(source, visible, of_source if return_weights else None)
        memories = self.decoder.memories(encoded, visible)
        tokens = self.decoder.decoded(target, memories, (of_target, across) if return_weights else None)
        scores: Tensor = self.head(tokens)
        return (scores, (*of_source, *of_target, *across)) if return_weights else scores

    def similarities(self, x: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Return the unmasked similarities of each encoder block before softmax, s [*R, B, H, S', S']."""
        source, _ = x
        return self.encoder.similarities(source, self._visible(source))

    @torch.no_grad()
    def greedy(self, source: Tensor, *, start: int, end: int, steps: int) -> Tensor:
        """Return ids by greedy decoding from `start`: int64 [*R, B, t], `end` included.

        t is at most `steps` and T. Positions after `end` hold `pad` (or `end` if there is no padding id). The source is
        encoded once, and each step computes one token. The module must be in evaluation mode.
        """
        visible = self._visible(source)
        memories = self.decoder.memories(self.encoder.encoded(source, visible), visible)
        last = source.new_full((*source.shape[:-1], 1), start)
        ended = torch.zeros_like(last, dtype=torch.bool)
        pasts: Sequence[Past | None] = [None] * len(memories)
        written: list[Tensor] = []
        for place in range(min(steps, self.tokens)):
            tokens, pasts = self.decoder.continued(last, pasts, memories, after=place)
            last = self.head(tokens).argmax(-1).masked_fill(ended, end if self.pad is None else self.pad)
            written.append(last)
            ended |= last == end
            if ended.all():
                break
        return torch.cat(written, dim=-1)

    def _visible(self, source: Tensor) -> Tensor | None:
        return None if self.pad is None else (source != self.pad)[..., None, None, :]

    def initial(self, draw: Draw) -> dict[str, Tensor]:
        """Return initial values by parameter name, from standard normal values drawn per path."""
        values = add_prefix("encoder", self.encoder.initial(under(draw, "encoder")))
        values |= add_prefix("decoder", self.decoder.initial(under(draw, "decoder")))
        return values | add_prefix("head", self.head.initial(under(draw, "head"), gain=TOKEN_HEAD_GAIN))
