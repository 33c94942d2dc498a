"""Hypervolume of a front, with its reference point and the rule that derived it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import moocore
import numpy as np
import polars as pl
from numpy.typing import NDArray

from ablate.core.objectives import loss, losses, signed
from ablate.results.front.front import candidates, front_stage, metric_at, metric_values, objective_values

if TYPE_CHECKING:
    from ablate.study.sections import Constraint, Objective

LARGEST_POWER = 300.0  # of ten, for a reference under a logarithm
MARGIN = 0.1  # share of the range by which a derived reference exceeds the worst value


@dataclass(frozen=True, kw_only=True)
class Hypervolume:
    """The hypervolume of one data set's front, and how it was computed.

    `value` is in the product of the axes' units (decades on log axes), NaN if there is no front. `reference` is in
    each metric's own unit; `derived` names the metrics whose reference was not declared in the study file.
    """

    value: float
    reference: Mapping[str, float]
    derived: tuple[str, ...]
    log_axes: tuple[str, ...]

    @property
    def rule(self) -> str:
        """Return one or two sentences that explain how the value was computed."""
        axes = f"With {', '.join(self.log_axes)} in log10, against" if self.log_axes else "Against"
        points = ", ".join(f"{metric} = {value:.6g}" for metric, value in self.reference.items())
        text = f"{axes} the reference point {points}"
        if not self.derived:
            return f"{text}, as the study file declares."
        return (
            f"{text}. The study file declares no reference for {', '.join(self.derived)}, so there it is the worst "
            f"value of any complete trial moved outwards by {MARGIN:.0%} of the range: comparable within this data "
            "set's trials, not between studies."
        )


def hypervolume(
    table: pl.DataFrame, objectives: Sequence[Objective], *, constraints: Sequence[Constraint] = ()
) -> Hypervolume:
    """Return the hypervolume of the front of one data set (the rows of one `dataset`).

    Axes with `log: true` count in log10. Points beyond the reference add nothing. Raises ValueError for several data
    sets, and for a log axis with a reference that is not positive.
    """
    datasets = table["dataset"].unique().to_list()
    if len(datasets) > 1:
        raise ValueError(f"a hypervolume belongs to one data set, got {', '.join(sorted(datasets))}")
    reference, derived = reference_point(table, objectives)
    log_axes = tuple(objective.metric for objective in objectives if objective.log)
    value = math.nan
    if datasets and objectives:
        stage = front_stage(table, datasets[0])
        rows = candidates(table, objectives, dataset=datasets[0], stage=stage, constraints=constraints)
        values = objective_values(rows, objectives, stage)
        value = dominated_volume(values, objectives, [reference[o.metric] for o in objectives])
    return Hypervolume(value=value, reference=reference, derived=derived, log_axes=log_axes)


def dominated_volume(values: NDArray[np.float64], objectives: Sequence[Objective], reference: Sequence[float]) -> float:
    """Return the volume between `values` [n, m] and `reference` [m], NaN without points."""
    if not len(values) or not np.isfinite(reference).all():
        return math.nan
    scaled = np.array([losses(objectives, row) for row in values.tolist()])
    corner = np.array(losses(objectives, reference))
    return float(moocore.hypervolume(scaled[~np.isnan(scaled).any(axis=1)], ref=corner))  # it does not end with NaN


def reference_point(table: pl.DataFrame, objectives: Sequence[Objective]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the reference per metric and the names of those derived from the complete trials of both stages."""
    complete = table.filter(pl.col("state") == "COMPLETE")
    reference, derived = {}, []
    for objective in objectives:
        if objective.reference is not None:
            reference[objective.metric] = float(objective.reference)
            continue
        derived.append(objective.metric)
        reference[objective.metric] = _derived_reference(complete, objective)
    return reference, tuple(derived)


def _derived_reference(complete: pl.DataFrame, objective: Objective) -> float:
    parts = [
        metric_values(complete.filter(pl.col("stage") == stage), metric_at(objective.metric, stage))
        for stage in ("search", "confirm")
    ]
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    if not len(values):
        return math.nan
    scaled = np.array([loss(objective, value) for value in values.tolist()])
    spread = float(scaled.max() - scaled.min())
    corner = float(scaled.max()) + MARGIN * (spread or max(abs(float(scaled.max())), 1.0))
    corner = signed(objective, corner)
    return float(10 ** min(max(corner, -LARGEST_POWER), LARGEST_POWER)) if objective.log else corner
