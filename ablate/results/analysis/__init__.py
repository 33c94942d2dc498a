"""Analysis of trials: fronts, hypervolume, curves and intervals, as pure functions of polars tables.

All functions read tables of `ablate.results.analysis.tables` (or any with the same columns) and draw nothing.
"""

from __future__ import annotations

from ablate.core.objectives import quality_objective
from ablate.results.analysis.confirmation import Confirmations, confirmations
from ablate.results.analysis.fits import CurveFit, fit_curve
from ablate.results.analysis.front import (
    candidates,
    confirmed,
    cost_metric,
    front,
    front_stage,
    metric_at,
    metric_values,
    objective_values,
)
from ablate.results.analysis.hypervolume import Hypervolume, dominated_volume, hypervolume, reference_point
from ablate.results.analysis.intervals import (
    Interval,
    metric_interval,
    natural_bounds,
    outlying,
    smallest_effect,
    t_interval,
)
from ablate.results.analysis.pooling import pooled

__all__ = [
    "Confirmations",
    "CurveFit",
    "Hypervolume",
    "Interval",
    "candidates",
    "confirmations",
    "confirmed",
    "cost_metric",
    "dominated_volume",
    "fit_curve",
    "front",
    "front_stage",
    "hypervolume",
    "metric_at",
    "metric_interval",
    "metric_values",
    "natural_bounds",
    "objective_values",
    "outlying",
    "pooled",
    "quality_objective",
    "reference_point",
    "smallest_effect",
    "t_interval",
]
