"""Replaces parts of a built network by module path: `replace:` in a study file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ablate.errors import NAMES_SHOWN, TrialError, did_you_mean
from ablate.registry import Registry

PARTS = Registry("part", {})
SHARE, REMOVE = "share", "remove"


class Skip(nn.Module):
    """Returns its first input, or zeros of its shape, in place of a module; further arguments are not used.

    In place of `nn.MultiheadAttention` it returns a pair with None for the weights.
    """

    def __init__(self, old: nn.Module, *, zero: bool) -> None:
        super().__init__()
        self.zero, self.pair = zero, isinstance(old, nn.MultiheadAttention)
        if isinstance(old, nn.MultiheadAttention):
            self.batch_first = old.batch_first  # torch's own transformer layers read both
            self.in_proj_bias = None

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor | tuple[Tensor, None]:
        """Return x or zeros, alone or with None."""
        result = torch.zeros_like(x) if self.zero else x
        return (result, None) if self.pair else result


def replace_parts(module: nn.Module, replacements: Mapping[str, Any]) -> None:
    """Change `module` in place: each pattern of module paths gets its action.

    A pattern is a path whose steps may hold `*`, which stands for one step or a part of one. Actions: `identity`
    (return the input), `zero` (return zeros: a branch that is added is gone), `freeze` (do not train), `remove` (out of
    a Sequential, ModuleList or ModuleDict), `{share: PATH}` (use the module at PATH), or an import path whose object is
    called with the module and returns another. Raises TrialError for a pattern that matches nothing, with the paths
    that exist, and for an action that is not possible there.
    """
    found = [(path, action) for pattern, action in replacements.items() for path in _found(module, pattern)]
    places = [(*_place(module, path), path, action) for path, action in found]  # before anything moves
    for parent, name, path, action in places:
        if action != REMOVE:
            _apply(module, parent, name, path, action)
    doomed = [(parent, parent._modules[name], path) for parent, name, path, action in places if action == REMOVE]
    for parent, part, path in doomed:
        _remove(parent, part, path)
    if places:
        _leave_fast_paths(module)


def _leave_fast_paths(module: nn.Module) -> None:
    """Let torch's transformer layers call their parts in evaluation too, instead of reading the weights of each."""
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0


def _found(module: nn.Module, pattern: str) -> list[str]:
    """Return the paths that match; raise TrialError with those that exist if none does."""
    found = list(_matching(module, pattern))
    if not found:
        raise TrialError(f"replace: no module has the path {pattern!r}. {did_you_mean(pattern, _paths(module))}")
    return found


def _paths(module: nn.Module) -> list[str]:
    """Return the paths of the modules inside; of a large network one pattern for those that differ in numbers."""
    known = [path for path, _ in module.named_modules() if path]
    return known if len(known) <= NAMES_SHOWN else list(dict.fromkeys(re.sub(r"[0-9]+", "*", path) for path in known))


def _place(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    before, _, name = path.rpartition(".")
    return module.get_submodule(before), name


def _matching(module: nn.Module, pattern: str) -> Iterator[str]:
    steps = pattern.split(".")
    for path, _ in module.named_modules(remove_duplicate=False):
        own = path.split(".")
        if path and len(own) == len(steps) and all(map(fnmatchcase, own, steps)):
            yield path


def _apply(module: nn.Module, parent: nn.Module, name: str, path: str, action: Any) -> None:
    old = parent._modules[name]
    assert old is not None
    if action == "freeze":
        old.requires_grad_(False)
    elif action in ("identity", "zero"):
        parent._modules[name] = Skip(old, zero=action == "zero")
    elif isinstance(action, Mapping) and list(action) == [SHARE]:
        parent._modules[name] = _shared(module, old, path, str(action[SHARE]))
    elif isinstance(action, str) and ":" in action:
        new = PARTS.load(action)(old)
        if not isinstance(new, nn.Module):
            raise TrialError(f"replace {path}: {action} returned a {type(new).__name__}, not a module")
        parent._modules[name] = new
    else:
        known = f"identity, zero, freeze, remove, {{{SHARE}: PATH}} or an import path 'mypkg.module:Other'"
        raise TrialError(f"replace {path}: {action!r} is none of {known}")


def _shared(module: nn.Module, old: nn.Module, path: str, other: str) -> nn.Module:
    try:
        found = module.get_submodule(other)
    except AttributeError:
        rule = f"no module has the path {other!r}. {did_you_mean(other, _paths(module))}"
        raise TrialError(f"replace {path}: share: {rule}") from None
    sizes = [[tuple(p.shape) for p in one.parameters()] for one in (old, found)]
    if sizes[0] != sizes[1]:
        raise TrialError(f"replace {path}: share: {other} has weights of other shapes")
    return found


def _remove(parent: nn.Module, part: nn.Module | None, path: str) -> None:
    index = [id(other) for other in parent._modules.values()].index(id(part))
    if isinstance(parent, nn.Sequential | nn.ModuleList):
        del parent[index]
    elif isinstance(parent, nn.ModuleDict):
        del parent[list(parent._modules)[index]]
    else:
        kind = type(parent).__name__
        raise TrialError(f"replace {path}: remove: {kind} calls its parts by name; use identity or zero")
