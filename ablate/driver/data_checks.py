"""The data sets of a study as they are here, and metrics that no trial on them will report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ablate.base.errors import DataError, RequestError, did_you_mean
from ablate.core.config import DatasetFacts
from ablate.core.objectives import COST_METRICS, on_test
from ablate.driver.code import trainable_of
from ablate.study import Study


def check_data(study: Study, data_dir: Path | None) -> dict[str, DatasetFacts]:
    """Return the facts of every data set; raise DataError or RequestError if one is missing or does not fit."""
    facts: dict[str, DatasetFacts] = {}
    missing: dict[str, str] = {}
    trainable = trainable_of(study)
    for label in study.labels:
        trainable.check(study.given_for(label), confirms=study.opens_test or study.closes_on_test)
        task = study.datasets[label]
        try:
            trainable.check_data(task, data_dir)
        except DataError as error:
            missing[label] = str(error)
            continue
        facts[label] = trainable.find_facts(task, data_dir)
        refuse_unknown_metrics(study, label, trainable.metrics(task, facts[label]))
    if missing:
        here = " ".join(f"--dataset {label}" for label in facts) if study.compare is not None else ""
        hint = [f"To compare on those that are here: {here}"] if here else []
        raise DataError("\n".join([*dict.fromkeys(missing.values()), *hint]))
    return facts


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
