"""Sizes of a user's networks: what `size(config)` tells, or else what running the function up to its loop tells."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ablate.base.errors import RequestError, did_you_mean
from ablate.base.plain_text import counted
from ablate.core.config import Counted, DatasetFacts, NoSize, TrainableSettings
from ablate.core.objectives import COST_METRICS
from ablate.core.registry import TRAINABLES
from ablate.core.trainable import Trainable
from ablate.study import VARIANT, Study
from ablate.study.sections import METRIC_RULE, is_named
from ablate.study.space import Choices, FloatRange, IntRange, Range, Space
from ablate.tuning.sampling.twins import Measure, TwinSizes

ADD_SIZE = "add `size(config)` beside {name}, and the search knows the size of every candidate"
PROBED = 32  # values of a setting with which `size` is asked before a study begins
SIZING_SECONDS = 5.0  # after this, no further network of a user's function is sized by running the function
STOPPED = f"sizes are blank where {SIZING_SECONDS:g} s were over: the code before the loop runs once for each network"


def told_sizes(study: Study, trainable: Trainable, facts: Mapping[str, DatasetFacts]) -> dict[str, Any] | None:
    """Return the payload of the event KNOWN_SIZES: which metrics `size(config)` tells, and how; None for the family.

    `size` is asked with several values of each searched setting. A campaign judges other code than the one that would
    be asked, so nothing is known for it. Raises RequestError for a fault of `size`; of a search it may raise for some.
    """
    if study.trainable in TRAINABLES.names():
        return None
    found = dict[str, float]()
    for label in study.labels if study.campaign is None else ():
        sizes = trainable.measure(list(_probes(study, label)), facts[label])
        faults = [size.fault for size in sizes if isinstance(size, NoSize)]
        if faults and (study.compare is not None or len(faults) == len(sizes)):
            raise RequestError(f"trainable {study.trainable!r}: {faults[0]}")
        found = found or next((dict(size) for size in sizes if size and not isinstance(size, NoSize)), {})
    form = trainable.size_form()
    return {"metrics": sorted(found), "settings": sorted(form.settings), "builds": form.builds}


def unsized_notes(
    study: Study, trainable: Trainable, facts: Mapping[str, DatasetFacts], listed: Iterable[TrainableSettings] = ()
) -> Iterator[str]:
    """Yield a line for each data set of a search where `size` raises for a probed or `listed` configuration.

    No row of a comparison is left out: RequestError.
    """
    for label in study.labels if study.counted else ():
        asked = {each.model_dump_json(): each for each in (*_probes(study, label), *listed)}
        sizes = trainable.measure([*asked.values()], facts[label])
        if faults := [size.fault for size in sizes if isinstance(size, NoSize)]:
            if study.compare is not None:
                raise RequestError(f"trainable {study.trainable!r}: {faults[0]}")
            raises = f"`size` raises for {len(faults)} of {counted(len(sizes), 'configuration')} that were tried"
            yield study.said_of(label, f"{raises}; such ones are never trained: {faults[0]}")


def _probes(study: Study, label: str) -> Iterator[TrainableSettings]:
    """Yield settings in the middle of the space, and those with one value changed."""
    space = study.space_for(label)
    points: list[dict[str, Any]] = [{}]
    for name, spec in space.ranges.items():
        others = {other: allowed[0] for other, allowed in spec.when.items()}
        values = spec.bounds if isinstance(spec, FloatRange) else (spec.grid() or ())
        stride = -(-len(values) // PROBED)
        points += [{**others, name: value} for value in (*values[::stride], values[-1])]
    for point in points:
        with suppress(ValidationError):  # impossible beside the middle values of the others
            yield study.settings_of(label, inside(space, point))


def require_told(study: Study) -> None:
    """Raise RequestError if the study declares a cost that its function's `size` does not tell."""
    declared = [*(each.metric for each in study.objectives), *(each.metric for each in study.constraints)]
    for metric in declared:
        if not is_named(metric) and metric not in study.counted:
            told = f"which returns {', '.join(study.counted)}" if study.counted else "which is not there"
            rule = f"{METRIC_RULE}, or is a cost that `size(config)` beside {study.trainable} returns, {told}"
            raise RequestError(f"{metric!r}: {rule}. {did_you_mean(metric, [*COST_METRICS, *study.counted])}")


def require_same_sizes(recorded: Mapping[str, Any], told: Mapping[str, Any], name: str) -> None:
    """Raise RequestError if `size` tells other metrics than when the study began, although no code has changed."""
    if set(recorded["metrics"]) != set(told["metrics"]):
        before, now = (", ".join(each["metrics"]) or "nothing" for each in (recorded, told))
        raise RequestError(f"trainable {name!r}: size(config) gives {now}, and gave {before} when the study began")


def measuring(study: Study, trainable: Trainable) -> Measure:
    """Return what a search asks for sizes: the trainable, or nothing where it tells none."""
    return trainable.measure if study.counted else lambda settings, facts: [{} for _ in settings]


@dataclass(kw_only=True)
class OwnSizes:
    """Counts the parameters of one data set's networks by running the user's function, for as long as a plan may take.

    `twins` makes settings of values. `notes` are the reasons for unknown sizes. `stopped`: a network was not sized
    because the time was over.
    """

    twins: TwinSizes
    trainable: Trainable
    notes: list[str] = field(default_factory=list)
    stopped: bool = False
    _begun: float = field(default_factory=time.monotonic)
    _known: dict[str, int | None] = field(default_factory=dict)

    def params(self, values: Mapping[str, Any]) -> int | None:
        """Return the parameters of a configuration; settings that `values` lacks take a value inside their range."""
        label = self.twins.dataset
        settings = self.twins.settings_of(inside(self.twins.study.space_for(label), values))
        key = settings.model_dump_json()
        if key in self._known:
            return self._known[key]
        found, left = Counted(note=STOPPED), SIZING_SECONDS + self._begun - time.monotonic()
        with suppress(TimeoutError):
            found = self.trainable.count_by_running(settings, label, left) if left > 0 else found
        self.stopped = self.stopped or found.note == STOPPED
        self._known[key] = found.params
        if found.note and found.note not in self.notes:
            self.notes.append(found.note)
        return found.params

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
                trainable.measure([settings], facts[label])


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
