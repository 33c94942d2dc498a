"""Builds a module from a configuration and a shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ablate.base.errors import RequestError
from ablate.core.registry import MODELS
from ablate.engine.models.parts.replacing import replace_parts
from ablate.engine.models.samples import give_samples
from ablate.engine.models.settings import BUILT_IN, InputShape, ModelConfig


def build(config: ModelConfig, shape: InputShape, replace: Mapping[str, Any] | None = None) -> nn.Module:
    """Return the module that `config.builder` makes, with the parts at the paths of `replace` replaced.

    Raises RegistryError if there is no such builder, TrialError for a replacement that is not possible.
    """
    module: nn.Module = MODELS.load(config.builder)(config, shape)
    if config.builder != BUILT_IN:
        _refuse_unkeepable(module)
    if replace:
        replace_parts(module, replace)
        _refuse_unkeepable(module)
    return give_samples(module, shape)


def _refuse_unkeepable(module: nn.Module) -> None:
    """Raise RequestError for a module whose state a checkpoint cannot hold, or which has nothing to train."""
    name = type(module).__name__
    if not isinstance(module, nn.Module):
        raise RequestError(f"the builder returned a {name}: return a torch.nn.Module")
    for path, part in module.named_modules():
        for attribute, value in vars(part).items():
            if isinstance(value, Tensor):
                place = f"{path}.{attribute}".lstrip(".")
                rule = f"a checkpoint does not hold it. Write self.register_buffer({attribute!r}, …)"
                raise RequestError(f"{name}: {place} is a plain tensor, and {rule}")
    parameters = list(module.parameters())
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise RequestError(f"{name} has a lazy module: give it the number of its inputs (shape.sample, shape.features)")
    if any(parameter.is_complex() for parameter in parameters):
        raise RequestError(f"{name} has complex weights: use real ones")
    if not any(parameter.requires_grad for parameter in parameters):
        raise RequestError(f"{name} has no parameter to train")
