"""The costs of a configuration that are known before it is trained: what a study asks of its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ablate.core.config import DatasetFacts, Size
from ablate.core.objectives import SIZE_METRICS, loss, violation
from ablate.tuning.sampling.request import Known
from ablate.tuning.sampling.search_space import SearchSpace
from ablate.tuning.sampling.twins import Measure
from ablate.tuning.state.curves import Curves

if TYPE_CHECKING:
    from ablate.study import Study
    from ablate.study.sections import Constraint

AT_ONCE, BUILT = 1_000, 16  # networks of one kind of candidate that are measured for a suggestion, at most


@dataclass(frozen=True, kw_only=True)
class KnownCosts:
    """Measures the configurations of one data set's space, each network once."""

    study: Study
    dataset: str
    dimensions: SearchSpace
    measure: Measure
    facts: Callable[[], DatasetFacts]
    _losses: dict[tuple[Any, ...], tuple[float, ...] | None] = field(default_factory=dict)

    def before(
        self, *, accepts: Callable[[Mapping[str, Any]], bool], fixed: Mapping[str, Any], curves: Curves
    ) -> Known:
        """Return what a sampler may ask before a suggestion."""
        settings = self.study.kind
        return Known(
            costs=self._by_objective,
            accepts=accepts,
            learned=curves.learned,
            deciding=self._deciding,
            distinct=AT_ONCE if settings.is_counted_at_once(self.study.given_for(self.dataset)) else BUILT,
            references=[None if o.reference is None else loss(o, o.reference) for o in self.study.objectives],
            fixed=fixed,
            curves=curves,
        )

    def _by_objective(self, asked: Sequence[Mapping[str, Any]]) -> list[list[float] | None]:
        """Return the losses of configurations by objective, NaN for a learned one, None for what cannot be trained."""
        found: list[list[float] | None] = []
        for sizes in map(self.losses, asked):
            own = None if sizes is None else iter(sizes)
            known = [o.metric in self.study.counted for o in self.study.objectives]
            found.append(None if own is None else [next(own) if each else math.nan for each in known])
        return found

    def losses(self, inner: Mapping[str, Any]) -> tuple[float, ...] | None:
        """Return the losses of the objectives that are sizes, or None if the configuration cannot be trained."""
        if not self._is_asked:
            return ()
        key = tuple(inner.get(name) for name in self._deciding)
        if key not in self._losses:
            parameters = self.dimensions.decode(inner)
            try:
                size = self.measure(self.study.settings_of(self.dataset, parameters), self.facts())
            except ValidationError:  # perhaps of other settings than those that decide
                return None
            assert size is not None
            kept = broken_bound(self.study, size) is None
            sizes = [o for o in self.study.objectives if o.metric in SIZE_METRICS]
            self._losses[key] = tuple(loss(o, float(getattr(size, o.metric))) for o in sizes) if kept else None
        return self._losses[key]

    @cached_property
    def _deciding(self) -> tuple[str, ...]:
        """The settings that may change a size, if the study asks for one that its trainable tells before training."""
        names = self.dimensions.distributions if self._is_asked else ()
        return tuple(name for name in names if self.study.is_architecture(name))

    @cached_property
    def _is_asked(self) -> bool:
        asked = [o.metric for o in self.study.objectives] + [c.metric for c in self.study.constraints]
        return bool(set(asked) & set(self.study.counted))


def broken_bound(study: Study, size: Size | None) -> Constraint | None:
    """Return the first constraint on a size that `size` violates, or None."""
    bounds = [] if size is None else [each for each in study.constraints if each.metric in SIZE_METRICS]
    return next((each for each in bounds if violation(each, float(getattr(size, each.metric))) > 0), None)
