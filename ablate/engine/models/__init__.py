"""Models: the transformer family of papers A and B, its settings, its initial weights and its sizes.

`build(config, shape)` gives an `nn.Module`, x [B, T, F] to scores [B, M], which also computes R replicates at once:
x [R, B, T, F] with every weight [R, ...] through `torch.func.functional_call`.
The names here are imported on first use, so that `ablate.engine.models.model_config` can be imported without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.core.registry import lazy_names

if TYPE_CHECKING:
    from ablate.engine.models.initialisation import initial_parameters
    from ablate.engine.models.model_config import InputShape, ModelConfig
    from ablate.engine.models.size import measure
    from ablate.engine.models.transformer import build

__all__ = ["InputShape", "ModelConfig", "build", "initial_parameters", "measure"]
__getattr__ = lazy_names(
    __name__,
    {
        "ablate.engine.models.initialisation": ("initial_parameters",),
        "ablate.engine.models.size": ("measure",),
        "ablate.engine.models.model_config": ("InputShape", "ModelConfig"),
        "ablate.engine.models.transformer": ("build",),
    },
)
