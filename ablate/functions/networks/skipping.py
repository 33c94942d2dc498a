"""What takes the place of a part that is left out: its input, or zeros in the form of its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ablate.base.errors import TrialError
from ablate.functions.networks.outputs import VALUES, learnt_form, mapped, tensors_in
from ablate.functions.networks.watching import Replacements

FORMS = 256  # remembered for each part, one for each shape of its inputs
PLAIN = (bool, int, float, str, type(None), tuple, torch.dtype)  # attributes that a network may read beside the call


class PartReadError(TrialError, AttributeError):
    """The network reads an attribute of a part that is left out; an AttributeError for `hasattr` and `getattr`."""


class _Old:
    """The part that was left out; no module, so that it is not trained, kept or moved with the network."""

    def __init__(self, part: nn.Module) -> None:
        self.part = part

    def __deepcopy__(self, memo: object) -> _Old:
        return self


class Skip(nn.Module):
    """Returns its first tensor (`identity`) or zeros (`zero`) in the structure, shape and type of a part's output.

    The form of the output is learnt from one call of a copy of the part, for each shape of its inputs. Where the output
    has several tensors, `identity` returns the input as the first
    of them, and zeros for the others. Attributes of the part that are no tensors stay readable.
    """

    def __init__(self, old: nn.Module, action: Literal["identity", "zero"], path: str, record: Replacements) -> None:
        super().__init__()
        own = vars(self).keys() - {"training"}
        for name, value in vars(old).items():
            if isinstance(value, PLAIN) and name not in own:
                setattr(self, name, value)
        if isinstance(old, nn.MultiheadAttention):
            self.in_proj_bias = None  # torch's own transformer layers read it
        self._action, self._path, self._record, self._old = action, path, record, _Old(old)
        floating = (value for value in old.parameters() if value.is_floating_point())
        self._like = (next((value.detach().new_empty(0) for value in floating), torch.empty(0)),)  # the network's type
        self._forms: dict[Hashable, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """Return a child; raise PartReadError for what only the part itself has."""
        if name.startswith("__") or name in ("_parameters", "_buffers", "_modules") or "_path" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        for held in (self._parameters, self._buffers, self._modules):
            if name in held:
                return held[name]
        raise PartReadError(
            f"replace {self._path}: {self._action}: the network reads {self._path}.{name} instead of calling"
            f" {self._path}, so this part cannot be left out as a whole: name a part inside it, or a parameter of it"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Skip:
        """Follow a change of the network's type."""
        self._like = (fn(self._like[0]),)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what takes the place of the part's output; raise TrialError if `identity` cannot have its shape."""
        self._record.called.add(self._path)
        x = next(iter(tensors_in((args, kwargs))), None)
        if x is None:
            raise TrialError(f"{self._said} the part is called without a tensor")
        # torch.compile leaves this call as it is; a decorator would import torch._dynamo, which takes a second
        learn = self._learnt
        if torch.compiler.is_compiling():
            learn = torch.compiler.disable(learn)  # type: ignore[no-untyped-call]
        form = learn(args, kwargs)
        if self._action == "zero":
            return mapped(form, lambda leaf: x.new_zeros(leaf.shape, dtype=leaf.dtype))
        leaves = tensors_in(form)
        if not leaves or leaves[0].shape != x.shape:
            after = f"the output is {list(leaves[0].shape)}" if leaves else "the output has no tensor"
            raise TrialError(f"{self._said} its input is {list(x.shape)}, {after}: use zero, or a part of your own")
        return mapped(form, lambda leaf: x if leaf is leaves[0] else x.new_zeros(leaf.shape, dtype=leaf.dtype))

    @property
    def _said(self) -> str:
        return f"replace {self._path}: {self._action}:"

    def _learnt(self, args: Any, kwargs: Any) -> Any:
        """Return the form of the output for these inputs; each one of other shapes is learnt anew."""
        dtype = self._like[0].dtype
        key = _key((args, sorted(kwargs.items()))), self.training, dtype, _autocast()
        if key not in self._forms:
            if len(self._forms) == FORMS:
                self._forms.clear()
            try:
                form = learnt_form(self._old.part, (args, kwargs), dtype=dtype, training=self.training)
            except TrialError as error:
                raise TrialError(f"{self._said} {error}") from error
            except Exception as error:
                reason = " ".join(str(error).split())
                raise TrialError(f"{self._said} one call of the part, to learn its output, failed: {reason}") from error
            self._forms[key] = form
        return self._forms[key]


def _autocast() -> tuple[bool, bool]:
    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _key(value: Any) -> Any:
    """Return what the form of an output may depend on: shapes and types of tensors, other values as they are."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(_key(each) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(_key(getattr(value, field.name)) for field in dataclasses.fields(value))
    return value if isinstance(value, VALUES) else type(value)
