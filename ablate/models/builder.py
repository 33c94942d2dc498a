"""Builds a module from a configuration and a shape."""

from __future__ import annotations

from torch import nn

from ablate.models.samples import give_samples
from ablate.models.settings import InputShape, ModelConfig
from ablate.registry import MODELS


def build(config: ModelConfig, shape: InputShape) -> nn.Module:
    """Return the module that `config.builder` makes; raise RegistryError if there is no such builder."""
    module: nn.Module = MODELS.load(config.builder)(config, shape)
    return give_samples(module, shape)
