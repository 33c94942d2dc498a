"""Twins: the complete network, narrowed to the number of parameters of a network without a part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ablate.base.errors import RequestError
from ablate.core.config import DatasetFacts, NoSize, Size, TrainableSettings
from ablate.core.trainable import load_trainable
from ablate.study import VARIANT

if TYPE_CHECKING:
    from ablate.study import Study

Measure = Callable[[Sequence[TrainableSettings], DatasetFacts], Sequence[Size | NoSize]]


@dataclass(frozen=True, kw_only=True)
class TwinSizes:
    """Finds the settings of the twins of one data set, from the sizes of networks that are not trained."""

    study: Study
    dataset: str
    measure: Measure
    facts: Callable[[], DatasetFacts]
    _counts: dict[str, int | None] = field(default_factory=dict)

    def check(self) -> None:
        """Raise RequestError if the twins of the first configuration cannot be made."""
        if not self.study.twins:
            return
        for parameters in self.study.design(self.dataset)[: len(self.study.rows)]:
            self.settings_of(parameters)

    def settings_of(self, parameters: Mapping[str, Any]) -> TrainableSettings:
        """Return the complete settings of a trial; those of a twin have the width nearest in parameters.

        The width is below that of the complete network. Raises pydantic's ValidationError if the combination is
        impossible, RequestError if the twin cannot be made.
        """
        settings = self.study.settings_of(self.dataset, parameters)
        other = self.study.twins.get(str(parameters.get(VARIANT)))
        if other is None:
            return settings
        reduced = self.study.settings_of(self.dataset, {**parameters, VARIANT: other})
        target, whole = self._count(reduced), self._count(settings)
        if target is None or whole is None:
            raise self._fault("the sizes of its networks are not known before training, so a twin has no size to match")
        if target >= whole:
            rule = f"{other} has {target:,} parameters and the complete network {whole:,}: there is nothing to narrow."
            raise self._fault(f"{rule} List the parts that have parameters, as in twin: [a, b]")
        return self._nearest(settings, target)

    def _nearest(self, settings: TrainableSettings, target: int) -> TrainableSettings:
        """Return the narrower settings whose size is nearest to `target`, the smaller one of two as near.

        The size grows with the width, so the width is bisected; widths that cannot be built are passed over.
        """
        assert self.study.compare is not None
        assert self.study.compare.twin is not None
        name = self.study.compare.twin.setting or settings.width_setting
        widths = settings.widths(name)[:-1]
        below, above = -1, len(widths)
        found: list[tuple[int, int, TrainableSettings]] = []
        while above - below > 1:
            middle = (below + above) // 2
            place, sized = middle, None
            while place > below and (sized := self._sized(settings, name, widths[place])) is None:
                place -= 1
            if sized is not None:
                found.append((abs(sized[0] - target), sized[0], sized[1]))
            if sized is not None and sized[0] > target:
                above = place
            else:
                below = middle
        if not found:
            raise self._fault(f"no smaller {name or 'width'} gives a network that can be sized")
        return min(found, key=lambda each: each[:2])[2]

    def _sized(self, settings: TrainableSettings, name: str, width: int) -> tuple[int, TrainableSettings] | None:
        try:
            narrowed = settings.at_width(name, width)
        except ValidationError:
            return None
        count = self._count(narrowed)
        return None if count is None else (count, narrowed)

    def _count(self, settings: TrainableSettings) -> int | None:
        """Return the parameters of a network, counted on the built module or by running the user's function."""
        key = settings.model_dump_json()
        if key not in self._counts:
            [size] = self.measure([settings], self.facts())
            if isinstance(size, NoSize):
                raise self._fault(size.fault)
            running = load_trainable(self.study.trainable).count_by_running
            known = "params" in size
            self._counts[key] = int(size["params"]) if known else running(settings, self.dataset).params
        return self._counts[key]

    def _fault(self, rule: str) -> RequestError:
        return RequestError(f"compare.twin on data set {self.dataset!r}: {rule}")
