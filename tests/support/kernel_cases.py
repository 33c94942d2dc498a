"""What the tests of compiled kernels share: faulty kernels, memory with an end, and replicates in other company."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import shutil
import subprocess
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.engine.models import fused, native

FOLLOWED = 5  # the replicate that is compared: among eight, alone, in another slot, and among four
SLOTS = ([5], [5, 0], [1, 2, 5, 6])

FAULTS = {
    "exponential": ("5.0000001201e-1f", "5.01e-1f"),
    "largest of a row": ("pick(most > s[j], most, s[j])", "pick(most < s[j], most, s[j])"),
    "gradient of similarities": ("(of_s[j] - sum) * scale", "of_s[j] * scale"),
    "gradient of keys": ("spread(kt + at, all, of_s, q", "spread(kt + at, all, w, q"),
    "deviation": ("squares = squares / (float)width + epsilon", "squares = squares / (float)width + 100 * epsilon"),
    "gradient of a norm": ("- d[c] * along", "- along"),
    "gradient of a norm's scale": ("along_scale[c] += g[c] * d[c]", "along_scale[c] += g[c]"),
    "bias": ("sum[g][c] = b[at + c]", "sum[g][c] = (vec){0}"),
    "gradient of a product": ("weight[k * outer + n]", "weight[n * outer + k]"),
}


@pytest.fixture
def kernels() -> ctypes.CDLL:
    """The kernels of this machine. Where it compiles them and does not accept them, they are wrong: no skip."""
    if native.load_kernels() is None:
        pytest.skip(f"there is no C compiler or no {native.NEEDED} here")
    found = fused.checked_kernels()
    assert found is not None, "what the compiler made of the kernels disagrees with torch"
    return found


def real_compiler() -> str:
    """Return the path of the C compiler; skip the test without one, or on a processor that has no kernels."""
    if native.NEEDED not in native.describe_processor().split():
        pytest.skip(f"this processor has no {native.NEEDED}, so it has no compiled kernels")
    found = shutil.which(os.environ.get(native.COMPILER, "cc"))
    if found is None:
        pytest.skip("there is no C compiler here")
    return found


def compiled(folder: Path, *, fault: str = "") -> Path:
    """Compile a copy of the kernels in which something is wrong, without optimisation, and return the library."""
    copy = shutil.copytree(Path(native.__file__).with_name("kernels"), folder / f"{fault or 'right'}")
    right, wrong = FAULTS[fault] if fault else ("", "")
    places = 0
    for path in copy.glob("*.c"):
        text = path.read_text()
        places += text.count(right) if fault else 1
        path.write_text(text.replace(right, wrong) if fault else text)
    assert places > 0, f"{fault}: the kernels have no {right}"
    library = copy / "kernels.so"
    code = sorted(map(str, copy.glob("*.c")))
    subprocess.run([real_compiler(), *native.FLAGS, "-O0", "-o", str(library), *code], check=True)
    return library


def opened(path: Path) -> ctypes.CDLL:
    """Load a library with the functions of the kernels."""
    found = ctypes.CDLL(str(path))
    for name, kinds in native.SIGNATURES.items():
        getattr(found, name).argtypes, getattr(found, name).restype = [native.KINDS[kind] for kind in kinds], None
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
    """Assert that tensors differ by at most `relative` times the largest number of the wanted one, or times one.

    What they were computed from is of order one, so a small number may be the difference of two that were rounded.
    """
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.shape == other.shape, (case, place)
        error, size = float((one - other).abs().max()), float(other.abs().max())
        assert error <= relative * max(size, 1), f"{case}: tensor {place} is {error:.3g} off, and {size:.3g} large"


def require_same_in_any_slot(compute: Callable[..., Tensor], given: Sequence[Tensor], grad: Tensor) -> None:
    """Assert that a replicate of `given`, [8, ...] each, has equal results and gradients in any slot of 1, 2, 4, 8."""
    together = with_gradients(compute, given, grad)
    for slots in SLOTS:
        found = with_gradients(compute, [one[slots] for one in given], grad[slots])
        at = slots.index(FOLLOWED)
        assert all(torch.equal(one[at], other[FOLLOWED]) for one, other in zip(found, together, strict=True)), slots


def fenced(like: Tensor, *, above: bool) -> Tensor:
    """Return a copy of `like` in memory that ends, or begins, at a page that can be neither read nor written."""
    size, page = like.numel() * like.element_size(), mmap.PAGESIZE
    whole = -(-size // page) * page
    memory = mmap.mmap(-1, whole + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fence, offset = (address + whole, whole - size) if above else (address, page)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0) == 0
    copied = torch.frombuffer(memory, dtype=like.dtype, count=like.numel(), offset=offset)
    return copied.view(like.shape).copy_(like)


def case_beyond_fences(
    compute: Callable[..., object], cases: Mapping[str, Sequence[Tensor]], *, above: bool
) -> str | None:
    """Return the first case in which `compute` touches a fence, or fails; its process ends there.

    What it is given, and all that the kernels allocate, is fenced; what they allocate is not a number at first.
    """
    begun = mmap.mmap(-1, mmap.PAGESIZE)  # shared with the other process
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        try:
            _fence_allocations(above=above)
            for place, given in enumerate(cases.values()):
                begun[:2] = place.to_bytes(2, "big")
                compute(*(fenced(one, above=above) for one in given))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return None if status == 0 else list(cases)[int.from_bytes(begun[:2], "big")]


def _fence_allocations(*, above: bool) -> None:
    plain = Tensor.new_empty

    def new_empty(like: Tensor, *shape: Any) -> Tensor:
        return fenced(plain(like, *shape).fill_(torch.nan), above=above)

    def empty_like(like: Tensor) -> Tensor:
        return new_empty(like, like.shape)

    def scratch(vectors: int) -> Tensor:
        return new_empty(torch.empty(0), vectors * fused.LANES)

    vars(torch)["empty_like"] = empty_like
    vars(fused)["_scratch"] = scratch
    type.__setattr__(Tensor, "new_empty", new_empty)
