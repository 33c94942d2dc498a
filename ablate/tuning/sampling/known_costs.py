"""The costs of a configuration that are known before it is trained: what a study asks of its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ablate.core.config import DatasetFacts, NoSize, Size, TrainableSettings
from ablate.core.objectives import loss, violation
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
    _losses: dict[tuple[Any, ...], Sequence[float] | None] = field(default_factory=dict)

    def before(
        self, *, accepts: Callable[[Mapping[str, Any]], bool], fixed: Mapping[str, Any], curves: Curves
    ) -> Known:
        """Return what a sampler may ask before a suggestion."""
        return Known(
            costs=self.losses,
            accepts=accepts,
            learned=curves.learned,
            deciding=self._deciding,
            distinct=AT_ONCE if self.study.counted_at_once else BUILT,
            references=[None if o.reference is None else loss(o, o.reference) for o in self.study.objectives],
            fixed=fixed,
            curves=curves,
        )

    def losses(self, asked: Sequence[Mapping[str, Any]]) -> list[Sequence[float] | None]:
        """Return the losses of configurations by objective, NaN for a learned one.

        None stands for a configuration that cannot be trained, or that breaks a constraint. All networks that are not
        known yet are measured at once.
        """
        if not self._is_asked:
            return [[math.nan] * len(self.study.objectives) for _ in asked]
        keys = [tuple(inner.get(name) for name in self._deciding) for inner in asked]
        new: dict[tuple[Any, ...], TrainableSettings] = {}
        for key, inner in zip(keys, asked, strict=True):
            if key not in self._losses and key not in new:
                with suppress(ValidationError):  # perhaps of other settings than those that decide
                    new[key] = self.study.settings_of(self.dataset, self.dimensions.decode(inner))
        for key, size in zip(new, self.measure([*new.values()], self.facts()) if new else (), strict=True):
            if isinstance(size, NoSize) or broken_bound(self.study, size) is not None:
                self._losses[key] = None
            else:
                self._losses[key] = [loss(o, float(size.get(o.metric, math.nan))) for o in self.study.objectives]
        return [self._losses.get(key) for key in keys]

    @cached_property
    def _deciding(self) -> tuple[str, ...]:
        """The settings that may change a size, if the study asks for one that its trainable tells before training."""
        names = self.dimensions.distributions if self._is_asked else ()
        return tuple(name for name in names if self.study.decides_size(name))

    @cached_property
    def _is_asked(self) -> bool:
        asked = [o.metric for o in self.study.objectives] + [c.metric for c in self.study.constraints]
        return bool(set(asked) & set(self.study.counted))


def broken_bound(study: Study, size: Size) -> Constraint | None:
    """Return the first constraint on a size that `size` violates, or None."""
    bounds = (each for each in study.constraints if each.metric in size)
    return next((each for each in bounds if violation(each, float(size[each.metric])) > 0), None)
