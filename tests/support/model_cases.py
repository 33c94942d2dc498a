"""The model variants that the tests of models go through, and modules filled with arbitrary weights."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, get_args

import torch
from pydantic import ValidationError
from torch import nn

from ablate.engine.models import build
from ablate.engine.models.model_config import InputShape, ModelConfig, Similarity, Value

SHAPE = InputShape(tokens=5, features=7, outputs=3, train_samples=100)
SMALL: dict[str, Any] = {"width": 12, "depth": 2, "mlp": 0}

VARIANTS: dict[str, dict[str, Any]] = {
    "separate": {},
    "separate, 3 heads, class token": {"heads": 3, "pool": "cls"},
    "MLP": {"mlp": 10},
    "MLP, post-norm, learned positions": {"mlp": 10, "norm": "post", "position": "learned"},
    "post-norm": {"norm": "post"},
    "no norm": {"norm": "none", "position": "none"},
    "no residual": {"residual": False},
    "collapsed": {"similarity": "collapsed"},
    "collapsed, value collapsed": {"similarity": "collapsed", "value": "collapsed"},
    "collapsed, value stacked": {"similarity": "collapsed", "value": "stacked"},
    "minimum": {"similarity": "collapsed", "value": "none", "bias": "none"},
    "shared, 2 heads": {"similarity": "shared", "heads": 2},
    "shared, value none, 2 heads": {"similarity": "shared", "value": "none", "heads": 2},
    "mirrored": {"similarity": "mirrored"},
    "cholesky": {"similarity": "cholesky"},
    "key of separate": {"value": "key"},
    "K+Pos, 3 heads, class token": {
        "similarity": "shared",
        "value": "key",
        "heads": 3,
        "pair_position": 5,
        "pool": "cls",
    },
    "shared, normalised": {"similarity": "shared", "diagonal": "normalised"},
    "cholesky, normalised, +Pos": {"similarity": "cholesky", "diagonal": "normalised", "pair_position": 4},
}


def config(**changes: Any) -> ModelConfig:
    """Return a small configuration with `changes`."""
    return ModelConfig(**(SMALL | changes))


def filled(module: nn.Module, seed: int, scale: float = 0.4) -> nn.Module:
    """Return `module` in float64, every weight and bias replaced by normal values of `scale`."""
    generator = torch.Generator().manual_seed(seed)
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def model(seed: int = 0, *, shape: InputShape = SHAPE, **changes: Any) -> nn.Module:
    """Return a small network in float64 with arbitrary weights."""
    return filled(build(config(**changes), shape), seed)


def text_shape(**changes: Any) -> InputShape:
    """Return the shape of a small causal text of ids, one score per token and word, with `changes`."""
    text: dict[str, Any] = {"tokens": 6, "features": 8, "outputs": 8, "inputs": "ids", "output": "token"}
    return InputShape(**(text | {"causal": True, "train_samples": 100} | changes))


TEXT = text_shape()
PAIR = text_shape(source_tokens=7, source_features=9, pad=0)
SET = InputShape(tokens=5, features=7, outputs=5, train_samples=100, output="set")


def ids(below: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Return ids from 1 to `below` - 1 of `shape`; none is the id 0 that fills up."""
    return torch.randint(1, below, shape, generator=torch.Generator().manual_seed(seed))


def attention_forms() -> list[tuple[str, str, int]]:
    """Return every (similarity, value, heads) that can be built, with one head and with two."""
    forms = []
    for similarity in get_args(Similarity):
        for value in get_args(Value):
            for heads in (1, 2):
                with suppress(ValidationError):
                    config(similarity=similarity, value=value, heads=heads)
                    forms.append((similarity, value, heads))
    return forms


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal float64 values of `shape`."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
