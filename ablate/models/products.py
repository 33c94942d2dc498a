"""Affine maps of R replicas at once: batched products, on AMD's processors by oneDNN where they are large."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ablate.models.native import describe_processor

LARGE = 2**21  # multiplications for one replica, from which the longer call of oneDNN pays
NEAR = 1e-5  # of the largest sum: float32 is within it, numbers rounded to bfloat16 are 100 times further away


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W + b [R, M, N] of x [R, M, K], weight [R, K, N] and bias [R, N].

    A replica's result is equal to the last bit beside any number of others.
    """
    if _is_large(x, weight) and has_exact_onednn():
        y: Tensor = _OneDnnAffine.apply(x, weight, bias)
        return y
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(-2), x, weight)


@lru_cache(maxsize=1)
def has_exact_onednn() -> bool:
    """Return whether oneDNN computes float32 products here in full precision, and in half the time of MKL.

    On AMD's processors MKL takes instructions for vectors of 8 numbers, and oneDNN those for 16. torch calls oneDNN for
    float32 only where bfloat16 is allowed in its place; oneDNN makes use of that only on processors with AMX. A product
    is compared with one in float64, so that another version of torch or oneDNN cannot change the precision unseen.
    """
    if not hasattr(torch.backends.mkldnn, "matmul") or not torch.backends.mkldnn.is_available():
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or torch.cpu._is_amx_tile_supported():
        return False
    if "AuthenticAMD" not in describe_processor():
        return False
    left, right = (torch.linspace(-1, 1, 2 * 96 * 96, dtype=torch.float64).sin().view(2, 96, 96) for _ in range(2))
    with _onednn():
        found = torch.bmm(left.float(), right.float())
    wanted = torch.bmm(left, right)
    return bool((found - wanted).abs().max() <= NEAR * wanted.abs().max())


def _is_large(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.shape[1] * weight.shape[1] * weight.shape[2] >= LARGE
        and not torch.is_autocast_enabled("cpu")
    )


@contextmanager
def _onednn() -> Iterator[None]:
    """Let torch call oneDNN for float32 products inside the block."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


class _OneDnnAffine(torch.autograd.Function):
    """`affine` by oneDNN; the gradients too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        with _onednn():
            return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(-2), x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, _ = ctx.needs_input_grad
        with _onednn():
            of_x = torch.bmm(grad, weight.mT) if needs_x else None
            of_weight = torch.bmm(x.mT, grad) if needs_weight else None
        return of_x, of_weight, grad.sum(1) if ctx.has_bias else None
