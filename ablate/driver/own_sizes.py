"""Sizes of a user's networks in a plan: which settings change them, and what is said where a size is unknown."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ablate.core.config import Counted, DatasetFacts, TrainableSettings
from ablate.core.registry import TRAINABLES
from ablate.core.trainable import Trainable
from ablate.study import VARIANT, Study
from ablate.study.space import Choices, FloatRange, IntRange, Range, Space

SIZING_SECONDS = 30.0  # after this, no further network of a user's function is sized by running the function


@dataclass(kw_only=True)
class OwnSizes:
    """Counts the parameters of one data set's networks by running the user's function, for as long as a plan may take.

    `settings_of` makes settings of values, `count` runs the function. `notes` are the reasons for unknown sizes.
    """

    study: Study
    dataset: str
    settings_of: Callable[[Mapping[str, Any]], TrainableSettings]
    count: Callable[[TrainableSettings], Counted]
    notes: list[str] = field(default_factory=list)
    _begun: float = field(default_factory=time.monotonic)
    _known: dict[str, int | None] = field(default_factory=dict)

    def params(self, values: Mapping[str, Any]) -> int | None:
        """Return the parameters of a configuration; settings that `values` lacks take a value inside their range."""
        settings = self.settings_of(inside(self.study.space_for(self.dataset), values))
        key = settings.model_dump_json()
        if key not in self._known and time.monotonic() - self._begun < SIZING_SECONDS:
            found = self.count(settings)
            self._known[key] = found.params
            if found.note and found.note not in self.notes:
                self.notes.append(found.note)
        return self._known.get(key)

    @property
    def knows_sizes(self) -> bool:
        """Whether any network was sized."""
        return any(count is not None for count in self._known.values())

    def architectures(self, axes: Space) -> Space:
        """Return those of `axes` that change the number of parameters: the variants, and what changes it alone.

        Each axis is tried at its first, middle and last value, with all others at one value.
        """
        kept: dict[str, Range] = {}
        for name, spec in axes.ranges.items():
            others = {other: allowed[0] for other, allowed in spec.when.items()}
            values = [{**others, name: value} for value in thinned(spec).choices]
            if name == VARIANT or len({self.params(each) for each in values}) > 1:
                kept |= {other: axes.ranges[other] for other in spec.when} | {name: spec}
        return Space(ranges={name: spec for name, spec in axes.ranges.items() if name in kept})


def refuse_impossible_parts(study: Study, trainable: Trainable, facts: Mapping[str, DatasetFacts]) -> None:
    """Raise RequestError if a part that a row of the study replaces cannot be replaced, as a plan of it does.

    A user's function is run for SIZING_SECONDS at most; rows after that are checked by their first trial.
    """
    own, begun = study.trainable not in TRAINABLES.names(), time.monotonic()
    for label in study.labels:
        space = study.space_for(label)
        rows = space.ranges[VARIANT].grid() or () if VARIANT in space.ranges else ()
        for values in [{VARIANT: row} for row in rows] or [{}]:
            try:
                settings = study.settings_of(label, inside(space, values))
            except ValidationError:
                continue  # impossible with these values of the other settings
            if not settings.model_dump().get("replace"):
                continue
            if own and time.monotonic() - begun < SIZING_SECONDS:
                trainable.count_by_running(settings, label)
            elif not own:
                trainable.measure(settings, facts[label])


def inside(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with a value for each further setting that is searched beside them."""
    found = dict(values)
    for name, spec in space.ranges.items():
        if name not in found and space.is_active(name, found):
            found[name] = middle(spec)
    return found


def middle(spec: Range) -> Any:
    """Return a value in the middle of a range, on a log scale where it has one; of choices the middle one."""
    if isinstance(spec, Choices):
        return spec.choices[len(spec.choices) // 2]
    assert isinstance(spec, FloatRange | IntRange)
    low, high = spec.bounds
    target = math.sqrt(low * high) if spec.log else (low + high) / 2
    if isinstance(spec, IntRange):
        return low + math.floor((target - low) / (spec.step or 1) + 0.5) * (spec.step or 1)
    return target if spec.step is None else spec.at(spec.place(target))


def thinned(spec: Range) -> Choices:
    """Return a finite range with its lowest, middle and highest value alone; choices stay as they are."""
    if isinstance(spec, Choices):
        return spec
    grid = spec.grid() or ()
    return Choices(choices=tuple(dict.fromkeys((grid[0], grid[len(grid) // 2], grid[-1]))), when=spec.when)
