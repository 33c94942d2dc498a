"""What a sampler is built from, and what its builder declares."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ablate.core.config import Frozen, Positive
from ablate.core.registry import SAMPLERS
from ablate.tuning.sampling.search_space import SearchSpace
from ablate.tuning.state.curves import Curves

B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of configurations, given as Optuna's values, before they are trained, and of trials.

    `costs` returns the losses of each configuration by objective, NaN for a learned one; or None if it cannot be
    trained or its size breaks a constraint. The settings `deciding` alone decide the costs; `distinct` is how many
    combinations of them may be asked for at once. `learned` are the places of the objectives that trials tell.
    `accepts` says whether a configuration is new as well. `references` are by objective, None where the study has none.
    `fixed` are values that the suggestion must have. `curves` has the reports of the trials.
    """

    costs: Callable[[Sequence[Mapping[str, Any]]], Sequence[Sequence[float] | None]]
    accepts: Callable[[Mapping[str, Any]], bool]
    learned: Sequence[int]
    deciding: Container[str]
    distinct: int
    references: Sequence[float | None]
    fixed: Mapping[str, Any]
    curves: Curves


@dataclass(frozen=True, kw_only=True)
class SamplerRequest:
    """The arguments from which a sampler is built, for one suggestion.

    `seed` is used for this suggestion only. `rejected` holds the trial attributes of the previous suggestion if that
    one was refused. `design` returns the trials of a designed comparison that are left, by place and in order. `good`
    is the number of trials that TPE takes as good ones where it sees a choice of a long history (see BoundedHistory),
    otherwise None. A sampler may leave up to `further` more suggestions, as Optuna's values, in an attribute of this
    name: the next ones, while many trials run. It is 0 for a sampler without `most_trials`.
    """

    name: str
    dimensions: SearchSpace
    study_seed: int
    dataset: str
    seed: int
    objectives: int
    startup_trials: int
    known: Known
    options: Mapping[str, Any] = field(default_factory=dict)
    rejected: Mapping[str, Any] = field(default_factory=dict)
    design: Callable[[], Mapping[int, Mapping[str, Any]]] = dict
    good: int | None = None
    further: int = 0


class SamplerTraits(Frozen):
    """What a search knows of a sampler beforehand: a decorator of its builder, without which the defaults hold."""

    learns: bool = True
    """Whether suggestions follow from results. If not, `--from` is refused."""
    startup_trials: Positive = 10
    """Default of `startup_trials` in the study file."""
    most_trials: Positive | None = None
    """Finished trials that it is shown of a longer history. Default: all."""
    stopped_as: Literal["pruned", "violating"] | None = None
    """Whether a stopped trial is PRUNED, or COMPLETE with a violated constraint. Default: PRUNED with one objective."""
    observed: Mapping[str, Any] = {}
    """System attributes of the trials of `--from`."""

    def __call__(self, build: B) -> B:
        """Return `build` with these traits."""
        build.sampler_traits = self  # type: ignore[attr-defined]
        return build

    @classmethod
    def of(cls, sampler: str) -> SamplerTraits:
        """Return the traits of a sampler by name; raise RegistryError if it does not import."""
        found: SamplerTraits = getattr(SAMPLERS.load(sampler), "sampler_traits", cls())
        return found
