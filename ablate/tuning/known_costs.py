"""The costs of a configuration that are known before it is trained: what a study asks of its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from ablate.base.errors import RequestError
from ablate.base.randomness import stream
from ablate.core.config import DatasetFacts, Size, TrainableSettings
from ablate.core.objectives import SIZE_METRICS, constraint_text, loss, violation
from ablate.core.registry import TRAINABLES
from ablate.tuning.candidates import Candidates
from ablate.tuning.request import Known
from ablate.tuning.search_space import SearchSpace
from ablate.tuning.twins import Measure

if TYPE_CHECKING:
    from ablate.study import Study
    from ablate.study.sections import Constraint

AT_ONCE, BUILT = 1_000, 16  # networks of one kind of candidate that are measured for a suggestion, at most
TRIED, DRAWN = 8, 64  # pairs of networks that show whether a setting changes a size, and draws to find them


@dataclass(frozen=True, kw_only=True)
class KnownCosts:
    """Measures the configurations of one data set's space, each network once."""

    study: Study
    dataset: str
    dimensions: SearchSpace
    measure: Measure
    count: Callable[[TrainableSettings], int | None]
    facts: Callable[[], DatasetFacts]
    _losses: dict[tuple[Any, ...], tuple[float, ...] | None] = field(default_factory=dict)

    def before(self, *, accepts: Callable[[Mapping[str, Any]], bool], fixed: Mapping[str, Any]) -> Known | None:
        """Return what a sampler may ask before a suggestion, or None unless exactly one objective is learned."""
        if (learned := self.study.learned_objective) is None:
            return None
        settings = self.study.kind
        return Known(
            costs=self.losses,
            accepts=accepts,
            learned=learned,
            deciding=self._deciding,
            distinct=AT_ONCE if settings.is_counted_at_once(self.study.given_for(self.dataset)) else BUILT,
            references=[None if o.reference is None else loss(o, o.reference) for o in self.study.objectives],
            constraints=[constraint_text(c) for c in self.study.constraints if c.metric not in SIZE_METRICS],
            fixed=fixed,
        )

    def losses(self, inner: Mapping[str, Any]) -> tuple[float, ...] | None:
        """Return the losses of the objectives that are sizes, or None if the configuration cannot be trained."""
        if not self._is_asked:
            return ()
        key = tuple(inner.get(name) for name in self._deciding)
        if key not in self._losses:
            try:
                sizes = self._sizes(inner)
            except ValidationError:  # perhaps of other settings than those that decide
                return None
            bounds = [each for each in self.study.constraints if each.metric in sizes]
            kept = sizes and not any(violation(each, sizes[each.metric]) > 0 for each in bounds)
            found = [loss(o, sizes[o.metric]) for o in self.study.objectives if o.metric in sizes]
            self._losses[key] = tuple(found) if kept else None
        return self._losses[key]

    def _sizes(self, inner: Mapping[str, Any]) -> dict[str, float]:
        """Return what is counted of a configuration, nothing if its size is unknown; raise ValidationError."""
        settings = self.study.settings_of(self.dataset, self.dimensions.decode(inner))
        if self._is_own:
            params = self.count(settings)
            return {} if params is None else {"params": float(params)}
        size = self.measure(settings, self.facts())
        assert size is not None
        return {name: float(value) for name, value in size.model_dump().items()}

    @property
    def _is_own(self) -> bool:
        return self.study.trainable not in TRAINABLES.names()

    @cached_property
    def _deciding(self) -> tuple[str, ...]:
        """The settings that may change a size, if the study asks for one."""
        if not self._is_asked:
            return ()
        if self._is_own:
            return self._tried()
        return tuple(name for name in self.dimensions.distributions if self.study.is_architecture(name))

    @cached_property
    def _is_asked(self) -> bool:
        """Whether the study asks for a size that is counted before training."""
        asked = [o.metric for o in self.study.objectives] + [c.metric for c in self.study.constraints]
        return bool(set(asked) & set(SIZE_METRICS)) and not (self._is_own and self.study.sampler.name != "front")

    def _tried(self) -> tuple[str, ...]:
        """Return the settings that change the parameters of a function's network, by pairs that differ in one of them.

        Raises RequestError if no network of the pairs can be counted.
        """
        space = Candidates(dimensions=self.dimensions)
        rng = stream(self.study.seed, self.dataset, 0, "sampler", "sizes")
        first, second = space.draw(rng, DRAWN), space.draw(rng, DRAWN)
        found, counted = [], False
        for place, name in enumerate(space.names):
            changed = first.copy()
            changed[:, place] = second[:, place]
            rows, others = space.placed(first, {}), space.placed(changed, {})
            searched = ~np.isnan(rows[:, place])
            differ = np.flatnonzero(searched & (rows[:, place] != others[:, place]))[:TRIED]
            pairs = [[self._counted(space.values(each[row])) for each in (rows, others)] for row in differ]
            known = [pair for pair in pairs if None not in pair]
            counted = counted or bool(known)
            if any(one != other for one, other in known):
                found.append(name)
        if not counted:
            raise RequestError(
                f"sampler front: no network of data set {self.dataset!r} can be counted before it is trained. A"
                " function must make it by `run.build` before its first epoch; otherwise take sampler tpe"
            )
        return tuple(found)

    def _counted(self, inner: Mapping[str, Any]) -> float | None:
        try:
            return self._sizes(inner).get("params")
        except ValidationError:
            return None


def broken_bound(study: Study, size: Size | None) -> Constraint | None:
    """Return the first constraint on a size that `size` violates, or None."""
    bounds = [] if size is None else [each for each in study.constraints if each.metric in SIZE_METRICS]
    return next((each for each in bounds if violation(each, float(getattr(size, each.metric))) > 0), None)
