"""Models: the transformer family of papers A and B, its settings, its initial weights and its sizes.

`build(config, shape)` gives an ordinary `nn.Module`, x [B, T, F] to scores [B, M]. A module with `row_native = True`
also computes R replicates at once: x [R, B, T, F] with every weight [R, ...] through `torch.func.functional_call`.
The names here are imported on first use, so that `ablate.models.settings` can be imported without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.registry import lazy_names

if TYPE_CHECKING:
    from ablate.models.builder import build
    from ablate.models.initialisation import initial_parameters
    from ablate.models.settings import InputShape, ModelConfig
    from ablate.models.size import measure
    from ablate.registry import MODELS

__all__ = ["MODELS", "InputShape", "ModelConfig", "build", "initial_parameters", "measure"]
__getattr__ = lazy_names(
    __name__,
    {
        "ablate.models.builder": ("build",),
        "ablate.models.initialisation": ("initial_parameters",),
        "ablate.models.size": ("measure",),
        "ablate.models.settings": ("InputShape", "ModelConfig"),
        "ablate.registry": ("MODELS",),
    },
)
