"""What the tests of compiled kernels and of batched products share: gradients, and replicates in other company."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

REPLICAS = 8
FOLLOWED = 5  # the replicate that is compared, among eight, alone, in another slot, and among four
SLOTS = ([5], [5, 0], [1, 2, 5, 6])
ZERO = 1e-9  # some sums that are zero are not quite in float64 either


def with_gradients(compute: Callable[..., Tensor], given: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Return what `compute` makes of `given`, and the gradients of all that is given, for `grad` of the result."""
    leaves = [one.detach().requires_grad_() for one in given]
    result = compute(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves, grad)]


def require_near(found: Sequence[Tensor], wanted: Sequence[Tensor], relative: float, case: object = "") -> None:
    """Assert that tensors differ by at most `relative` times the largest number of the wanted one."""
    assert len(found) == len(wanted)
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.shape == other.shape, (case, place)
        error, size = float((one - other).abs().max()), float(other.abs().max())
        assert error <= relative * size + ZERO, f"{case}: tensor {place} is {error:.3g} off, and {size:.3g} large"


def require_same_in_any_slot(compute: Callable[..., Tensor], given: Sequence[Tensor], grad: Tensor) -> None:
    """Assert that a replicate of `given`, [8, ...] each, has equal results and gradients in any slot of 1, 2, 4 and 8."""
    together = with_gradients(compute, given, grad)
    for slots in SLOTS:
        found = with_gradients(compute, [one[slots] for one in given], grad[slots])
        at = slots.index(FOLLOWED)
        assert all(torch.equal(one[at], other[FOLLOWED]) for one, other in zip(found, together, strict=True)), slots
