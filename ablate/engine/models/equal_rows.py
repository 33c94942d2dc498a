"""Why a replicate's numbers do not depend on what trains beside it, and the code that sees to it.

The rule: on a CPU with one thread, a row of a group (a replicate) has the same numbers bit for bit alone, beside other
rows and in any place. Matrices of a batched product are computed one by one, so most of a step needs nothing more.

- CPU kernels round the end of a tensor by other instructions than its middle. A parameter therefore begins on a
  multiple of ALIGNMENT in each row (`training.state.lay_out`), and an evaluation fills its last batch (`filled`). The
  batch size of training is the user's: the rule holds for multiples of 32, or of 16 where all widths are even.
- Intel's MKL chooses its instructions by the address of a result, unless it is told to round all alike
  (`round_alike`).
- torch multiplies a matrix by a vector in another way for one row than for several (`product`).
- torch's attention computes one sample and head after another on a CPU (`attention.attend_by_head`).
- Layer normalisation makes one pass per row (`layers.norm_by_replicate`). Dropout has one generator per row
  (`layers.Dropout`).
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

ALIGNMENT = 16  # elements: a parameter then has the same cache alignment in every row
WHOLE = 32  # samples: a row's values then fill whole vectors and cache lines, for any shape of a sample


def round_alike() -> None:
    """Ask MKL for numbers that do not depend on addresses, which it does where no product was computed before.

    Without it an AMD EPYC with AVX-512 rounds every second replicate in another way. Source:
    "Conditional Numerical Reproducibility" of the oneMKL developer guide.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def filled(index: Tensor) -> Tensor:
    """Return `index` [..., n] with its last entry repeated, so that n is a multiple of WHOLE."""
    return torch.cat([index, index[..., -1:].expand(*index.shape[:-1], -index.shape[-1] % WHOLE)], dim=-1)


def product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows [R, M, K] W + b, of weight [R, K, N] and bias [R, N]; a product with a vector is computed twice."""
    if len(rows) == 1 and 1 in (*rows.shape[1:], weight.shape[2]):
        rows, weight = torch.cat([rows, rows]), torch.cat([weight, weight])
        return product(rows, weight, None if bias is None else torch.cat([bias, bias]))[:1]
    return torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias.unsqueeze(-2), rows, weight)
