"""The size of a model, counted on the built module without allocating it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ablate.config import Size
from ablate.models.builder import build
from ablate.models.settings import InputShape, ModelConfig

OUTSIDE_BODY = (
    "embedding.",
    "encoder.embedding.",
    "decoder.embedding.",
    "head.",
)  # parameter paths that `params_body` excludes


def measure(config: ModelConfig, shape: InputShape) -> Size:
    """Return parameters and forward FLOPs per sample, counted on torch's meta device (no memory, no data).

    FLOPs are those of matrix products, as `torch.utils.flop_counter` counts them: a multiply-add is two. An embedding
    lookup is not a product. `params_body` excludes the parameters of embeddings and head, named in OUTSIDE_BODY. A
    module that cannot run on the meta device is counted on the CPU with one sample of zeros. Raises RegistryError for
    an unknown builder.
    """
    return _measure(config.model_dump_json(), shape.model_dump_json())


@lru_cache(maxsize=4096)
def _measure(config_json: str, shape_json: str) -> Size:
    config, shape = ModelConfig.model_validate_json(config_json), InputShape.model_validate_json(shape_json)
    try:
        return _count(config, shape, torch.device("meta"))
    except (RuntimeError, NotImplementedError):
        with torch.random.fork_rng(devices=[]):
            return _count(config, shape, torch.device("cpu"))


def _count(config: ModelConfig, shape: InputShape, device: torch.device) -> Size:
    with device:
        module: nn.Module = build(config, shape).eval()
        sample = zeros(shape, samples=1)
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            module(sample)
    sizes = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
    body = sum(size for name, size in sizes.items() if not name.startswith(OUTSIDE_BODY))
    return Size(params=sum(sizes.values()), params_body=body, flops=counter.get_total_flops())


def zeros(shape: InputShape, *, samples: int) -> Tensor | tuple[Tensor, Tensor]:
    """Return samples of zeros with the maximum number of tokens, as a model of `shape` reads them."""
    if shape.inputs == "vectors":
        return torch.zeros(samples, shape.tokens, shape.features)
    ids = torch.zeros(samples, shape.tokens, dtype=torch.int64)
    return (torch.zeros(samples, shape.source_tokens, dtype=torch.int64), ids) if shape.source_tokens else ids
