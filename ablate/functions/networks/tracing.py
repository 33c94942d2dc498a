"""One call of a network, and what each of its modules took and returned in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ablate.functions.networks.outputs import mapped, tensors_in


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """The shapes of a module's first input and of its first output in its first call; None where there is no tensor."""

    input: tuple[int, ...] | None
    output: tuple[int, ...] | None


@dataclass(kw_only=True)
class Trace:
    """The modules that were called, and what the network itself was called with; `ended` once its call is over."""

    called: dict[nn.Module, Shapes] = field(default_factory=dict)
    given: tuple[Any, Any] | None = None
    ended: bool = False


@contextmanager
def traced(network: nn.Module, *, end: BaseException | None = None) -> Iterator[Trace]:
    """Note the next call of `network`, which then raises `end`; a network on the meta device takes what it is given."""
    trace = Trace()

    def begin(module: nn.Module, args: Any, kwargs: Any) -> Any:
        trace.given = args, kwargs
        if any(value.is_meta for value in module.parameters()):
            trace.given = mapped(trace.given, lambda tensor: tensor.to("meta"))
        return trace.given

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        trace.called.setdefault(module, Shapes(input=_first((args, kwargs)), output=_first(output)))

    def leave(*_: object) -> None:
        trace.ended = True
        if end is not None:
            raise end

    handles = [network.register_forward_pre_hook(begin, with_kwargs=True)]
    handles += [part.register_forward_hook(note, with_kwargs=True) for part in network.modules()]
    handles.append(network.register_forward_hook(leave))
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


def _first(value: Any) -> tuple[int, ...] | None:
    found = next((each for each in tensors_in(value) if isinstance(each, Tensor)), None)
    return None if found is None else tuple(found.shape)
