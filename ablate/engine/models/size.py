"""The size of a model, in closed form or counted on the built module."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from ablate.base.errors import RequestError, TrialError
from ablate.engine.models.builder import build
from ablate.engine.models.closed_form import NetworkSize, is_counted, size_of
from ablate.engine.models.settings import BUILT_IN, InputShape, ModelConfig
from ablate.engine.models.transformer import refuse_pool

OUTSIDE_BODY = (
    "embedding.",
    "encoder.embedding.",
    "decoder.embedding.",
    "head.",
)  # parameter paths that `params_body` excludes
SMALL = 10_000_000  # weights and similarities of a transformer that is built and run to be counted


def measure(config: ModelConfig, shape: InputShape, replace: Mapping[str, Any] | None = None) -> NetworkSize:
    """Return parameters and forward FLOPs per sample, of a transformer of the family in closed form.

    Other modules, and those with replaced parts, are counted on one sample of zeros. FLOPs are those of matrix
    products, as `torch.utils.flop_counter` counts them: a multiply-add is two. An embedding lookup is not a product.
    `params_body` excludes the parameters of embeddings and head, named in OUTSIDE_BODY. A small transformer is counted
    on the CPU; every other module on torch's meta device (no memory), if it can run there. Raises RegistryError for an
    unknown builder, RequestError for a replacement (`replace`) that is not possible.
    """
    if not replace and is_counted(config, shape):
        refuse_pool(config, shape)
        return size_of(config, shape)
    try:
        return _measure(config.model_dump_json(), shape.model_dump_json(), json.dumps(replace or {}))
    except TrialError as error:
        raise RequestError(str(error)) from error


@lru_cache(maxsize=4096)
def _measure(config_json: str, shape_json: str, replace_json: str) -> NetworkSize:
    config, shape = ModelConfig.model_validate_json(config_json), InputShape.model_validate_json(shape_json)
    replace = json.loads(replace_json)
    if not _is_small(config, shape):
        with suppress(RuntimeError, NotImplementedError):  # a module that needs numbers cannot run there
            return _count(config, shape, replace, torch.device("meta"))
    with torch.random.fork_rng(devices=[]):
        return _count(config, shape, replace, torch.device("cpu"))


def _is_small(config: ModelConfig, shape: InputShape) -> bool:
    """Return whether a module is built in and has, by an upper estimate, fewer than SMALL entries.

    The kernels of the meta device are written in Python and import `torch._dynamo`, which takes a second.
    """
    ends = config.width * (shape.features + shape.source_features + shape.outputs)
    side = config.width + config.hidden + max(shape.tokens, shape.source_tokens)
    return config.builder == BUILT_IN and ends + config.depth * (1 + config.pair_position) * side**2 < SMALL


def _count(config: ModelConfig, shape: InputShape, replace: Mapping[str, Any], device: torch.device) -> NetworkSize:
    from torch.utils import flop_counter  # imports triton, which a worker does without

    mode: Any = flop_counter._FlopCounterMode  # torch wraps its method in one that imports torch._dynamo
    mode.__torch_dispatch__ = inspect.unwrap(mode.__torch_dispatch__)
    with device:
        module: nn.Module = build(config, shape, replace).eval()
        sample = zeros(shape, samples=1)
        counter = flop_counter.FlopCounterMode(display=False)
        if replace:
            with torch.no_grad():
                module(sample)  # parts that are left out learn the form of their outputs, which is not to be counted
        with torch.no_grad(), counter:
            module(sample)
    sizes = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
    body = sum(size for name, size in sizes.items() if not name.startswith(OUTSIDE_BODY))
    return NetworkSize(params=sum(sizes.values()), params_body=body, flops=counter.get_total_flops())


def zeros(shape: InputShape, *, samples: int) -> Tensor | tuple[Tensor, Tensor]:
    """Return samples of zeros with the maximum number of tokens, as a model of `shape` reads them."""
    if shape.inputs == "vectors":
        return torch.zeros(samples, shape.tokens, shape.features)
    ids = torch.zeros(samples, shape.tokens, dtype=torch.int64)
    return (torch.zeros(samples, shape.source_tokens, dtype=torch.int64), ids) if shape.source_tokens else ids
