"""What a CUDA graph does, on the CPU: operations are recorded with their tensors, and replayed on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "_unique2")
"""Operations that wait for the device or read memory of the host; a CUDA graph cannot hold them."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation with its arguments and results.

    As with a CUDA graph, what was there before is afterwards as it was, and what was made is not filled in yet.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorded: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.given: set[int] = set()  # memory that was there before
        self.made: dict[int, Tensor] = {}
        self._before: list[tuple[Tensor, Tensor]] = []
        self._drawn: list[tuple[Any, Tensor]] = []

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for value, old in reversed(self._before):
                value.copy_(old)
            for value in self.made.values() if problem[0] is None else ():
                if value.is_floating_point():
                    value.fill_(torch.nan)
        for generator, state in reversed(self._drawn):
            generator.set_state(state)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in WAITING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        self._keep(func, args, kwargs)
        results = func(*args, **kwargs)
        made = [r for r in tree_leaves(results) if isinstance(r, Tensor)]
        self.recorded.append((func, args, kwargs, made))
        self.given |= {place(v) for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)} - self.made.keys()
        self.made |= {place(r): r.detach() for r in made if place(r) not in self.given}
        return results

    def _keep(self, func: Any, args: Any, kwargs: Any) -> None:
        """Keep the tensors and generators that an operation is about to change, as they are."""
        for position, about in enumerate(func._schema.arguments):
            value = args[position] if position < len(args) else kwargs.get(about.name)
            if isinstance(value, torch._C.Generator):
                self._drawn.append((value, value.get_state()))
            written = about.alias_info is not None and about.alias_info.is_write
            for each in tree_leaves(value) if written else ():
                if isinstance(each, Tensor) and place(each) not in self.made:
                    self._before.append((each.detach(), each.detach().clone()))

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
    """Stands in for `record_graph`."""

    recorded: int = 0
    replayed: int = 0

    def __call__(self, run: Callable[[], None]) -> Any:
        self.recorded += 1
        operations = Operations()
        with operations, torch.compiler.set_stance("force_eager"):  # compiled code refuses to run in such a mode
            run()
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
