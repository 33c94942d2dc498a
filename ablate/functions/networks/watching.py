"""What was done to the parts of one network, and whether its training agrees: no part that is out still computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ablate.base.errors import TrialError


class Replacements:
    """The parts of one network that were replaced, by path, and which of them were called since.

    A copy of the network shares the record of its original, because hooks are copied with the modules that have them.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.called: set[str] = set()  # paths whose replacement was called
        self.alive: dict[str, str] = {}  # paths of parts that are out and were called all the same, and what they are
        self.awaited: dict[str, str] = {}  # path and action of each replacement that is to be called
        self.needs_shape = False  # whether a call must tell if `identity` has the shape of a part's output
        self.zeroed: list[str] = []  # paths of parameters and buffers
        self.frozen: list[str] = []  # paths of parameters
        self._handles: list[RemovableHandle] = []

    def __deepcopy__(self, memo: object) -> Replacements:
        """Return itself: what a copy of the network calls counts for its original."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle an empty record: another process does not report to this one."""
        return Replacements, (nn.Identity(),)

    def watch_removed(self, path: str, part: nn.Module) -> None:
        """Refuse every call of a part that is not in the network any more."""
        part.register_forward_pre_hook(_Removed(self, path))

    def await_call(self, path: str, action: str, parts: Iterable[nn.Module]) -> None:
        """Expect a call of what takes the place of `path`: of one of `parts`, or of one that notes it itself."""
        self.awaited[path] = action
        for each in parts:
            self._handles.append(each.register_forward_pre_hook(_Called(self, path)))

    def forget_hooks(self) -> None:
        """Remove the hooks on modules of the network; those on parts that are out stay, and cost nothing."""
        while self._handles:
            self._handles.pop().remove()


class _Called:
    """A hook that notes a call; an object of its own, so that a network with it can be pickled and copied."""

    def __init__(self, record: Replacements, path: str) -> None:
        self.record, self.path = record, path

    def __call__(self, module: nn.Module, _: object) -> None:
        self.record.called.add(self.path)


class _Removed(_Called):
    """A hook that ends the call of a part that is out."""

    def __call__(self, module: nn.Module, _: object) -> None:
        self.record.alive[self.path] = type(module).__name__
        raise TrialError(_still_called(self.path, type(module).__name__))


def check_parts(records: Sequence[Replacements]) -> None:
    """Raise TrialError if training does not agree with what was replaced in the networks of one trial.

    A part that is out must not have been called, and what takes its place must have been, in one of the networks at
    least. A parameter that was zeroed must be zero, a frozen one must not be trained. The modules are watched until
    the first call that finds no fault.
    """
    for record in records:
        for path, kind in record.alive.items():
            raise TrialError(_still_called(path, kind))
        for path, rule in _changed(record):
            raise TrialError(f"replace {path}: {rule}")
    called = {path for record in records for path in record.called}
    for path, action in (item for record in records for item in record.awaited.items()):
        if path not in called:
            raise TrialError(
                f"replace {path}: {action}: nothing has called what takes its place before the first report, so the"
                " network computes without this part in any case, or reaches it in another way than by calling"
                f" {path}: see `ablate parts`"
            )
    for record in records:
        record.awaited.clear()
        record.forget_hooks()


def _still_called(path: str, kind: str) -> str:
    return (
        f"replace {path}: the network still calls this part ({kind}): it holds it by another way than its path, such as"
        " a function that was made in __init__, or a list. Replace the modules inside it that are found by path, or"
        " change the network to call it by its name"
    )


def _changed(record: Replacements) -> Iterator[tuple[str, str]]:
    for path in record.zeroed:
        value = _tensor(record.network, path)
        if value is not None and not value.is_meta and bool(value.any()):
            yield path, "it is not zero any more: code after run.build has set it. Leave it as run.build returns it"
    for path in record.frozen:
        value = _tensor(record.network, path)
        if value is not None and value.requires_grad:
            yield path, "it is trained: code after run.build has set requires_grad. Leave it as run.build returns it"


def _tensor(network: nn.Module, path: str) -> Tensor | None:
    before, _, name = path.rpartition(".")
    try:
        found = getattr(network.get_submodule(before), name, None)
    except AttributeError:  # the code has changed the network since
        return None
    return found if isinstance(found, Tensor) else None
