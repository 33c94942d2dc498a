"""Generators at the top of a user's module: each seed begins with what the import left, also when it continues."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class SharedGenerators:
    """The states at the start of the generators of the module in which a function is, by name."""

    generators: Mapping[str, Any]
    states: Mapping[str, str]

    @staticmethod
    def of(function: Callable[..., Any]) -> SharedGenerators:
        """Return those of now."""
        module = sys.modules.get(getattr(function, "__module__", ""))
        found = {name: each for name, each in vars(module).items() if _kind(each)} if module else {}
        return SharedGenerators(found, {name: _state(each) for name, each in found.items()})

    def moved(self) -> tuple[str, ...]:
        """Return the names of those that were drawn from."""
        return tuple(name for name, each in self.generators.items() if _state(each) != self.states[name])


def _kind(thing: object) -> bool:
    return type(thing) in (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def _state(generator: Any) -> str:
    if isinstance(generator, random.Random):
        return str(hash(generator.getstate()))
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return "".join(map(str, _parts(generator.get_state(legacy=False))))
    return str(generator.get_state().numpy().tobytes())


def _parts(state: Any) -> Iterator[Any]:
    """Yield what a nested dictionary of numbers and arrays holds."""
    for value in state.values():
        if isinstance(value, dict):
            yield from _parts(value)
        else:
            yield value.tobytes() if isinstance(value, np.ndarray) else value
