"""Counts the bytes that the operations of a step read and write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NOTHING_WRITTEN = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}


class Traffic(TorchDispatchMode):
    """Adds up, over all operations inside, the bytes of the tensors that each reads and writes.

    A view moves nothing. An operation in place reads and writes its tensor, one with `out=` only writes it. A tensor
    that is broadcast counts once. What a cache serves is counted like what memory serves, so this is the traffic
    between kernels: a fused kernel would have less.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count its bytes."""
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if not _is_view(func) and func.overloadpacket._qualified_op_name not in NOTHING_WRITTEN:
            only_written = {id(kwargs[name]) for name in ("out",) if name in kwargs}
            read = [each for each in _tensors((args, kwargs)) if id(each) not in only_written]
            self.bytes += sum(map(_bytes, [*read, *_tensors(found)]))
        return found


def _is_view(func: Any) -> bool:
    """Return whether the operation returns a part of what it was given, unchanged."""
    aliases = [each.alias_info for each in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _tensors(values: Any) -> Iterator[Tensor]:
    yield from (each for each in tree_leaves(values) if isinstance(each, Tensor))


def _bytes(value: Tensor) -> int:
    """Return the bytes of a tensor's distinct elements."""
    distinct = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        distinct *= size if stride else min(size, 1)
    return distinct * value.element_size()
