"""Replaces parts of a built network by path: `replace:` in a study file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ablate.base.errors import TrialError, did_you_mean
from ablate.core.registry import Registry
from ablate.functions.networks.paths import find, has_forward, module_paths, place, shown
from ablate.functions.networks.skipping import Skip
from ablate.functions.networks.watching import Replacements

PARTS = Registry("part", {})
SHARE, REMOVE, FREEZE, IDENTITY, ZERO = "share", "remove", "freeze", "identity", "zero"
KNOWN = f"identity, zero, freeze, remove, {{{SHARE}: PATH}} or an import path 'mypkg.module:Other'"


def replace_parts(
    network: nn.Module, replacements: Mapping[str, Any], *, number_of: Callable[[str], int] = lambda path: 0
) -> Replacements:
    """Change `network` in place: each pattern of paths gets its action. Return what `check_parts` needs.

    Actions on modules: `identity` (return the input), `zero` (return zeros: a branch that is added is gone), `freeze`
    (do not train), `remove` (out of a Sequential, ModuleList or ModuleDict), `{share: PATH}` (use the module at PATH),
    or an import path whose object is called with the module and returns another; its random draws are seeded by
    `number_of` the path. Actions on parameters: `zero` (zeros that are not trained) and `freeze`; on buffers: `zero`.
    Raises TrialError for a pattern that matches nothing, with the paths that exist, and for an action that is not
    possible there.
    """
    record = Replacements(network)
    actions = _actions(network, replacements)
    modules = dict(network.named_modules(remove_duplicate=False))
    places = {path: place(network, path) for path in actions}  # before anything moves
    changes = [(path, action) for path, action in actions.items() if path in modules and action not in (REMOVE, FREEZE)]
    placed = {path: _apply(network, *places[path], path, action, record, number_of) for path, action in changes}
    removed = [(places[path][0], modules[path], path) for path in modules if actions.get(path) == REMOVE]
    frozen: dict[str, nn.Parameter] = {}
    for path, action in actions.items():
        parent, name = places[path]
        if path not in modules:
            frozen |= _change_tensor(network, parent, name, path, actions, record)
        elif action == FREEZE:
            frozen |= {f"{path}.{inner}": value for inner, value in getattr(parent, name).named_parameters()}
    for value in frozen.values():
        value.requires_grad_(False)
    for parent, part, path in removed:
        _remove(parent, part, path)
    record.frozen = [path for path, value in network.named_parameters() if value is frozen.get(path)]
    if changes or removed:
        _leave_fast_paths(network)
    _watch(network, modules, placed, actions, record)
    return record


def _actions(network: nn.Module, replacements: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action of each path; `remove` comes before others, and `freeze` after them.

    Raises TrialError if two patterns want different things of one part.
    """
    found: dict[str, Any] = {}
    modules = module_paths(network)
    for pattern, action in replacements.items():
        paths = find(network, pattern)
        if action == FREEZE and paths[0] in modules and not any(_has_parameters(network, path) for path in paths):
            raise TrialError(f"replace {pattern}: freeze: there are no parameters in it")
        for path in paths:
            before = found.get(path, FREEZE)
            if REMOVE in (before, action):
                found[path] = REMOVE
            elif FREEZE in (before, action) or before == action:
                found[path] = before if action == FREEZE else action
            else:
                raise TrialError(f"replace {path}: {before!r} and {action!r} are both to take its place: give one")
    return found


def _has_parameters(network: nn.Module, path: str) -> bool:
    return any(
        name == path or name.startswith(f"{path}.") for name, _ in network.named_parameters(remove_duplicate=False)
    )


def _apply(
    network: nn.Module,
    parent: nn.Module,
    name: str,
    path: str,
    action: Any,
    record: Replacements,
    number_of: Callable[[str], int],
) -> nn.Module:
    """Put what takes the place of a module there, and return it."""
    old = parent._modules[name]
    assert old is not None
    if action in (IDENTITY, ZERO):
        _refuse_skipping(old, path, action)
        record.needs_shape |= action == IDENTITY
        new: nn.Module = Skip(old, action, path, record)
    elif isinstance(action, Mapping) and list(action) == [SHARE]:
        new = _shared(network, old, path, str(action[SHARE]))
    elif isinstance(action, str) and ":" in action:
        new = _own(old, path, action, number_of(path))
    else:
        raise TrialError(f"replace {path}: {action!r} is none of {KNOWN}")
    parent._modules[name] = new
    return new


def _refuse_skipping(part: nn.Module, path: str, action: str) -> None:
    if not has_forward(part):
        children = ", ".join(f"{path}.{name}" for name, _ in part.named_children())
        inside = f"name one of its parts: {children}" if children else "it has no parts"
        raise TrialError(
            f"replace {path}: {action}: a {type(part).__name__} is never called, so nothing would change; {inside}"
        )


def _own(old: nn.Module, path: str, action: str, number: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        new = PARTS.load(action)(old)
    if not isinstance(new, nn.Module):
        raise TrialError(f"replace {path}: {action} returned a {type(new).__name__}, not a module")
    return new


def _shared(network: nn.Module, old: nn.Module, path: str, other: str) -> nn.Module:
    try:
        found = network.get_submodule(other)
    except AttributeError:
        rule = f"no module has the path {other!r}. {did_you_mean(other, shown(module_paths(network)))}"
        raise TrialError(f"replace {path}: share: {rule}") from None
    sizes = [[tuple(p.shape) for p in one.parameters()] for one in (old, found)]
    if sizes[0] != sizes[1]:
        raise TrialError(f"replace {path}: share: {other} has weights of other shapes")
    return found


def _remove(parent: nn.Module, part: nn.Module, path: str) -> None:
    if not isinstance(parent, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        kind = type(parent).__name__
        raise TrialError(f"replace {path}: remove: {kind} calls its parts by name; use identity or zero")
    index = [id(other) for other in parent._modules.values()].index(id(part))
    if isinstance(parent, nn.ModuleDict):
        del parent[list(parent._modules)[index]]
    else:
        del parent[index]


def _change_tensor(
    network: nn.Module, parent: nn.Module, name: str, path: str, actions: Mapping[str, Any], record: Replacements
) -> dict[str, nn.Parameter]:
    """Zero a parameter or a buffer, and return the parameter that is not to be trained, by its path."""
    action = actions[path]
    value = getattr(parent, name)
    is_parameter = isinstance(value, nn.Parameter)
    if action not in ((ZERO, FREEZE) if is_parameter else (ZERO,)):
        kind, known = ("parameter", "zero or freeze") if is_parameter else ("buffer", "zero")
        raise TrialError(f"replace {path}: {action!r}: this is a {kind}, whose action is {known}")
    held = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    others = [other for other, tensor in held if tensor is value and actions.get(other) != action]
    if others:
        raise TrialError(f"replace {path}: {action}: {', '.join(others)} is the same tensor and would change too")
    if action == ZERO:
        with torch.no_grad():
            value.zero_()
        record.zeroed.append(path)
    return {path: value} if is_parameter else {}


def _leave_fast_paths(network: nn.Module) -> None:
    """Let torch's transformer layers call their parts in evaluation too, instead of reading the weights of each."""
    for part in network.modules():
        if isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0


def _watch(
    network: nn.Module,
    before: Mapping[str, nn.Module],
    placed: Mapping[str, nn.Module],
    actions: Mapping[str, Any],
    record: Replacements,
) -> None:
    """Note the calls of parts that are out, and of what took their places and is in the network.

    Of a part of the user's own, the parts that it takes over from the network do not count: the network may still call
    them by another way.
    """
    now, known = set(network.modules()), set(before.values())
    for path, new in placed.items():
        if new in now:
            action = actions[path] if isinstance(actions[path], str) else f"share: {actions[path][SHARE]}"
            own = [part for part in new.modules() if part not in known] if has_forward(new) and ":" in action else []
            noting = [] if isinstance(new, Skip) else own or list(new.modules())
            record.await_call(path, action, noting)
    for part, path in {part: path for path, part in reversed(list(before.items())) if part not in now}.items():
        record.watch_removed(path, part)
