"""The form of a module's output, learnt from one call of a copy of the module."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from ablate.base.errors import TrialError
from ablate.functions.keeping import unchanged_randomness

VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A tensor of an output: its shape and type."""

    shape: torch.Size
    dtype: torch.dtype


def mapped(value: Any, change: Callable[[Any], Any], other: Callable[[Any], Any] = lambda found: found) -> Any:
    """Return a structure like `value`: tensors and leaves are changed by `change`, objects of other types by `other`.

    Structures are those of torch's pytrees (lists, tuples, dictionaries, and what a library has registered), subclasses
    of lists and dictionaries, and dataclasses.
    """

    def one(found: Any) -> Any:
        if isinstance(found, Tensor | Leaf):
            return change(found)
        if dataclasses.is_dataclass(found) and not isinstance(found, type):
            names = [field.name for field in dataclasses.fields(found) if field.init]
            return dataclasses.replace(found, **{name: mapped(getattr(found, name), change, other) for name in names})
        if isinstance(found, dict):
            made = copy.copy(found)
            made.update({name: mapped(each, change, other) for name, each in found.items()})
            return made
        if isinstance(found, list):
            return type(found)(mapped(each, change, other) for each in found)
        return found if isinstance(found, VALUES) else other(found)

    return pytree.tree_map(one, value, is_leaf=lambda found: isinstance(found, PackedSequence))


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors, or leaves, of a structure in order."""
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    mapped(value, note)
    return found


def learnt_form(part: nn.Module, given: Any, *, dtype: torch.dtype, training: bool) -> Any:
    """Return the output of one call of a copy of `part`, with a Leaf for each tensor.

    `given` is a pair (arguments, named arguments) and `dtype` the type of the network's weights. Neither the part, its
    buffers, its inputs nor a random state changes. Under a transform of torch.func the inputs are zeros, and the copy
    is in evaluation mode. Raises TrialError for an output that has no such form.
    """
    tensors = tensors_in(given)
    transformed = any(torch._C._functorch.is_functorch_wrapped_tensor(each) for each in tensors)

    def own(tensor: Tensor) -> Tensor:
        if transformed:
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return tensor.detach().clone()

    args, kwargs = mapped(given, own, _copied)
    device = tensors[0].device
    made = _copy_of(part).to(device=device, dtype=dtype).train(training and not transformed)
    with torch.no_grad(), unchanged_randomness():
        output = made(*args, **kwargs)
    return mapped(output, lambda tensor: Leaf(shape=tensor.shape, dtype=tensor.dtype), _refused)


def _refused(value: object) -> Any:
    raise TrialError(f"it returns a {type(value).__name__}, which is no tensor and no list, tuple, dict or dataclass")


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # an object of the user's that cannot be copied is called as it is
        return value


def _copy_of(part: nn.Module) -> nn.Module:
    """Return a copy without hooks; tensors that torch cannot copy, those of weight_norm for instance, are detached."""
    memo: dict[int, Any] = {}
    for module in part.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    made = copy.deepcopy(part, memo)
    for module in made.modules():
        for name in HOOKS:
            getattr(module, name).clear()
    return made
