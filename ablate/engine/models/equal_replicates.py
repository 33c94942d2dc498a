"""Why a replicate's numbers do not depend on what trains beside it, and the code that sees to it.

The rule: on a CPU with one thread, a replicate of a group has the same numbers bit for bit alone, beside others and in
any place. Matrices of a batched product are computed one by one, so most of a step needs nothing more.

- CPU kernels round the end of a tensor by other instructions than its middle. A parameter therefore begins on a
  multiple of ALIGNMENT (`training.state.lay_out`), and an evaluation fills its last batch (`filled`). The batch size
  of training is the user's: the rule holds for multiples of 32, or of 16 where all widths are even.
- MKL chooses its instructions by the address of a result, unless it is told to round all alike (`round_alike`).
- torch multiplies a matrix by a vector in another way for one replicate than for several (`product`).
- torch's attention computes one sample and head after another on a CPU (`attention.attend_by_head`).
- Layer normalisation makes one pass per replicate (`layers.norm_by_replicate`). Dropout has one generator for each, and
  draws for the longest text that there may be (`layers.Dropout`). The factors of a step are computed for many steps at
  once (`training.optim.StepFactors`).
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

ALIGNMENT = 16  # elements: a parameter then has the same cache alignment in all replicates
WHOLE = 32  # samples: a replicate's values then fill whole vectors and cache lines, for any shape of a sample


def round_alike() -> None:
    """Ask MKL for numbers that do not depend on addresses, which it does where no product was computed before.

    Without it an AMD EPYC with AVX-512 rounds every second replicate in another way. Source:
    "Conditional Numerical Reproducibility" of the oneMKL developer guide.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def filled(index: Tensor) -> Tensor:
    """Return `index` [..., n] with its last entry repeated, so that n is a multiple of WHOLE."""
    return torch.cat([index, index[..., -1:].expand(*index.shape[:-1], -index.shape[-1] % WHOLE)], dim=-1)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x [R, M, K] W + b, of weight [R, K, N] and bias [R, N]; a product with a vector is computed twice."""
    if len(x) == 1 and 1 in (*x.shape[1:], weight.shape[2]):
        x, weight = torch.cat([x, x]), torch.cat([weight, weight])
        return product(x, weight, None if bias is None else torch.cat([bias, bias]))[:1]
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(-2), x, weight)
