"""Attention, layer normalisation and affine maps of R replicas on a CPU by compiled kernels, if there is a compiler."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ablate.engine.models.native import load_kernels

LANES = 16  # of kernels/vectors.h
SMALL = 2**16  # weights of a matrix: torch multiplies larger ones in blocks that fit the caches
NEAR = 1e-5  # relative; float32 rounds by 1e-7
_kept = threading.local()


def can_fuse(*given: Tensor) -> bool:
    """Return whether the kernels serve tensors [R, ...]: float32, on a CPU, in a process with one thread.

    Transforms of torch.func and torch.compile see torch's operations only.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    for one in given:
        if one.dtype != torch.float32 or not one.is_cpu:
            return False
    return torch.get_num_threads() == 1 and checked_kernels() is not None


def can_normalise(x: Tensor, scale: Tensor, shift: Tensor) -> bool:
    """Return whether the kernels normalise x [R, ..., N] with scale and shift [R, N]."""
    return scale.shape == shift.shape == (x.shape[0], x.shape[-1]) and can_fuse(x, scale, shift)


def can_multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether the kernels multiply x [R, ..., K] by weight [R, K, N] and add bias [R, N].

    Shapes that do not fit are left to torch, which says so, and so are products under autocast: in bfloat16 they are
    faster by torch, where the processor has instructions for them.
    """
    replicas, inner, outer = weight.shape
    if inner * outer > SMALL or x.shape[0] != replicas or x.shape[-1] != inner or torch.is_autocast_enabled("cpu"):
        return False
    return can_fuse(x, weight) if bias is None else bias.shape == (replicas, outer) and can_fuse(x, weight, bias)


@lru_cache(maxsize=1)
def checked_kernels() -> ctypes.CDLL | None:
    """Return the kernels, or None: there is no compiler, or what it made disagrees with torch."""
    kernels = load_kernels()
    return kernels if kernels is not None and _agrees() else None


def fused_attention(
    query: Tensor, key: Tensor, values: Tensor, mask: Tensor | None, heads: int, scale: float
) -> Tensor:
    """Return softmax(scale q k^T) v of every head, [R, B, T, N], of q [R, B, T, N] and k, v [R, B, S, N].

    `mask` is bool [T, S], True where query i may see key j.
    """
    hidden = None if mask is None else _hidden(mask.expand(query.shape[-2], key.shape[-2]))
    q, k, v = query.contiguous(), key.contiguous(), values.contiguous()
    if not torch.is_grad_enabled() or not (q.requires_grad or k.requires_grad or v.requires_grad):
        return _attend(q, k, v, hidden, heads, scale, keep=False)[0]
    averages: Tensor = _Attention.apply(q, k, v, hidden, heads, scale)
    return averages


def fused_norm(x: Tensor, scale: Tensor, shift: Tensor, *, epsilon: float) -> Tensor:
    """Return x [R, ..., N] after layer normalisation with scale and shift [R, N]."""
    normalised: Tensor = _Norm.apply(x, scale, shift, epsilon)
    return normalised


def fused_affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W + b [R, ..., N] of x [R, ..., K], weight [R, K, N] and bias [R, N]."""
    y: Tensor = _Affine.apply(x, weight, bias)
    return y


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, heads: int, scale: float) -> Tensor:
        averages, weights = _attend(q, k, v, hidden, heads, scale, keep=True)
        ctx.save_for_backward(q, k, v, hidden, weights)
        ctx.heads, ctx.scale = heads, scale
        return averages

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, hidden, weights = ctx.saved_tensors
        gradients = _attend_back(q, k, v, hidden, weights, grad.contiguous(), ctx.heads, ctx.scale)
        return *gradients, None, None, None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        x, scale = x.contiguous(), _packed(scale)
        out, means, inverses = _normalise(x, scale, _packed(shift), epsilon)
        ctx.save_for_backward(x, means, inverses, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, means, inverses, scale = ctx.saved_tensors
        return *_normalise_back(grad.contiguous(), x, means, inverses, scale), None


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, weight = x.contiguous(), _packed(weight)
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _multiply(x, weight, None if bias is None else _packed(bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad = ctx.saved_tensors, grad.contiguous()
        of_x = _multiply_back(grad, weight, x.shape) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            of_bias = grad.reshape(len(grad), -1, grad.shape[-1]).sum(1) if ctx.needs_input_grad[2] else None
            return of_x, None, of_bias
        return of_x, *_weigh_back(x, grad, weight, has_bias=ctx.has_bias)


def _call(name: str, tensors: Iterable[Tensor | None], *numbers: float) -> None:
    """Call a kernel with the addresses of tensors and with numbers."""
    getattr(load_kernels(), name)(*(None if one is None else one.data_ptr() for one in tensors), *numbers)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, heads: int, scale: float, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Return averages like q, and the weights [samples, blocks, heads, S, LANES]; without `keep` those of one head."""
    samples, queries, keys, width = _sizes(q, k, heads)
    weights = q.new_empty((samples, -(-queries // LANES), heads, keys, LANES) if keep else (keys, LANES))
    averages, scratch = torch.empty_like(q), _scratch(2 * heads * width)
    _call("attend", (q, k, v, hidden, weights, averages, scratch), samples, queries, keys, heads, width, keep, scale)
    return averages, weights


def _attend_back(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor | None,
    weights: Tensor,
    grad: Tensor,
    heads: int,
    scale: float,
) -> list[Tensor]:
    samples, queries, keys, width = _sizes(q, k, heads)
    found = [torch.empty_like(one) for one in (q, k, v)]
    scratch = _scratch((3 + 2 * -(-keys // LANES)) * heads * width + keys)
    given = (q, k, v, hidden, weights, grad, *found, scratch)
    _call("attend_back", given, samples, queries, keys, heads, width, scale)
    return found


def _scratch(vectors: int) -> Tensor:
    """Return memory for `vectors` of LANES numbers, which the next call of this thread uses again."""
    memory: Tensor | None = getattr(_kept, "memory", None)
    if memory is None or memory.numel() < vectors * LANES:
        memory = _kept.memory = torch.empty(vectors * LANES, dtype=torch.float32, device="cpu")
    return memory


def _packed(rows: Tensor) -> Tensor:
    """Return parameters [R, N] or [R, K, N] without gaps inside a replica; between replicas there may be gaps."""
    *_, step = rows.stride()
    packed = step == 1 and (rows.dim() == 2 or rows.stride(1) == rows.shape[2])
    return rows if packed else rows.contiguous()


def _sizes(q: Tensor, k: Tensor, heads: int) -> tuple[int, int, int, int]:
    """Return the numbers of samples, queries and keys, and the width of a head."""
    queries, width = q.shape[-2:]
    return q.numel() // max(queries * width, 1), queries, k.shape[-2], width // heads


def _hidden(mask: Tensor) -> Tensor:
    """Return which keys a mask [T, S] hides from each query, 1 or 0, as float32 [blocks of LANES queries, S, LANES]."""
    queries, keys = mask.shape
    hidden = torch.zeros(-(-queries // LANES) * LANES, keys, dtype=torch.float32, device=mask.device)
    hidden[:queries] = ~mask
    return hidden.view(-1, LANES, keys).mT.contiguous()


def _normalise(x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    replicas, width = scale.shape
    rows = x.numel() // scale.numel()
    out, means, inverses = torch.empty_like(x), x.new_empty(replicas, rows), x.new_empty(replicas, rows)
    given = (x, scale, shift, out, means, inverses, _scratch(width))
    _call("normalise", given, scale.stride(0), shift.stride(0), replicas, rows, width, epsilon)
    return out, means, inverses


def _normalise_back(grad: Tensor, x: Tensor, means: Tensor, inverses: Tensor, scale: Tensor) -> list[Tensor]:
    replicas, width = scale.shape
    found = [torch.empty_like(x), x.new_empty(scale.shape), x.new_empty(scale.shape)]
    given = (grad, x, means, inverses, scale, *found, _scratch(4 * width))
    _call("normalise_back", given, scale.stride(0), replicas, x.numel() // scale.numel(), width)
    return found


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    replicas, inner, outer = weight.shape
    y = x.new_empty(*x.shape[:-1], outer)
    scratch = _scratch((inner + 1) * -(-outer // LANES))
    strides = weight.stride(0), 0 if bias is None else bias.stride(0)
    _call("affine", (x, weight, bias, y, scratch), *strides, replicas, x.numel() // (replicas * inner), inner, outer)
    return y


def _multiply_back(grad: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
    replicas, inner, outer = weight.shape
    of_x, scratch = grad.new_empty(shape), _scratch((outer + 1) * -(-inner // LANES))
    rows = grad.numel() // (replicas * outer)
    _call("affine_back_x", (grad, weight, of_x, scratch), weight.stride(0), replicas, rows, inner, outer)
    return of_x


def _weigh_back(x: Tensor, grad: Tensor, weight: Tensor, *, has_bias: bool) -> tuple[Tensor, Tensor | None]:
    replicas, inner, outer = weight.shape
    of_weight, of_bias = x.new_empty(weight.shape), x.new_empty(replicas, outer) if has_bias else None
    _call("affine_back_w", (x, grad, of_weight, of_bias), replicas, x.numel() // (replicas * inner), inner, outer)
    return of_weight, of_bias


@torch.inference_mode(False)
@torch.no_grad()
def _agrees() -> bool:
    """Return whether kernels and torch agree on an attention, a norm and an affine map, and on their gradients."""
    tokens, heads, width = 19, 2, 10
    draw = partial(torch.randn, generator=torch.Generator("cpu").manual_seed(0), dtype=torch.float32, device="cpu")
    q, k, v, grad = draw(4, 3, tokens, heads * width).unbind()
    (shift, scale), weight = draw(2, 1, heads * width).unbind(), draw(1, heads * width, heads * width)
    seen = torch.ones(tokens, tokens, dtype=torch.bool, device="cpu").tril()
    hidden = _hidden(seen)
    averages, weights = _attend(q, k, v, hidden, heads, 0.3, keep=True)
    out, means, inverses = _normalise(q, scale, shift, 1e-5)
    found = [averages, *_attend_back(q, k, v, hidden, weights, grad, heads, 0.3)]
    found += [_attend(q, k, v, hidden, heads, 0.3, keep=False)[0]]
    found += [out, *_normalise_back(grad, q, means, inverses, scale)]
    found += [_multiply(q, weight, shift), _multiply_back(grad, weight, q.shape)]
    found += [one for one in _weigh_back(q, grad, weight, has_bias=True) if one is not None]
    with torch.enable_grad():
        q, k, v, scale, shift, weight = (one.double().requires_grad_() for one in (q, k, v, scale, shift, weight))
        split = [one.view(3, tokens, heads, width).transpose(1, 2) for one in (q, k, v)]
        similarity = (split[0] @ split[1].mT * 0.3).masked_fill(~seen, -torch.inf)
        mixed = (torch.softmax(similarity, -1) @ split[2]).transpose(1, 2).reshape(q.shape)
        wanted = [*_with_gradients(mixed, [q, k, v], grad), mixed]
        normed = F.layer_norm(q, (heads * width,), scale[0], shift[0], 1e-5)
        wanted += _with_gradients(normed, [q, scale, shift], grad)
        wanted += _with_gradients(q @ weight[0] + shift, [q, weight, shift], grad)
    pairs = zip(found, wanted, strict=True)
    return all(bool((a.view(b.shape) - b).abs().max() <= NEAR * b.abs().max()) for a, b in pairs)


def _with_gradients(out: Tensor, given: list[Tensor], grad: Tensor) -> list[Tensor]:
    """Return `out` and its gradients; for gradients of outputs torch.autograd.grad would import sympy, for .3 s."""
    return [out, *torch.autograd.grad((out * grad).sum(), given)]
