"""The data sets of a study as they are here, and metrics that no trial on them will report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ablate.base.errors import DataError, RequestError
from ablate.core.config import DatasetFacts
from ablate.core.trainable import load_trainable
from ablate.study import Study
from ablate.study.checks import unknown_metrics


def check_data(study: Study, data_dir: Path | None) -> dict[str, DatasetFacts]:
    """Return the facts of every data set; raise DataError or RequestError if one is missing or does not fit."""
    facts: dict[str, DatasetFacts] = {}
    missing: dict[str, str] = {}
    trainable = load_trainable(study.trainable)
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
    """Raise RequestError for metrics that the study asks for and no trial reports; with None only training tells."""
    if faults := [] if metrics is None else list(unknown_metrics(study, label, metrics)):
        raise RequestError("\n".join(f"{fault.rule} {fault.hint}" for fault in faults))
