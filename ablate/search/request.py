"""What a sampler is built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.search.search_space import SearchSpace


@dataclass(frozen=True, kw_only=True)
class SamplerRequest:
    """What a sampler is built from, for one suggestion.

    `seed` belongs to this suggestion alone. `rejected` holds the trial attributes of the suggestion before it,
    where that one was turned down. `design` returns what a designed comparison trains, in order.
    """

    name: str
    dimensions: SearchSpace
    study_seed: int
    dataset: str
    seed: int
    objectives: int
    startup_trials: int
    options: Mapping[str, Any] = field(default_factory=dict)
    rejected: Mapping[str, Any] = field(default_factory=dict)
    design: Callable[[], Sequence[Mapping[str, Any]]] = tuple
