"""Builds a module so that each weight's first value depends on its path alone, by the module's own rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

M = TypeVar("M", bound=nn.Module)
UNNAMED = ""  # draws that become no parameter or buffer of the module


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every random operation; `before(number)` is called with its number before it runs."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before = before
        self.filled: list[Tensor | None] = []  # held, so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        self._before(len(self.filled))
        result = func(*args, **(kwargs or {}))
        self.filled.append(result if isinstance(result, Tensor) else None)
        return result


def build_keyed(make: Callable[[], M], number_of: Callable[[str], int]) -> M:
    """Return `make()` with every random draw seeded by `number_of` the path of the tensor that it fills.

    The module is made twice: first to learn which draw fills which parameter or buffer, then with these streams. A
    tensor that is drawn several times gets a stream for each draw. Draws that fill no tensor of the module, such as
    those of `torch.randn(n) * 0.02`, get one stream for each of them in their order. Torch's global generator is left
    as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number_of(UNNAMED))
        with _Draws(lambda number: None) as first:
            tried = make()
        keys = _keys(first.filled, tried)
        del tried, first

        def seed(number: int) -> None:
            torch.manual_seed(number_of(keys[number] if number < len(keys) else f"{UNNAMED}#{number}"))

        with _Draws(seed):
            return make()


def _keys(filled: list[Tensor | None], module: nn.Module) -> list[str]:
    """Return for each draw the path of its tensor and how often that was drawn before, as text."""
    named = [*module.named_parameters(), *module.named_buffers()]
    paths = {tensor.untyped_storage().data_ptr(): path for path, tensor in reversed(named)}
    counts: dict[str, int] = {}
    found = []
    for tensor in filled:
        path = UNNAMED if tensor is None else paths.get(tensor.untyped_storage().data_ptr(), UNNAMED)
        counts[path] = counts.get(path, 0) + 1
        found.append(f"{path}#{counts[path]}")
    return found


def count_parameters(module: nn.Module) -> int:
    """Return the number of trainable parameters; a shared one counts once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
