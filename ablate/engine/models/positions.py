"""Fixed sinusoidal codes of a token's position and of a pair of positions (+Pos)."""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.base.errors import RequestError

WAVELENGTH_BASE = 10_000.0  # longest wavelength over 2 pi, as in Vaswani et al. (2017), section 3.5


def sinusoidal(tokens: int, channels: int) -> Tensor:
    """Return the code of each position, [tokens, channels]: sines in even channels, cosines in odd ones.

    Source: Vaswani et al. (2017), section 3.5: sin(t / 10000^(2k/channels)) in channel 2k.
    """
    place = torch.arange(tokens, dtype=torch.float64)[:, None]
    channel = torch.arange(channels)[None, :]
    pair = torch.div(channel, 2, rounding_mode="floor").double()
    angle = place * WAVELENGTH_BASE ** (-2.0 * pair / channels)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).to(torch.get_default_dtype())


def pair_sinusoidal(tokens: int, channels: int) -> Tensor:
    """Return the fixed code P of each pair of positions, [tokens, tokens, channels] (paper B, section 3.1).

    This is the usual two-dimensional code: the first ceil(m/2) channels encode the column j, the others the row i.
    A term that depends on i alone shifts a whole row of similarities, and softmax ignores such a shift.
    """
    of_column = (channels + 1) // 2
    column = sinusoidal(tokens, of_column)[None, :, :].expand(tokens, -1, -1)
    if channels == of_column:
        return column.contiguous()
    row = sinusoidal(tokens, channels - of_column)[:, None, :].expand(-1, tokens, -1)
    return torch.cat([column, row], dim=-1)


def first_places(code: Tensor, tokens: int) -> Tensor:
    """Return the first `tokens` positions of `code` [..., T, N] as [..., tokens, N]; raise RequestError beyond T."""
    known = code.shape[-2]
    return code if tokens == known else code[..., : _within(tokens, known), :]


def first_pairs(code: Tensor, tokens: int) -> Tensor:
    """Return the code [tokens, tokens, m] of the first places of `code` [T, T, m]; raise RequestError beyond T."""
    known = len(code)
    return code if tokens == known else code[: _within(tokens, known), :tokens]


def _within(tokens: int, known: int) -> int:
    if tokens > known:
        raise RequestError(f"x has {tokens} tokens: the model's places end at {known}")
    return tokens
