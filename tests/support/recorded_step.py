"""What a CUDA graph does, on the CPU: operations are recorded with their tensors, and replayed on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "_unique2")
"""Operations that wait for the device or read memory of the host; a CUDA graph cannot hold them."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorded: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        results = func(*args, **(kwargs or {}))
        self.recorded.append((func, args, kwargs or {}, [r for r in tree_leaves(results) if isinstance(r, Tensor)]))
        return results

    def replay(self) -> None:
        """Do all of it again; what an operation made is written to the memory that it had when it was recorded."""
        with torch.no_grad():
            for func, args, kwargs, results in self.recorded:
                if func.is_view:
                    continue  # the same memory as when it was recorded
                again = [r for r in tree_leaves(func(*args, **kwargs)) if isinstance(r, Tensor)]
                for old, new in zip(results, again, strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@dataclass
class FakeGraphs:
    """Stands in for `record_graph`: as there, recording leaves rows and generators as they were."""

    changed: Callable[[], Sequence[Tensor]]
    recorded: int = 0
    replayed: int = 0
    registered: list[Sequence[torch.Generator]] = field(default_factory=list)

    def __call__(self, run: Callable[[], None], generators: Sequence[torch.Generator]) -> Any:
        self.recorded += 1
        self.registered.append(list(generators))
        tensors = self.changed()
        before, drawn = [value.clone() for value in tensors], [each.get_state() for each in generators]
        operations = Operations()
        try:
            with operations:
                run()
        finally:
            for value, old in zip(tensors, before, strict=True):
                value.data.copy_(old)
            for each, state in zip(generators, drawn, strict=True):
                each.set_state(state)
        return Replay(self, operations)


@dataclass
class Replay:
    """One recording."""

    graphs: FakeGraphs
    operations: Operations

    def replay(self) -> None:
        """Do it once more."""
        self.graphs.replayed += 1
        self.operations.replay()
