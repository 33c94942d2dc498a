"""The axes of slices and parallel coordinates: where a value lies, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ablate.core.objectives import is_cost, is_maximized, is_share
from ablate.results.rendering.drawing import rounded
from ablate.results.rendering.numbers import compact, printable, spell_metric
from ablate.study import Study
from ablate.study.space import Choices, FloatRange, IntRange, Range, texts_of

MOST_LABELS, LONGEST_LABEL = 8, 14
WORST = 0.1  # share of the trials beyond the worse end of an objective's axis


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis: the ends of its scale, or its choices with their texts. Shares are in percent."""

    title: str
    ends: tuple[float, float] = (0.0, 1.0)
    log: bool = False
    spec: Choices | None = None
    texts: tuple[str, ...] = ()
    factor: float = 1.0

    def shown(self, value: Any) -> Any:
        """Return a value as figures hold it."""
        return rounded(self.factor * float(value)) if self.spec is None else self.texts[self.spec.index(value)]

    def text(self, value: Any) -> str:
        """Return a value as a reader sees it."""
        return compact(self.factor * float(value)) if self.spec is None else self.texts[self.spec.index(value)]

    def position(self, value: Any) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high one; values beyond an end lie at it."""
        if self.spec is not None:
            return self.spec.index(value) / max(len(self.texts) - 1, 1)
        low, high, at = (math.log(v) if self.log else v for v in (*self.ends, self._within(value)))
        return (at - low) / (high - low) if high > low else 0.5

    def labels(self) -> list[tuple[float, str]]:
        """Return position and text of the labels: both ends, or each choice where they are few."""
        if self.spec is None:
            return [(0.0, compact(self.ends[0])), (1.0, compact(self.ends[1]))]
        last = max(len(self.texts) - 1, 1)
        places = range(len(self.texts)) if len(self.texts) <= MOST_LABELS else (0, last)
        return [(place / last, shortened(self.texts[place])) for place in places]

    def _within(self, value: Any) -> float:
        return min(max(self.factor * float(value), self.ends[0]), self.ends[1])


def shortened(text: str) -> str:
    """Return a label of at most LONGEST_LABEL characters."""
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"


def setting_axis(spec: Range, title: str) -> Axis:
    """Return the axis of a searched setting: its range on its scale, or its choices in the file's order."""
    if isinstance(spec, Choices):
        return Axis(title=title, spec=spec, texts=tuple(map(printable, texts_of(spec.choices))))
    assert isinstance(spec, FloatRange | IntRange)
    return Axis(title=title, ends=spec.bounds, log=spec.log)


def objective_axis(study: Study, metric: str, values: Sequence[float]) -> Axis:
    """Return the axis of an objective over `values`, at least one of them finite.

    A bad trial would flatten the figure, so the axis of a measured metric ends where the worst tenth begins.
    """
    objective = next(each for each in study.objectives if each.metric == metric)
    factor = 100.0 if is_share(metric) else 1.0
    found = [factor * value for value in values if math.isfinite(value)]
    low, high = min(found), max(found)
    if not is_cost(metric):
        maximized = is_maximized(objective)
        low, high = (
            (float(np.quantile(found, WORST)), high) if maximized else (low, float(np.quantile(found, 1 - WORST)))
        )
    title = spell_metric(metric) + (" in %" if is_share(metric) else "")
    return Axis(title=title, ends=(rounded(low), rounded(high)), log=objective.log and rounded(low) > 0, factor=factor)
