"""Initial weights, drawn per (seed, parameter path): variants that share a matrix start from the same one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ablate.base.randomness import stream
from ablate.engine.models.builder import build
from ablate.engine.models.keyed import build_keyed
from ablate.engine.models.parts.replacing import replace_parts
from ablate.engine.models.settings import InputShape, ModelConfig


def initial_parameters(
    config: ModelConfig,
    shape: InputShape,
    *,
    study_seed: int,
    dataset: str,
    seed: int,
    replace: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Return one replicate's initial weights by parameter path, float32 on the CPU, without a replicate axis.

    A module with a method `initial(draw)` (all built-in ones) receives standard normal values keyed by (study seed,
    data set, seed, path). Any other module draws by its own rules from generators with the same keys. Buffers of a
    module that is not `row_native` are returned too, in their own types. Global random states do not change. Parts at
    the paths of `replace` are replaced in the initialised module, so that all other weights are those of the whole.
    """

    def draw(path: str, size: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(stream(study_seed, dataset, seed, "initialisation", path).standard_normal(size))

    def number(path: str) -> int:
        return int(stream(study_seed, dataset, seed, "initialisation", path).integers(2**63))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number(""))
        module = build(config, shape)
    keyed = getattr(module, "initial", None)
    keyed = keyed if inspect.ismethod(keyed) else None  # a submodule may have that name
    if keyed is None:
        module = build_keyed(lambda: build(config, shape), number)
    named = {name: parameter.detach() for name, parameter in module.named_parameters()}
    drawn = {} if keyed is None else keyed(draw)
    values = {name: drawn.get(name, value).to(torch.float32) for name, value in named.items()}
    if replace:
        with torch.no_grad():
            for name, value in values.items():
                named[name].copy_(value)
        replace_parts(module, replace, number_of=lambda path: number(f"part {path}"))
        values = {name: value.detach().to(torch.float32) for name, value in module.named_parameters()}
    buffers = {} if getattr(module, "row_native", False) else dict(module.named_buffers())
    return {name: value.contiguous().clone() for name, value in (values | buffers).items()}
