"""The form of a module's output: known for common layers, otherwise learnt from one call of a copy of the module."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ablate.base.errors import TrialError

LIKE_INPUT = {f"torch.nn.modules.{name}" for name in ("activation", "batchnorm", "dropout", "instancenorm")}
LIKE_INPUT |= {"torch.nn.modules.normalization", "torch.nn.modules.channelshuffle"}
NOT_LIKE_INPUT = (nn.MultiheadAttention, nn.GLU)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A tensor of an output: its shape and type."""

    shape: torch.Size
    dtype: torch.dtype


def keeps_shape(part: nn.Module) -> bool:
    """Return whether a module is known to return a tensor of its input's shape.

    A module of your own says so by an attribute `keeps_shape = True`.
    """
    if getattr(part, "keeps_shape", None) is True:
        return True
    return type(part).__module__ in LIKE_INPUT and not isinstance(part, NOT_LIKE_INPUT)


def known_shape(part: nn.Module, x: Tensor) -> torch.Size | None:
    """Return the shape of what `part` makes of `x`, or None if only a call tells it."""
    if keeps_shape(part):
        return x.shape
    kind = type(part)
    if kind is nn.Linear:
        return torch.Size((*x.shape[:-1], part.out_features))  # type: ignore[arg-type]
    if kind is nn.Embedding:
        return torch.Size((*x.shape, part.embedding_dim))  # type: ignore[arg-type]
    return None


def differing_shapes(part: nn.Module) -> tuple[str, str] | None:
    """Return the shapes of input and output where the settings of a common layer say that they differ, or None."""
    if isinstance(part, nn.Embedding | nn.EmbeddingBag):
        width = part.weight.shape[-1]
        return "[...]", f"[..., {width}]"
    if isinstance(part, nn.Linear):
        outputs, inputs = part.weight.shape
        return None if inputs == outputs else (f"[..., {inputs}]", f"[..., {outputs}]")
    if isinstance(part, CONVOLUTIONS):
        return _of_convolution(part)
    if isinstance(part, nn.RNNBase):
        width = (part.proj_size or part.hidden_size) * (2 if part.bidirectional else 1)
        return None if part.input_size == width else (f"[..., {part.input_size}]", f"[..., {width}]")
    return None


def is_shape_known(part: nn.Module) -> bool:
    """Return whether `differing_shapes` knows the answer without a call."""
    return keeps_shape(part) or isinstance(part, (nn.Linear, nn.RNNBase, nn.MultiheadAttention, *CONVOLUTIONS))


def _of_convolution(part: Any) -> tuple[str, str] | None:
    places = len(part.kernel_size)
    same = part.padding == "same" or all(
        step == 1 and part.padding != "valid" and 2 * pad == spread * (size - 1)
        for step, pad, spread, size in zip(
            part.stride,
            part.padding if isinstance(part.padding, tuple) else (0,) * places,
            part.dilation,
            part.kernel_size,
            strict=True,
        )
    )
    if part.in_channels == part.out_channels and same:
        return None
    size = ", ".join("LHWD"[0] if places == 1 else "DHW"[-places:][i] for i in range(places))
    after = size if same else ", ".join(f"{each}'" for each in size.split(", "))
    return f"[B, {part.in_channels}, {size}]", f"[B, {part.out_channels}, {after}]"


def mapped(value: Any, change: Callable[[Any], Any], other: Callable[[Any], Any]) -> Any:
    """Return a structure like `value`: tensors and leaves are changed by `change`, objects of other types by `other`.

    Structures are lists, tuples, dictionaries and dataclasses.
    """
    if isinstance(value, Tensor | Leaf):
        return change(value)
    if isinstance(value, VALUES):
        return value
    if isinstance(value, PackedSequence):
        return other(value)
    if isinstance(value, list | tuple):
        inside = [mapped(each, change, other) for each in value]
        return type(value)(*inside) if hasattr(value, "_fields") else type(value)(inside)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: mapped(getattr(value, name), change, other) for name in names})
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update({name: mapped(each, change, other) for name, each in value.items()})
        return made
    return other(value)


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors, or leaves, of a structure in order."""
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    mapped(value, note, lambda other: other)
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
    with torch.no_grad(), _unchanged_randomness(device):
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


@contextmanager
def _unchanged_randomness(device: torch.device) -> Iterator[None]:
    """Restore the global generators of Python, NumPy, torch and the device."""
    before = random.getstate(), np.random.get_state()
    on_cpu = device.type in ("cpu", "meta")
    with torch.random.fork_rng(devices=[] if on_cpu else [device], device_type="cuda" if on_cpu else device.type):
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
