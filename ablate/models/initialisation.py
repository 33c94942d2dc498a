"""Initial weights, drawn per (seed, parameter path): variants that share a matrix start from the same one."""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.models.builder import build
from ablate.models.settings import InputShape, ModelConfig
from ablate.randomness import stream


def initial_parameters(
    config: ModelConfig, shape: InputShape, *, study_seed: int, dataset: str, seed: int
) -> dict[str, Tensor]:
    """Return one replicate's initial weights by parameter path, float32 on the CPU, without a replicate axis.

    A module with a method `initial(draw)` (all built-in ones) receives standard normal values keyed by (study seed,
    data set, seed, path). Any other module is built under a torch generator seeded from the same stream. Global
    random states do not change.
    """
    begin = int(stream(study_seed, dataset, seed, "initialisation").integers(2**63))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(begin)
        module = build(config, shape)

    def draw(path: str, size: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(stream(study_seed, dataset, seed, "initialisation", path).standard_normal(size))

    named = {name: parameter.detach() for name, parameter in module.named_parameters()}
    keyed = getattr(module, "initial", None)
    values = named if keyed is None else named | keyed(draw)
    return {name: values[name].to(torch.float32).contiguous().clone() for name in named}
