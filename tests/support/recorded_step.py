"""What a CUDA graph does, on the CPU: operations are recorded with their tensors, and replayed on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ablate.training import ReplicaGroup

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "_unique2")
"""Operations that wait for the device or read memory of the host; a CUDA graph cannot hold them."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorded: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.given: set[int] = set()  # memory that was there before
        self.made: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        results = func(*args, **(kwargs or {}))
        made = [r for r in tree_leaves(results) if isinstance(r, Tensor)]
        self.recorded.append((func, args, kwargs or {}, made))
        self.given |= {place(v) for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)} - self.made.keys()
        self.made |= {place(r): r for r in made if place(r) not in self.given}
        return results

    def spoil(self) -> None:
        """Fill what the operations made with NaN: a recording on a GPU has computed nothing before it is replayed."""
        for value in self.made.values():
            if value.is_floating_point():
                value.detach().fill_(torch.nan)

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


def place(value: Tensor) -> int:
    """Return where the memory of a tensor begins."""
    return value.untyped_storage().data_ptr()


@dataclass
class FakeGraphs:
    """Stands in for `record_graph`: as there, recording leaves rows and generators as they were."""

    group: ReplicaGroup
    recorded: int = 0
    replayed: int = 0

    def __call__(self, run: Callable[[], None]) -> Any:
        self.recorded += 1
        state, generators = self.group.state, self.group.generators
        tensors = [state.weights, state.first, state.second, state.step, state.alive]
        before, drawn = [value.clone() for value in tensors], [each.get_state() for each in generators]
        operations = Operations()
        try:
            with operations:
                run()
        finally:
            for value, old in zip(tensors, before, strict=True):
                value.data.copy_(old)
            for each, earlier in zip(generators, drawn, strict=True):
                each.set_state(earlier)
        operations.spoil()
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
