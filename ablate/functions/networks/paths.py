"""Paths of a network's modules, parameters and buffers, and the patterns that find them."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from ablate.base.errors import NAMES_SHOWN, TrialError, did_you_mean


def find(network: nn.Module, pattern: str) -> list[str]:
    """Return the paths of modules that match a pattern, or else of parameters and buffers.

    A pattern is a path whose steps may hold `*`, which stands for one step or a part of one. Raises TrialError if
    nothing matches, with the paths that exist.
    """
    for known in (module_paths(network), tensor_paths(network)):
        if matching := [path for path in known if _matches(pattern, path)]:
            return matching
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and _matches(pattern, f"{path}.{name}".lstrip(".")):
                raise TrialError(
                    f"replace: {pattern!r} is a plain tensor, which is neither trained nor kept. Make it a parameter or"
                    f" self.register_buffer({name!r}, ...). Known: {', '.join(shown(tensor_paths(network)))}"
                )
    rule = f"no module, parameter or buffer has the path {pattern!r}"
    named = [path for path in tensor_paths(network) if "." not in path or not path.endswith(("weight", "bias"))]
    raise TrialError(f"replace: {rule}. {did_you_mean(pattern, shown([*module_paths(network), *named]))}")


def module_paths(network: nn.Module) -> list[str]:
    """Return the path of each module inside; one that is there twice has two."""
    return [path for path, _ in network.named_modules(remove_duplicate=False) if path]


def tensor_paths(network: nn.Module) -> list[str]:
    """Return the path of each parameter and buffer; one that is there twice has two."""
    named = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    return [path for path, _ in named]


def shown(paths: list[str]) -> list[str]:
    """Return paths for a message; of many, one pattern for all that differ in numbers."""
    return paths if len(paths) <= NAMES_SHOWN else list(dict.fromkeys(re.sub(r"[0-9]+", "*", path) for path in paths))


def place(network: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the module that holds what is at `path`, and its name there."""
    before, _, name = path.rpartition(".")
    return network.get_submodule(before), name


def has_forward(module: nn.Module) -> bool:
    """Return whether a module can be called: a ModuleList, ModuleDict or ParameterList cannot."""
    method: Any = getattr(module.forward, "__func__", module.forward)
    return method is not nn.Module.forward


def _matches(pattern: str, path: str) -> bool:
    steps, own = pattern.split("."), path.split(".")
    return len(own) == len(steps) and all(map(fnmatchcase, own, steps))
