"""Metrics of a study file that no trial will report."""

from __future__ import annotations

from collections.abc import Sequence

from ablate.base.errors import RequestError, did_you_mean
from ablate.core.objectives import COST_METRICS, on_test
from ablate.study import Study


def refuse_unknown_metrics(study: Study, label: str, metrics: Sequence[str] | None) -> None:
    """Raise RequestError for an objective, a constraint or a compared metric that is not among `metrics`.

    A confirmation needs them on the test split too, where the trainable names its metrics of that split.
    With `metrics=None` only training tells.
    """
    if metrics is None:
        return
    known = [*COST_METRICS, *metrics]
    compared = study.compare.metrics if study.compare is not None else ()
    objectives = [objective.metric for objective in study.objectives]
    names_tests = any(name.startswith("test_") for name in metrics)
    tested = () if names_tests else [on_test(name) for name in known]
    for metric in [*objectives, *(c.metric for c in study.constraints), *compared]:
        if metric not in known and not (metric in compared and metric in tested):
            raise RequestError(f"data set {label!r} has no metric {metric!r}. {did_you_mean(metric, known)}")
    if names_tests and study.confirm is not None:
        for metric in study.tested_metrics:
            if metric not in known:
                rule = f"a confirmation reads objectives and constraints on the test split; no metric is {metric!r}"
                raise RequestError(f"data set {label!r}: {rule}. {did_you_mean(metric, known)}")
