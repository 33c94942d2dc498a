"""Layers that work on one set of weights or on those of R replicates at once by batched matmul."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.base.errors import RequestError
from ablate.engine.models.equal_replicates import product

Draw = Callable[[str, tuple[int, ...]], Tensor]
"""Returns standard normal values for a parameter's path and shape; the same path gives the same values."""

NORM_EPSILON = 1e-5
BRANCH_GAIN = 0.4  # keeps the initial outputs of attention and MLP smaller than the tokens that they are added to
HEAD_GAIN = 0.1  # near-uniform initial scores at any depth
TILE, SUMS, SUMMED = 128, 96, 256  # of a product on a GPU; sums side by side at most; tokens of each at least
TOKEN_HEAD_GAIN = 0.05  # the same for scores per token, where no mean over tokens reduces the variance


def under(draw: Draw, prefix: str) -> Draw:
    """Return `draw` for the paths below `prefix`."""
    return lambda path, shape: draw(f"{prefix}.{path}", shape)


def add_prefix(prefix: str, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return `values` with `prefix.` prepended to every name."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


@torch.no_grad()
def start(module: nn.Module, initial: Callable[[Draw], dict[str, Tensor]]) -> None:
    """Set the initial values of `module` from torch's global generator; do nothing on the meta device."""
    if next(module.parameters()).is_meta:
        return
    values = initial(lambda _, shape: torch.randn(shape, dtype=torch.float64))
    for name, parameter in module.named_parameters():
        parameter.copy_(values[name])


def unit_gain(draw: Draw, path: str, inputs: int, outputs: int) -> Tensor:
    """Draw a matrix [inputs, outputs] that keeps the mean square of a vector: variance 1 / inputs."""
    return draw(path, (inputs, outputs)) / math.sqrt(inputs)


def shifted(x: Tensor, bias: Tensor | None) -> Tensor:
    """Return x [*R, B, T, N] plus a bias [N] or [R, N], if there is one."""
    if bias is None:
        return x
    return x + (bias if bias.dim() == 1 else bias[:, None, None, :])


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W + b [R, ..., N] of x [R, ..., K], weight [R, K, N] and bias [R, N]."""
    apply = _product_on_gpu if x.device.type == "cuda" else product
    return apply(x.reshape(weight.shape[0], -1, weight.shape[1]), weight, bias).view(*x.shape[:-1], weight.shape[2])


def _product_on_gpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x [R, M, K] W + b, cut into parts where R is small, W too, and a gradient follows.

    The gradient of a weight sums over all M tokens of a batch, and cuBLAS computes each tile of a batch of matrices on
    one multiprocessor. In 16 parts four replicates train 2.2 times as fast on an H200. The bias is added by itself:
    `baddbmm` first copies it to the whole result.
    """
    count, tokens, inner = x.shape
    sums, parts = count * -(-inner // TILE) * -(-weight.shape[2] // TILE), 1
    while count > 1 and 2 * parts * sums <= SUMS and tokens % (2 * parts) == 0 and tokens // parts > SUMMED:
        parts *= 2
    if parts == 1 or not torch.is_grad_enabled():
        y = torch.bmm(x, weight)
    else:
        copies = weight[:, None].expand(-1, parts, -1, -1).flatten(0, 1)
        y = torch.bmm(x.reshape(count * parts, tokens // parts, -1), copies).view(count, tokens, -1)
    return y if bias is None else y + bias.unsqueeze(-2).to(y.dtype)


class Projection(nn.Module):
    """The affine map x W + b, with W stored as in the papers: rows are inputs, columns are outputs.

    Shapes: x [*R, B, T, inputs] or [*R, B, inputs], W [*R, inputs, outputs], b [*R, outputs].
    """

    bias: nn.Parameter | None

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.register_parameter("bias", nn.Parameter(torch.empty(outputs)) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        """Return x W + b."""
        weight, bias = self.weight, self.bias
        if weight.dim() == 2:
            return F.linear(x, weight.mT, bias)
        return affine(x, weight, bias)

    def initial(self, draw: Draw, *, gain: float = 1.0) -> dict[str, Tensor]:
        """Return initial values: `gain` times a unit-gain matrix, and a bias of zero."""
        values = {"weight": gain * unit_gain(draw, "weight", *self.weight.shape)}
        return values | self.initial_bias()

    def initial_bias(self) -> dict[str, Tensor]:
        """Return the bias, if there is one, at zero."""
        return {} if self.bias is None else {"bias": torch.zeros(self.bias.shape)}


class LayerNorm(nn.Module):
    """Layer normalisation with scale and shift.

    Shapes: x [*R, B, T, N], scale and shift [*R, N].
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised x, scaled and shifted."""
        if self.weight.dim() == 1:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, NORM_EPSILON)
        apply = norm_by_replicate if x.device.type == "cpu" else norm_at_once
        return apply(x, self.weight, self.bias)

    def initial(self) -> dict[str, Tensor]:
        """Return initial values: scale one, shift zero."""
        return {"weight": torch.ones(self.weight.shape), "bias": torch.zeros(self.bias.shape)}


def widen(x: Tensor) -> Tensor:
    """Return `x` in float32 if it has half precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def softmax(x: Tensor) -> Tensor:
    """Return the softmax over the last axis in the type of `x`, computed in float32 if that is half precision.

    CUDA's autocast computes it in float32 too. On a CPU torch's kernels for bfloat16 take up to nine times as long.
    """
    return torch.softmax(widen(x), dim=-1).to(x.dtype)


def norm_by_replicate(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Normalise x [R, B, T, N] by one pass per replicate, in float32 if x has half precision.

    On a CPU, one pass per replicate takes a quarter less time than one for all, and kernels for bfloat16 take two to
    three times as long as those for float32.
    """
    wide, scale, shift = widen(x), widen(scale), widen(shift)
    if len(x) == 1:
        first = F.layer_norm(wide.squeeze(0), x.shape[-1:], scale.squeeze(0), shift.squeeze(0), NORM_EPSILON)
        return first.unsqueeze(0).to(x.dtype)
    each = zip(wide.unbind(), scale.unbind(), shift.unbind(), strict=True)
    return torch.stack([F.layer_norm(one, one.shape[-1:], w, b, NORM_EPSILON) for one, w, b in each]).to(x.dtype)


def norm_at_once(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Normalise x [R, B, T, N] by one kernel for all replicates, then scale and shift."""
    normalised = F.layer_norm(x, x.shape[-1:], eps=NORM_EPSILON)
    return torch.addcmul(shift[:, None, None, :], normalised, scale[:, None, None, :])


class Dropout(nn.Module):
    """Sets a share `p` of values to zero in training and divides the others by 1 - p; the identity in evaluation.

    Shapes: x [*R, B, T, N] to the same. With `generators`, one per replicate, each of x [R, B, T, N] draws from its own
    generator, always for the maximum number of `tokens` (`equal_replicates`). Otherwise torch's global generator draws.
    Source: Srivastava et al. (2014).
    """

    generators: Sequence[torch.Generator] | None

    def __init__(self, p: float, *, tokens: int = 1) -> None:
        super().__init__()
        self.p, self.tokens, self.generators = p, tokens, None

    def forward(self, x: Tensor) -> Tensor:
        """Return x after dropout."""
        if not self.training or self.p == 0:
            return x
        if self.generators is None:
            return F.dropout(x, self.p)
        return x * self._kept(x, self.generators).to(x.dtype).div_(1 - self.p)

    def _kept(self, x: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return a bool mask of the values of x that are kept.

        Each value uses 16 random bits, and one draw serves four values. On a CPU this takes a fifth of the time of
        Bernoulli draws. p is met to 2^-17.
        """
        if len(generators) != len(x):
            raise RequestError(f"Dropout.generators has {len(generators)} generators: x has {len(x)} replicates")
        shape = (*x.shape[1:-2], max(self.tokens, x.shape[-2]), x.shape[-1])
        values = math.prod(shape)
        bits = torch.empty(len(x), -(-values // 4), dtype=torch.int64, device=x.device)
        for drawn, generator in zip(bits.unbind(), generators, strict=True):
            drawn.random_(-(2**63), None, generator=generator)
        drawn = bits.view(torch.int16)[:, :values].view(len(x), *shape)[..., : x.shape[-2], :]
        return drawn >= round(self.p * 2**16) - 2**15


class Triangle(nn.Module):
    """The N(N+1)/2 free entries of a triangular or symmetric matrix, stored row by row of the lower triangle.

    Shapes: weight [*R, N(N+1)/2]; both forms return [*R, N, N].
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(width * (width + 1) // 2))
        row, column = torch.arange(width)[:, None], torch.arange(width)[None, :]
        low, high = torch.minimum(row, column), torch.maximum(row, column)
        self.register_buffer("entry", (high * (high + 1) // 2 + low).flatten(), persistent=False)

    def symmetric(self) -> Tensor:
        """Return the matrix with w_ij = w_ji (paper A, section 5)."""
        full = self.weight.index_select(-1, self.get_buffer("entry"))
        return full.view(*self.weight.shape[:-1], self.width, self.width)

    def lower(self) -> Tensor:
        """Return the lower triangular matrix T (paper A, Eq. 11)."""
        return self.symmetric().tril()

    def entries(self, matrix: Tensor) -> Tensor:
        """Return the entries of `matrix` [N, N] on and below its diagonal, in the order of `weight`."""
        row, column = torch.tril_indices(self.width, self.width, device=matrix.device)
        return matrix[row, column]
