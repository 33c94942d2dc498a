"""Ranges whose end the best trials of a search are at, so that better settings may lie beyond it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
import scipy

from ablate.core.objectives import quality_objective, ranked
from ablate.results.front.front import candidates, column_of
from ablate.results.front.tables import other_objectives
from ablate.results.trials.tables import searched_values
from ablate.study import Study
from ablate.study.space import FloatRange, IntRange

NEAR = 1 / 20  # share of a range, on its scale, that counts as its end
BEST, FEWEST = 1 / 4, 6  # share of the complete trials that are the best, and how many at least
FEWEST_THERE = 3  # of the best at an end, below which it is not named
LEVEL = 0.02  # chance that any end of a data set is named if trials are drawn evenly and no setting matters


@dataclass(frozen=True, kw_only=True)
class RangeEnd:
    """An end of a setting's range: `trials` of the `best` trials that have the setting are at it."""

    setting: str
    direction: str
    trials: int
    best: int
    limit: str = ""  # words on an end that may be a limit of the setting itself


@dataclass(frozen=True, kw_only=True)
class RangeEnds:
    """The ends that the best trials are at: `at_end` trials of the `best`, and `own` of the best's `ranges`."""

    ends: tuple[RangeEnd, ...]
    at_end: int
    best: int
    own: int
    ranges: int

    @property
    def text(self) -> str:
        """What is at an end, and which range to widen in which direction; empty if nothing is."""
        several = len(self.ends) > 1
        named = [
            f"`{end.setting}` {end.direction}{f' ({end.trials})' if several else ''}{end.limit}" for end in self.ends
        ]
        text = f"{self.at_end} of the best {self.best} trials and {self.own} of {self.ranges} settings of the best are"
        return f"{text} within a twentieth of the end of their range: widen {', '.join(named)}" if named else ""

    def values(self) -> dict[str, Any] | None:
        """Return it as plain values, None if nothing is at an end."""
        return {"text": self.text, "ends": [asdict(end) for end in self.ends]} if self.ends else None


def range_ends(study: Study, trials: pl.DataFrame, dataset: str) -> RangeEnds:
    """Return the ends of ranges at which more of the best search trials are than chance explains.

    The best are a quarter of the complete trials that keep the constraints, FEWEST at least: with several objectives
    those of the first fronts. An end is the twentieth of a range on its scale; of whole numbers and steps, the values
    in it, the last one at least. Choices have no end. If trials are drawn evenly, a setting that does not matter is at
    an end in a known share of trials. An end is named if a binomial test refutes that at LEVEL, Bonferroni over ends.
    """
    space = study.space_for(dataset)
    ranges = {n: r for n, r in space.ranges.items() if isinstance(r, FloatRange | IntRange) and r.ends[0] < r.ends[1]}
    rows = candidates(trials, study.objectives, dataset=dataset, stage="search", constraints=study.constraints)
    values = searched_values(rows[_best(study, rows)], space)
    tail = Counter(name.rsplit(".", 1)[-1] for name in ranges)
    found, held = [], set[int]()
    for name, spec in ranges.items():
        short = name.rsplit(".", 1)[-1]
        places = {place: own[name] for place, own in enumerate(values) if name in own}
        for upper in (False, True):
            there = [place for place, value in places.items() if _is_near(spec, value, upper=upper)]
            p = scipy.special.bdtrc(len(there) - 1, len(places), _chance(spec, upper=upper)) if there else 1.0
            if len(there) >= FEWEST_THERE and p <= LEVEL / (2 * len(ranges)):
                held.update(there)
                found.append(
                    RangeEnd(
                        setting=short if tail[short] == 1 else name,
                        direction="upwards" if upper else "downwards",
                        trials=len(there),
                        best=len(places),
                        limit=_limit(spec, upper=upper),
                    )
                )
    best: Mapping[str, Any] = values[0] if values else {}
    own = {name: spec for name, spec in ranges.items() if name in best}
    near = [any(_is_near(spec, best[name], upper=upper) for upper in (False, True)) for name, spec in own.items()]
    found.sort(key=lambda end: -end.trials)
    return RangeEnds(ends=tuple(found), at_end=len(held), best=len(values), own=sum(near), ranges=len(own))


def _best(study: Study, rows: pl.DataFrame) -> list[int]:
    """Return the places of the best rows, the best first: by front, then by the quality."""
    objectives = (quality_objective(study.objectives), *other_objectives(study))
    places = ranked(objectives, (), rows["state"].to_list(), column_of(rows, "search"))
    return places[: max(math.ceil(BEST * rows.height), FEWEST)]


def _limit(spec: FloatRange | IntRange, *, upper: bool) -> str:
    low, high = spec.ends
    if low == 0 and not upper:
        return ", if it may be below 0"
    return ", if it may be above 1" * (high == 1 and low >= 0 and upper and isinstance(spec, FloatRange))


def _is_near(spec: FloatRange | IntRange, value: float, *, upper: bool) -> bool:
    """Return whether a value is in the twentieth of its range at the upper or the lower end."""
    low, high = (_scaled(spec, end) for end in spec.ends)
    share = (_scaled(spec, value) - low) / (high - low)
    return (1 - share if upper else share) <= NEAR + 1e-9


def _chance(spec: FloatRange | IntRange, *, upper: bool) -> float:
    """Return the share of trials at an end if they are drawn evenly on the scale of the range.

    Values with steps are drawn with half a step to either side, as samplers do.
    """
    step = spec.step or (1 if isinstance(spec, IntRange) else 0)
    if not step:
        return NEAR
    low, high = spec.ends
    reach = NEAR * (high - low)
    if spec.log:
        reach = high - high * (low / high) ** NEAR if upper else low * (high / low) ** NEAR - low
    inside = math.floor(reach / step + 1e-9) + 0.5  # steps up to the edge of the end
    edges = (high - inside * step, high + step / 2) if upper else (low - step / 2, low + inside * step)
    first, last, start, stop = (_scaled(spec, edge) for edge in (*edges, low - step / 2, high + step / 2))
    return (last - first) / (stop - start)


def _scaled(spec: FloatRange | IntRange, value: float) -> float:
    return math.log(value) if spec.log else float(value)
