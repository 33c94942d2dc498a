"""Token vectors from ids: a row of the embedding matrix replaces the product with a one-hot vector."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.engine.models.layers import Draw, Projection, shifted


class Lookup(Projection):
    """The affine map of one-hot vectors, x W + b, computed by looking rows of W up.

    Shapes: ids int64 [*R, B, T], W [*R, F, N], b [*R, N], to [*R, B, T, N].
    """

    def forward(self, ids: Tensor) -> Tensor:
        """Return row `ids` of W, plus b."""
        return shifted(_looked_up(ids, self.weight), self.bias)

    def initial(self, draw: Draw, *, gain: float = 1.0) -> dict[str, Tensor]:
        """Return initial values: a zero bias and rows of mean square `gain`^2; a one-hot vector has one entry."""
        return {"weight": gain * draw("weight", tuple(self.weight.shape))} | self.initial_bias()


def _looked_up(ids: Tensor, weight: Tensor) -> Tensor:
    if weight.dim() == 2:
        return F.embedding(ids, weight)
    replicates, known, width = weight.shape
    if replicates == 1:
        return F.embedding(ids, weight.squeeze(0))
    first = torch.arange(replicates, device=ids.device).mul_(known).view(-1, 1, 1)
    return F.embedding(ids + first, weight.reshape(-1, width))
