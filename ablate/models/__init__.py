"""Models: the transformer family of papers A and B, its initial weights and its sizes.

`build(config, shape)` gives an ordinary `nn.Module`, x [B, T, F] to scores [B, M]. A module with `row_native = True`
also computes R replicates at once: x [R, B, T, F] with every weight [R, ...] through `torch.func.functional_call`.
"""

from __future__ import annotations

from ablate.models.family import build
from ablate.models.initialisation import initial_parameters
from ablate.models.size import measure
from ablate.registry import MODELS

__all__ = ["MODELS", "build", "initial_parameters", "measure"]
