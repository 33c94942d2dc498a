"""What the tests of compiled kernels and of batched products share: faulty kernels, and replicates in other company."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ablate.models import fused, native

REPLICAS = 8
FOLLOWED = 5  # the replicate that is compared, among eight, alone, in another slot, and among four
SLOTS = ([5], [5, 0], [1, 2, 5, 6])
ZERO = 1e-9  # some sums that are zero are not quite in float64 either

FAULTS = {
    "exponential": ("5.0000001201e-1f", "5.01e-1f"),
    "largest of a row": ("pick(most > s[j], most, s[j])", "pick(most < s[j], most, s[j])"),
    "gradient of similarities": ("(of_s[j] - sum) * scale", "of_s[j] * scale"),
    "gradient of keys": ("spread(kt + at, all, of_s, q", "spread(kt + at, all, w, q"),
    "deviation": ("squares = squares / (float)width + epsilon", "squares = squares / (float)width + 100 * epsilon"),
    "gradient of a norm": ("- d[c] * along", "- along"),
    "gradient of a norm's scale": ("along_scale[c] += g[c] * d[c]", "along_scale[c] += g[c]"),
}


@pytest.fixture
def kernels() -> ctypes.CDLL:
    """The kernels of this machine. Where it compiles them and does not accept them, they are wrong: no skip."""
    if native.load_kernels() is None:
        pytest.skip("there is no C compiler here")
    found = fused.checked_kernels()
    assert found is not None, "what the compiler made of kernels.c disagrees with torch"
    return found


def real_compiler() -> str:
    """Return the path of the C compiler, or skip the test."""
    found = shutil.which(os.environ.get(native.COMPILER, "cc"))
    if found is None:
        pytest.skip("there is no C compiler here")
    return found


def compiled(folder: Path, *, fault: str = "") -> Path:
    """Compile a copy of kernels.c in which something is wrong, quickly, and return the library."""
    text = Path(native.__file__).with_name("kernels.c").read_text()
    if fault:
        right, wrong = FAULTS[fault]
        assert text.count(right) == 1, fault
        text = text.replace(right, wrong)
    path = folder / f"{fault or 'right'}.so"
    path.write_bytes(native._compile(real_compiler(), f'#pragma GCC optimize "O0"\n{text}'.encode()))
    return path


def opened(path: Path) -> ctypes.CDLL:
    """Load a library with the functions of kernels.c."""
    found = ctypes.CDLL(str(path))
    for name, arguments in native.SIGNATURES.items():
        getattr(found, name).argtypes, getattr(found, name).restype = arguments, None
    return found


def pretend_compiled(found: ctypes.CDLL | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler have made `found`, which is then checked."""
    monkeypatch.setattr(fused, "load_kernels", lambda: found)
    monkeypatch.setattr(fused, "checked_kernels", lru_cache(fused.checked_kernels.__wrapped__))


def with_gradients(compute: Callable[..., Tensor], given: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Return what `compute` makes of `given`, and the gradients of all that is given, for `grad` of the result."""
    leaves = [one.detach().requires_grad_() for one in given]
    result = compute(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves, grad)]


def require_near(found: Sequence[Tensor], wanted: Sequence[Tensor], relative: float, case: object = "") -> None:
    """Assert that tensors differ by at most `relative` times the largest number of the wanted one."""
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
