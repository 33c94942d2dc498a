"""Attention with every similarity, value, +Pos, diagonal and bias form of papers A and B in one code path."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.engine.models.layers import (
    BRANCH_GAIN,
    Draw,
    Projection,
    Triangle,
    add_prefix,
    affine,
    shifted,
    softmax,
    under,
    unit_gain,
)
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.models.positions import first_pairs

SHORT, NARROW = 64, 8  # tokens, numbers of a head: up to here products are faster on a CPU
SMALLEST_DIAGONAL_MEAN = 1e-6  # keeps the normalised diagonal finite where a mean of signed terms is zero


@dataclass(frozen=True, kw_only=True)
class Past:
    """Keys and values [R*B*H, t, N/H] and the sum of s_jj [R*B*H, 1] of the t previous tokens of causal attention."""

    keys: Tensor
    values: Tensor
    diagonal: Tensor


class Attention(nn.Module):
    """Self-attention softmax(s) v.

    Shapes: x [*R, B, T, N] to [*R, B, T, N], where *R is nothing or one replicate axis, on x and on every weight
    alike. `pair_code` is the fixed P [T, T, m] of +Pos; its first places serve a shorter x. A mask is bool, True where
    row i may see column j, and broadcasts to [*R, B, H, T, T]. Sources: paper A, Eq. 1 to 6 and 9 to 11; paper B,
    sections 3.1, 3.2 and appendix (normalised diagonal).
    """

    key_bias: nn.Parameter | None
    pair_position: nn.Parameter | None

    def __init__(self, config: ModelConfig, *, pair_code: Tensor | None = None) -> None:
        super().__init__()
        self.width, self.heads = config.width, config.heads
        self.scale = 1.0 / math.sqrt(config.width // config.heads)
        self.similarity_form, self.value_form = config.similarity, config.value
        self.normalised_diagonal = config.diagonal == "normalised"
        self._add_similarity(config)
        self._add_value(config)
        self.register_buffer("pair_code", pair_code, persistent=False)
        channels = None if pair_code is None else nn.Parameter(torch.empty(pair_code.shape[-1]))
        self.register_parameter("pair_position", channels)

    def _add_similarity(self, config: ModelConfig) -> None:
        width, biases, form = config.width, config.biases(), config.similarity
        if form == "separate":
            self.query = Projection(width, width, bias="query" in biases)
        if form in ("separate", "shared"):
            self.key = Projection(width, width, bias="key" in biases)
        if form == "collapsed":
            self.query_key = Projection(width, width, bias="query" in biases)
            self.register_parameter("key_bias", nn.Parameter(torch.empty(width)) if "key" in biases else None)
        if form in ("mirrored", "cholesky"):
            self.query_key_triangle = Triangle(width)

    def _add_value(self, config: ModelConfig) -> None:
        width, biases, form = config.width, config.biases(), config.value
        if form == "separate":
            self.value = Projection(width, width, bias="value" in biases)
        if form in ("separate", "key"):
            self.output = Projection(width, width, bias="output" in biases)
        if form == "collapsed":
            self.value_output = Projection(width, width, bias="output" in biases)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the attention outputs [*R, B, T, N]."""
        query, key = self._compared(x)
        values = self._averaged(x, key)
        short = mask is None and query.shape[-2] <= SHORT
        if not self._is_plain(query, mask) or (short and self.heads == 1):
            mixed = self._mixed(query, key, values, mask)[0]
        elif short and self.width // self.heads <= NARROW:
            mixed = attend_in_columns(query, key, values, heads=self.heads, scale=self.scale)
        else:
            mixed = attend_by_head(query, key, values, mask, heads=self.heads, scale=self.scale)
        return self._projected(mixed)

    def attend(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs [*R, B, T, N] and the attention weights [*R, B, H, T, T]."""
        query, key = self._compared(x)
        mixed, weights = self._mixed(query, key, self._averaged(x, key), mask)
        return self._projected(mixed), weights.view(*x.shape[:-2], self.heads, *weights.shape[1:])

    def _is_plain(self, query: Tensor, mask: Tensor | None) -> bool:
        """Return whether torch's own attention serves: replicates on a CPU, similarities as they are, one mask for all.

        On a CPU it takes half the time of three operations for texts of 64 tokens, but six times as long in bfloat16.
        """
        as_they_are = not self.normalised_diagonal and self.pair_position is None and (mask is None or mask.dim() == 2)
        return as_they_are and query.dim() == 4 and query.is_cpu and query.dtype != torch.bfloat16

    def _mixed(self, query: Tensor, key: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the averages [*R, B, T, N] of the values and their weights [R*B*H, T, T]."""
        similarity = self._similarity(query, key, mask)
        if mask is not None:
            similarity = apply_mask(similarity, mask, like=query, heads=self.heads)
        weights = softmax(similarity)
        return join_heads(torch.bmm(weights, by_head(values, self.heads)), self.heads, like=query), weights

    def similarity(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the similarities s [*R, B, H, T, T] before softmax; `mask` is not applied to them."""
        s = self._similarity(*self._compared(x), mask)
        return s.view(*x.shape[:-2], self.heads, *s.shape[1:])

    def continued(self, x: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        """Return the output [*R, B, 1, N] of the next token of a causal text, and the updated cache."""
        query, key = self._compared(x)
        keys, values = by_head(key, self.heads), by_head(self._averaged(x, key), self.heads)
        if past is not None:
            keys, values = torch.cat([past.keys, keys], dim=1), torch.cat([past.values, values], dim=1)
        similarity = torch.bmm(by_head(query, self.heads), keys.mT) * self.scale
        own = similarity[..., -1]
        diagonal = own if past is None else past.diagonal + own
        if self.normalised_diagonal:
            own = own / _away_from_zero(diagonal / keys.shape[1])
            similarity = torch.cat([similarity[..., :-1], own.unsqueeze(-1)], dim=-1)
        if self.pair_position is not None:
            similarity = self._positioned(similarity, self.pair_position)
        mixed = join_heads(torch.bmm(softmax(similarity), values), self.heads, like=x)
        return self._projected(mixed), Past(keys=keys, values=values, diagonal=diagonal)

    def _compared(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys, [*R, B, T, N] each, so that s = q k^T."""
        form = self.similarity_form
        if form == "separate":
            return self.query(x), self.key(x)
        if form == "shared":
            key = self.key(x)
            return key, key
        if form == "collapsed":
            return self.query_key(x), shifted(x, self.key_bias)
        if form == "mirrored":
            return _times(x, self.query_key_triangle.symmetric()), x
        key = _times(x, self.query_key_triangle.lower())
        return key, key

    def _averaged(self, x: Tensor, key: Tensor) -> Tensor:
        """Return the values [*R, B, T, N] that the attention weights average."""
        if self.value_form == "separate":
            value: Tensor = self.value(x)
            return value
        return key if self.value_form == "key" else x

    def _projected(self, mixed: Tensor) -> Tensor:
        """Return the averages after the output matrix, if this form has one in the block."""
        if self.value_form in ("stacked", "none"):
            return mixed
        last = self.value_output if self.value_form == "collapsed" else self.output
        projected: Tensor = last(mixed)
        return projected

    def _similarity(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        """Return s [R*B*H, T, T] after scaling, diagonal and +Pos, in this order."""
        similarity = torch.bmm(by_head(query, self.heads), by_head(key, self.heads).mT) * self.scale
        if self.normalised_diagonal:
            similarity = _normalise_diagonal(similarity, self._diagonal_mean(similarity, mask, like=query))
        if self.pair_position is None:
            return similarity
        return self._positioned(similarity, self.pair_position)

    def _diagonal_mean(self, similarity: Tensor, mask: Tensor | None, *, like: Tensor) -> Tensor:
        """Return the mean of s_jj over the columns j that row i sees, [R*B*H, T or 1, 1]."""
        diagonal = similarity.diagonal(dim1=-2, dim2=-1)
        if mask is None:
            return diagonal.mean(-1)[..., None, None]
        per_head = diagonal.view(*like.shape[:-2], self.heads, 1, -1)
        mean = per_head.masked_fill(~mask, 0).sum(-1) / mask.sum(-1).clamp(min=1)
        return mean.reshape(len(similarity), -1, 1)

    def _positioned(self, similarity: Tensor, weight: Tensor) -> Tensor:
        """Return sum_k w_k (s_ij + P_ijk) = s_ij sum_k w_k + sum_k w_k P_ijk (paper B, section 3.1).

        If s is [R*B*H, t, T] with t < T, its rows are those of the last t tokens.
        """
        rows, columns = similarity.shape[1:]
        code = first_pairs(self.get_buffer("pair_code"), columns).to(similarity.dtype)
        code = code if rows == columns else code[columns - rows :]
        added = (code.reshape(-1, code.shape[-1]) @ weight.unsqueeze(-1)).view(*weight.shape[:-1], 1, rows, columns)
        total = weight.sum(-1)[..., None, None, None]
        per_replicate = similarity.view(*weight.shape[:-1], -1, rows, columns)
        return torch.addcmul(added, per_replicate, total).view(similarity.shape)

    def initial(self, draw: Draw) -> dict[str, Tensor]:
        """Return initial values by parameter name.

        Each reduced form initially computes the same function as its unreduced form. A matrix that replaces a product
        starts as that product, computed from the factors that the unreduced form draws.
        """
        values = self._initial_similarity(draw) | self._initial_value(draw)
        if self.pair_position is not None:
            channels = self.pair_position.shape[0]
            values["pair_position"] = torch.full((channels,), 1.0 / channels)
        return values

    def _initial_similarity(self, draw: Draw) -> dict[str, Tensor]:
        form = self.similarity_form
        if form == "separate":
            query = self.query.initial(under(draw, "query"))
            return add_prefix("query", query) | add_prefix("key", self.key.initial(under(draw, "key")))
        if form == "shared":
            # s_ii = |k|^2 / sqrt(d) starts at 1; at sqrt(d) every token would attend almost only to itself
            gain = (self.width // self.heads) ** -0.25
            return add_prefix("key", self.key.initial(under(draw, "key"), gain=gain))
        key = unit_gain(draw, "key.weight", self.width, self.width)
        if form in ("mirrored", "cholesky"):
            key = key * self.width**-0.25  # one head, and the gain of `shared`
        if form == "collapsed":
            product = {"weight": unit_gain(draw, "query.weight", self.width, self.width) @ key.mT}
            shift = {} if self.key_bias is None else {"key_bias": torch.zeros(self.width)}
            return add_prefix("query_key", product | self.query_key.initial_bias()) | shift
        gram = key @ key.mT
        matrix = gram if form == "mirrored" else torch.linalg.cholesky(gram)
        return {"query_key_triangle.weight": self.query_key_triangle.entries(matrix)}

    def _initial_value(self, draw: Draw) -> dict[str, Tensor]:
        form = self.value_form
        if form in ("stacked", "none"):
            return {}
        if form == "collapsed":
            value = unit_gain(draw, "value.weight", self.width, self.width)
            product = {"weight": BRANCH_GAIN * value @ unit_gain(draw, "output.weight", self.width, self.width)}
            return add_prefix("value_output", product | self.value_output.initial_bias())
        output = add_prefix("output", self.output.initial(under(draw, "output"), gain=BRANCH_GAIN))
        if form == "key":
            return output
        return add_prefix("value", self.value.initial(under(draw, "value"))) | output


def attend_by_head(
    query: Tensor, key: Tensor, values: Tensor, mask: Tensor | None, *, heads: int, scale: float
) -> Tensor:
    """Return softmax(scale q k^T) v of every head, q, k and v [R, B, T, N] to the same, by torch's own attention."""
    *_, tokens, width = query.shape
    q, k, v = (x.reshape(-1, tokens, heads, width // heads).transpose(1, 2) for x in (query, key, values))
    averages = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return averages.transpose(1, 2).reshape(query.shape)


def attend_in_columns(query: Tensor, key: Tensor, values: Tensor, *, heads: int, scale: float) -> Tensor:
    """Return what `attend_by_head` returns without a mask, in half the time for four heads of 4 numbers and 16 tokens.

    Heads are stored as [N/H, T], and the weights of token i are column i: MKL takes twice as long for a result [T, 4].
    """
    *_, tokens, width = query.shape
    q, k, v = (x.mT.contiguous().view(-1, width // heads, tokens) for x in (query * scale, key, values))
    weights = torch.softmax(torch.bmm(k.mT, q), dim=-2)
    return torch.bmm(v, weights).view(*query.shape[:-2], width, tokens).mT.contiguous()


def by_head(x: Tensor, heads: int) -> Tensor:
    """Return [*R, B, T, N] as [R*B*H, T, N/H]."""
    tokens, width = x.shape[-2:]
    if heads == 1:
        return x.reshape(-1, tokens, width)
    split = x.reshape(-1, tokens, heads, width // heads)
    return split.transpose(1, 2).reshape(-1, tokens, width // heads)


def join_heads(mixed: Tensor, heads: int, *, like: Tensor) -> Tensor:
    """Return [R*B*H, T, N/H] in the shape [*R, B, T, N] of `like`."""
    if heads == 1:
        return mixed.view(like.shape)
    split = mixed.view(-1, heads, *mixed.shape[1:])
    return split.transpose(1, 2).reshape(like.shape)


def apply_mask(similarity: Tensor, mask: Tensor, *, like: Tensor, heads: int) -> Tensor:
    """Return s [R*B*H, T, S] with the lowest number where `mask` is False; `like` is [*R, B, T, N].

    The lowest number gets a softmax weight of exactly zero beside any other. A fully masked row stays finite.
    """
    lowest = torch.finfo(similarity.dtype).min
    if mask.dim() == 2:
        return similarity.masked_fill(~mask, lowest)
    per_head = similarity.view(*like.shape[:-2], heads, *similarity.shape[1:])
    return per_head.masked_fill(~mask, lowest).view(similarity.shape)


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """Return x [*R, B, T, N] times matrix [N, N] or [R, N, N]."""
    if matrix.dim() == 2:
        return x @ matrix
    return affine(x, matrix)


def _normalise_diagonal(similarity: Tensor, mean: Tensor) -> Tensor:
    """Return s with s_ii / mean_i on its diagonal (paper B, appendix)."""
    on_diagonal = torch.eye(similarity.shape[-1], dtype=torch.bool, device=similarity.device)
    return torch.where(on_diagonal, similarity / _away_from_zero(mean), similarity)


def _away_from_zero(mean: Tensor) -> Tensor:
    smallest = SMALLEST_DIAGONAL_MEAN
    return torch.where(mean < 0, mean.clamp(max=-smallest), mean.clamp(min=smallest))
