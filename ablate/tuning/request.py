"""The request from which a sampler is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.tuning.search_space import SearchSpace


@dataclass(frozen=True, kw_only=True)
class SamplerRequest:
    """The arguments from which a sampler is built, for one suggestion.

    `seed` is used for this suggestion only. `rejected` holds the trial attributes of the previous suggestion if that
    one was refused. `design` returns the trials of a designed comparison, in order. `good` is the number of trials that
    TPE takes as good ones where it sees a choice of a long history (see BoundedHistory), otherwise None.
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
    good: int | None = None
