"""The model variants that the tests of models go through, and modules filled with arbitrary weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ablate.config import InputShape, ModelConfig
from ablate.models import build

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


def model(seed: int = 0, **changes: Any) -> nn.Module:
    """Return a small transformer in float64 with arbitrary weights."""
    return filled(build(config(**changes), SHAPE), seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal float64 values of `shape`."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
