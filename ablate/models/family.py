"""The table of model builders."""

from __future__ import annotations

from torch import nn

from ablate.config import InputShape, ModelConfig
from ablate.registry import Registry

MODELS = Registry("model builder", {"transformer": "ablate.models.transformer:build"})


def build(config: ModelConfig, shape: InputShape) -> nn.Module:
    """Return the module that `config.builder` makes; raise RegistryError where there is no such builder."""
    module: nn.Module = MODELS.load(config.builder)(config, shape)
    return module
