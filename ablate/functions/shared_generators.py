"""Generators at the top of a user's module: each seed begins with what the import left, also when it continues."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class SharedGenerators:
    """The states at the start of the generators of the module in which a function is, by name."""

    generators: Mapping[str, Any]
    states: Mapping[str, bytes]

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


def _state(generator: Any) -> bytes:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    return pickle.dumps(generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator)
