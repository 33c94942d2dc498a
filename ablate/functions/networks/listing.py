"""The parts of a network by path, what each can be replaced by, and a `parts:` section to begin with."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from ablate.functions.networks.keyed import count_parameters
from ablate.functions.networks.paths import find, has_forward, place
from ablate.functions.networks.replacing import FREEZE, IDENTITY, REMOVE, SHARE, ZERO, replace_parts
from ablate.functions.networks.tracing import Trace

READY = 12  # parts in the section, at most
NORMS = re.compile(r"norm", re.IGNORECASE)
PLACES = re.compile(r"pos|wpe|cls|class_token", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part, or all `count` parts of one pattern that are alike; `params` and shapes are those of one of them.

    `kind` is module, parameter or buffer. `note` says why fewer actions are possible than for others of its kind.
    """

    path: str
    count: int
    kind: str
    type: str
    params: int
    actions: tuple[str, ...]
    input: tuple[int, ...] | None = None
    output: tuple[int, ...] | None = None
    note: str = ""


def list_network(network: nn.Module, trace: Trace | None) -> dict[str, Any]:
    """Return a network's parts as plain data: `network`, `params`, `parts`, `section`, and `called`.

    `trace` is a call of the network, or None where it could not be called: actions are then those that its modules
    allow without a call, and `called` is False. `section` maps names of parts to `{replace: {path: action}}`; each was
    tried in a copy of the network, if there was a call.
    """
    parts = [
        _module(network, path, part, trace) for path, part in network.named_modules(remove_duplicate=False) if path
    ]
    listed = _together(network, [*parts, *_tensors(network)])
    return {
        "network": type(network).__name__,
        "params": count_parameters(network),
        "called": trace is not None,
        "parts": [asdict(part) for part in listed],
        "section": _section(network, listed, trace),
    }


def _module(network: nn.Module, path: str, part: nn.Module, trace: Trace | None) -> Part:
    params = count_parameters(part)
    shapes = None if trace is None else trace.called.get(part)
    input_, output = (None, None) if shapes is None else (shapes.input, shapes.output)
    same = input_ is not None and input_ == output
    actions, note = [], ""
    if not has_forward(part):
        note = "never called: name a part inside it"
    elif trace is not None and (shapes is None or input_ is None):
        note = "not called in a forward pass"
    else:
        actions += [IDENTITY, ZERO] if same or trace is None else [ZERO]
    if params:
        actions.append(FREEZE)
    if isinstance(place(network, path)[0], nn.ModuleList | nn.Sequential) and (same or not has_forward(part)):
        actions.append(REMOVE)
    kind = type(part).__name__
    return Part(
        path=path, count=1, kind="module", type=kind, params=params, actions=tuple(actions), input=input_,
        output=output, note=note,
    )  # fmt: skip


def _tensors(network: nn.Module) -> Iterator[Part]:
    """Yield parameters and buffers, without the weights and biases of layers."""
    named = [*network.named_parameters(), *network.named_buffers()]
    for path, value in named:
        held = place(network, path)[0]
        of_layer = "." in path and type(held).__module__.startswith("torch.nn.")
        if not of_layer and not path.endswith(("weight", "bias")):
            trained = isinstance(value, nn.Parameter)
            yield Part(
                path=path,
                count=1,
                kind="parameter" if trained else "buffer",
                type=" x ".join(map(str, value.shape)) or "number",
                params=value.numel() if trained and value.requires_grad else 0,
                actions=(ZERO, FREEZE) if trained else (ZERO,),
            )


def _together(network: nn.Module, parts: list[Part]) -> list[Part]:
    """Return one part for those whose paths differ in numbers alone, if all that its pattern finds are alike."""
    groups: dict[str, list[Part]] = {}
    for part in parts:
        for pattern in _patterns(part.path):
            groups.setdefault(pattern, []).append(part)
    alike = {pattern for pattern, members in groups.items() if _are_alike(network, pattern, members)}
    found: dict[str, Part] = {}
    for part in parts:
        pattern = next((each for each in _patterns(part.path) if each in alike), part.path)
        if pattern not in found:
            members = groups.get(pattern, [part]) if pattern in alike else [part]
            shared = len(members) > 1 and part.params and ZERO in part.actions and part.kind == "module"
            actions = (*part.actions, SHARE) if shared else part.actions
            found[pattern] = replace(part, path=pattern, count=len(members), actions=actions)
    return list(found.values())


def _patterns(path: str) -> list[str]:
    """Return a path with a star for each number, and with one for those before its last step; the better one first."""
    before, dot, last = path.rpartition(".")
    whole, outer = re.sub(r"[0-9]+", "*", path), re.sub(r"[0-9]+", "*", before) + dot + last
    return [each for each in dict.fromkeys((whole, outer) if last.isdigit() else (outer, whole)) if "*" in each]


def _are_alike(network: nn.Module, pattern: str, members: list[Part]) -> bool:
    seen = {(part.kind, part.type, part.params, part.actions, part.input, part.output) for part in members}
    paths = {part.path for part in members}
    return len(paths) > 1 and len(seen) == 1 and set(find(network, pattern)) == paths


def _section(network: nn.Module, parts: list[Part], trace: Trace | None) -> dict[str, Any]:
    """Return a part for each branch of a repeated block, or else for each block that keeps the shape of its input."""
    wishes = [wish for part in parts if part.kind != "buffer" and (wish := _wish(part)) is not None]
    if not any("*" in path for path, _ in wishes):
        same = [part for part in parts if part.params and IDENTITY in part.actions and part.input is not None]
        blocks = [part for part in same if next(network.get_submodule(part.path).children(), None) is not None]
        wishes += [(part.path, IDENTITY) for part in blocks or same]
    found: dict[str, Any] = {}
    taken: list[str] = []
    for path, action in wishes:
        inside = any(path.startswith(f"{outer}.") for outer in taken)
        if len(found) < READY and not inside and (trace is None or _works(network, {path: action}, trace)):
            taken.append(path)
            found[_name(path, found)] = {"replace": {path: action}}
    return found


def _wish(part: Part) -> tuple[str, str] | None:
    """Return path and action of a position, or of a branch directly inside a repeated block."""
    if PLACES.search(part.path.rpartition(".")[2]) and part.kind == "parameter":
        return part.path, ZERO
    if not part.params or ZERO not in part.actions:
        return None
    if PLACES.search(part.path.rpartition(".")[2]):
        return part.path, ZERO
    before = part.path.rpartition(".")[0]
    if part.count == 1 or "*" not in before.rpartition(".")[2]:
        return None
    return part.path, IDENTITY if IDENTITY in part.actions and NORMS.search(part.type) else ZERO


def _works(network: nn.Module, replacements: Mapping[str, str], trace: Trace) -> bool:
    """Return whether a copy of the network with a replacement takes the same call."""
    assert trace.given is not None
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            part = copy.deepcopy(network)
            replace_parts(part, replacements)
            part(*trace.given[0], **trace.given[1])
    except Exception:  # a network of the user's may fail in any way; the part is then not offered
        return False
    return True


def _name(path: str, taken: Mapping[str, Any]) -> str:
    """Return a name for a part that is not taken, from the last steps of its path."""
    steps = [name for step in path.split(".") if (name := re.sub(r"\W", "", step).strip("_"))]
    names = ["_".join(steps[-length:]) for length in range(1, len(steps) + 1)]
    free = [name for name in names if name not in taken and not name[0].isdigit()]
    return free[0] if free else f"part_{len(taken)}"
