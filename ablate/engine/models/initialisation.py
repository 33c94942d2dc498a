"""Initial weights, drawn per (seed, parameter path): variants that share a matrix start from the same one."""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.base.randomness import stream
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.models.transformer import build


def initial_parameters(
    config: ModelConfig, shape: InputShape, *, study_seed: int, dataset: str, seed: int
) -> dict[str, Tensor]:
    """Return one replicate's initial weights by parameter path, float32 on the CPU, without a replicate axis.

    The standard normal values that they are made of are keyed by (study seed, data set, seed, path). Global random
    states do not change.
    """

    def draw(path: str, size: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(stream(study_seed, dataset, seed, "initialisation", path).standard_normal(size))

    with torch.random.fork_rng(devices=[]):
        module = build(config, shape)
    values = module.initial(draw)
    return {name: values[name].to(torch.float32).contiguous().clone() for name, _ in module.named_parameters()}
