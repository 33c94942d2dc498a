"""A study's search trials as an Optuna storage: one SQLite file with one Optuna study for each data set."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import optuna
import polars as pl
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, distribution_to_json
from optuna.storages import RDBStorage
from optuna.storages._rdb import models  # the tables, which Optuna offers no bulk access to
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState
from sqlalchemy import StaticPool, func, select

from ablate.base.errors import RequestError
from ablate.base.files import make_folder, new_file
from ablate.core.objectives import SIZE_COLUMNS, constraint_text, means, quality_objective, violation
from ablate.core.trial import TrialState
from ablate.ledger import ReportRecord, TrialRecord
from ablate.results.front.front import objective_values
from ablate.results.trials.tables import cannot_write, trials_table
from ablate.studies.locations import Locations
from ablate.studies.stored import Stored, cover_datasets, read_study
from ablate.study import Study
from ablate.study.space import Choices, FloatRange, Range
from ablate.tuning.sampling.search_space import distribution_of

STUDY_MARK = "ablate.study"  # user attribute of each Optuna study: by it a later export knows that the file is its own
OPTUNA_FILE = "optuna.db"
DATASET_MARK = "ablate.dataset"
BIGGEST = sys.float_info.max


def export_optuna(name: str, locations: Locations, *, to: Path | None) -> tuple[Path, list[str]]:
    """Write study `name` and return the path of the file, and the names of the Optuna studies in it.

    `to` is by default in the study's home. Raises RequestError for a URL and if a file of another origin is there, and
    ResultsDownError if the disk cannot be written.
    """
    found = read_study(name, locations)
    if to is not None and to.parts[:1] == ("sqlite:",):
        raise RequestError(f"{to}: write the path of a file, such as {name}.db, and no URL")
    place = (to if to is not None else locations.make_home(name) / OPTUNA_FILE).absolute()
    make_folder(place.parent)
    try:
        return place, write_optuna(found, place)
    except OSError as error:
        raise cannot_write(str(place), error) from error


def write_optuna(found: Stored, file: Path) -> list[str]:
    """Write `file` with an Optuna study `STUDY/DATASET` for each data set, and return their names.

    The file is replaced as a whole. Raises RequestError if it exists and is not an earlier export of the study.
    """
    _refuse_foreign(file, found.study.name)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    in_memory = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    storage = RDBStorage("sqlite://", engine_kwargs=in_memory)
    study = cover_datasets(found.study, found.snapshot.trials)
    names = [_add_study(storage, study, dataset, found) for dataset in study.labels]
    storage.remove_session()
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = new_file(file.parent, file.name)
    os.close(descriptor)
    try:
        with closing(storage.engine.raw_connection()) as source, closing(sqlite3.connect(temporary)) as target:
            source.driver_connection.backup(target)  # type: ignore[union-attr]
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
        storage.engine.dispose()
    return names


def real_distribution(spec: Range) -> BaseDistribution:
    """Return the Optuna distribution of a range in the study's own values: its choices, bounds, step and log scale.

    Choices that Python takes for equal, such as 1 and true, are written as JSON.
    """
    if isinstance(spec, Choices):
        return CategoricalDistribution(tuple(real_value(spec, value) for value in spec.choices))
    if isinstance(spec, FloatRange) and spec.step is not None and (spec.count() or 1) > 1:
        return FloatDistribution(spec.bounds[0], spec.at((spec.count() or 1) - 1), step=spec.step)
    return distribution_of(spec)


def real_value(spec: Range, value: Any) -> Any:
    """Return a setting's value as `real_distribution` writes it."""
    return json.dumps(value) if isinstance(spec, Choices) and len({*spec.choices}) < len(spec.choices) else value


def _add_study(storage: RDBStorage, study: Study, dataset: str, found: Stored) -> str:
    name = f"{study.name}/{dataset}"
    made = optuna.create_study(
        storage=storage, study_name=name, directions=[objective.direction for objective in study.objectives]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        made.set_metric_names([objective.metric for objective in study.objectives])
    made.set_user_attr(STUDY_MARK, study.name)
    made.set_user_attr(DATASET_MARK, dataset)
    if study.constraints:
        made.set_user_attr("constraints", [constraint_text(each) for each in study.constraints])
    table = trials_table(found.snapshot).filter(pl.col("dataset") == dataset, pl.col("stage") == "search")
    values = objective_values(table, study.objectives, "search").tolist()
    own = (report for report in found.snapshot.reports if report.key.dataset == dataset)
    reports = {number: list(of_trial) for number, of_trial in groupby(own, lambda report: report.key.number)}
    trials = {trial.key.number: trial for trial in found.snapshot.trials if trial.key.dataset == dataset}
    ranges = study.space_for(dataset).ranges
    forms = {name: (spec, real_distribution(spec)) for name, spec in ranges.items()}
    distributions = {name: form for name, (_, form) in forms.items()}
    frozen = [
        _frozen(trials[row["trial"]], study, forms, row, objectives, reports.get(row["trial"], []))
        for row, objectives in zip(table.iter_rows(named=True), values, strict=True)
    ]
    _insert(storage, storage.get_study_id_from_name(name), frozen, distributions)
    return name


def _insert(
    storage: RDBStorage, study_id: int, trials: Sequence[FrozenTrial], forms: Mapping[str, BaseDistribution]
) -> None:
    """Add trials to an Optuna study in one transaction; `add_trials` sends several queries for each value of each."""
    rows: dict[Any, list[dict[str, Any]]] = {}
    texts = {name: distribution_to_json(form) for name, form in forms.items()}
    with storage.engine.begin() as connection:
        first = 1 + connection.execute(select(func.count()).select_from(models.TrialModel)).scalar_one()
        for number, trial in enumerate(trials):
            begun = {"number": number, "study_id": study_id, "state": trial.state}
            for model, row in [(models.TrialModel, begun | _times(trial)), *_rows(trial, texts)]:
                rows.setdefault(model, []).append(row | {"trial_id": first + number})
        for model, found in rows.items():
            connection.execute(model.__table__.insert(), found)


def _times(trial: FrozenTrial) -> dict[str, datetime | None]:
    """Return when a trial began and ended, in UTC without a zone, as Optuna's tables have it."""
    times = {"datetime_start": trial.datetime_start, "datetime_complete": trial.datetime_complete}
    return {name: when and when.astimezone(UTC).replace(tzinfo=None) for name, when in times.items()}


def _rows(trial: FrozenTrial, texts: Mapping[str, str]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the rows of a trial with their tables; `texts` are the distributions as JSON."""
    for objective, value in enumerate(trial.values or ()):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        yield models.TrialValueModel, {"objective": objective, "value": stored, "value_type": kind}
    for name, value in trial.params.items():
        inner = trial.distributions[name].to_internal_repr(value)
        yield models.TrialParamModel, {"param_name": name, "param_value": inner, "distribution_json": texts[name]}
    for key, value in trial.user_attrs.items():
        yield models.TrialUserAttributeModel, {"key": key, "value_json": json.dumps(value)}
    for key, value in trial.system_attrs.items():
        yield models.TrialSystemAttributeModel, {"key": key, "value_json": json.dumps(value)}
    for step, value in trial.intermediate_values.items():
        model = models.TrialIntermediateValueModel
        stored, sort = model.intermediate_value_to_stored_repr(value)
        yield model, {"step": step, "intermediate_value": stored, "intermediate_value_type": sort}


def _frozen(
    trial: TrialRecord,
    study: Study,
    forms: Mapping[str, tuple[Range, BaseDistribution]],
    row: Mapping[str, Any],
    values: Sequence[float],
    reports: Sequence[ReportRecord],
) -> FrozenTrial:
    """Return a trial as Optuna stores it; one that is COMPLETE without finite objectives is PRUNED there."""
    known = all(math.isfinite(value) for value in values)
    state = trial.state if known or trial.state is not TrialState.COMPLETE else TrialState.PRUNED
    searched = {name: value for name, value in trial.config.parameters.items() if name in forms}
    judged = state in (TrialState.COMPLETE, TrialState.PRUNED)
    begun = datetime.fromtimestamp(trial.started_at or trial.created_at)
    return FrozenTrial(
        number=trial.key.number,
        trial_id=-1,
        state=OptunaState[state],
        value=None,
        values=list(values) if judged and known else None,
        datetime_start=None if state is TrialState.WAITING else begun,
        datetime_complete=datetime.fromtimestamp(trial.finished_at or trial.created_at) if state.finished else None,
        params={name: real_value(forms[name][0], value) for name, value in searched.items()},
        distributions={name: forms[name][1] for name in searched},
        user_attrs=_user_attrs(trial, row),
        system_attrs={"constraints": _violations(study, row)} if judged and study.constraints else {},
        intermediate_values=_curve(quality_objective(study.objectives).metric, reports),
    )


def _violations(study: Study, row: Mapping[str, Any]) -> list[float]:
    """Return by how much each constraint is violated, in the order of the file: Optuna and its dashboard read this."""
    found = [row.get(each.metric) for each in study.constraints]
    values = [math.nan if value is None else float(value) for value in found]
    gaps = [violation(each, value) for each, value in zip(study.constraints, values, strict=True)]
    return [min(max(gap, -BIGGEST), BIGGEST) for gap in gaps]  # an infinity is no JSON


def _user_attrs(trial: TrialRecord, row: Mapping[str, Any]) -> dict[str, Any]:
    named = ("variant", "error", "mlflow_run_id", "epochs", "max_epochs", "attempt", "wall_seconds", *SIZE_COLUMNS)
    fixed = {"trial": trial.key.number, "state": str(trial.state), "seeds": list(trial.config.seeds)}
    return {**trial.size, **fixed, **{name: row[name] for name in named if row[name] is not None}}


def _curve(metric: str, reports: Iterable[ReportRecord]) -> dict[int, float]:
    """Return a metric by epoch: its means over replicates."""
    found = {n: means([report.metrics for report in own]) for n, own in groupby(reports, lambda report: report.epoch)}
    return {epoch: values[metric] for epoch, values in found.items() if metric in values}


def _refuse_foreign(file: Path, study: str) -> None:
    """Raise RequestError unless `file` is absent or holds nothing but an export of `study`."""
    if not file.exists() and not file.is_symlink():
        return
    wanted = "SELECT study_name, value_json FROM studies LEFT JOIN study_user_attributes AS a"
    query = f"{wanted} ON a.study_id = studies.study_id AND a.key = '{STUDY_MARK}'"
    owners: set[str] = set()
    with suppress(sqlite3.Error, ValueError):
        if file.is_file():  # a pipe would be waited for
            with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                owners = {json.loads(mark or "null") for _, mark in connection.execute(query)}
    if owners != {study} or file.is_symlink():
        raise RequestError(
            f"--to {file}: there is a file that is no export of study {study!r}, and it is kept. Choose another name,"
            " or move it away."
        )
