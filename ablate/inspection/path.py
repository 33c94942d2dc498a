"""The path from a search's baseline to its best trial, as a comparison that retrains it one setting at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from ablate.analysis import candidates, confirmed, metric_at, metric_values, pooled
from ablate.analysis.tables import reports_table, trials_table
from ablate.base.errors import RequestError, did_you_mean
from ablate.inspection.studies import Stored
from ablate.ledger import TrialRecord
from ablate.objectives import COST_METRICS, on_test, signed
from ablate.report.front.importance import search_importances, setting_labels
from ablate.report.numbers import printable
from ablate.study import VARIANT, Study, parse_study
from ablate.study.ranges import nested
from ablate.study.space import is_same
from ablate.study.yaml_text import read_yaml, write_yaml
from ablate.trial import TrialState

START = "start"
REPLICATES = 3  # of a study without confirmation
KEPT = ("trainable", "protocol", "seed", "scale")  # keys of the study's file that its path has too
Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One row of a path: its name, and the searched settings with their values at this step."""

    name: str
    values: Values


def path_file(found: Stored, *, begin: str | None = None, end: int | None = None, dataset: str | None = None) -> str:
    """Return the comparison file of a path, for `ablate compare`.

    `begin` is a trial's number or `start`, by default the first complete search trial; `end` is a trial's number, by
    default the best trial on the first objective: of the confirmed ones, if there are any. Raises RequestError if a
    trial does not exist, or if both have the same settings.
    """
    study = found.study
    if study.compare is not None:
        raise RequestError(f"study {study.name!r} is a comparison: a path is of a search")
    label = _dataset(study, dataset)
    trials = {t.key.number: t for t in found.snapshot.trials if t.key.dataset == label}
    first, last = _first(study, label, trials, begin), _last(found, label, trials, end)
    table = trials_table(found.snapshot)
    importance = search_importances(study, label, table, reports_table(found.snapshot))[0]
    order = [*importance.order, *(n for n in study.space_for(label).names() if n not in importance.order)]
    rows = steps(study, label, _searched(study, label, first), _searched(study, label, last), order)
    if len(rows) < 2:
        raise RequestError(
            f"study {study.name!r}, data set {label!r}: trials {first.key.number} and {last.key.number} have the same"
            " settings, so there is no path. Choose others with --from and --to"
        )
    reason = f"importance for {importance.metric} over {importance.trials} search trials, and is no more than an order"
    by = f"the file, because there is no importance: {importance.reason}" if importance.reason else reason
    header = [
        f"The path from trial {first.key.number} to trial {last.key.number} of study {study.name}, data set {label}.",
        "Each row keeps the settings of the row above and changes one more. A row with several settings has those that",
        f"cannot be changed alone. The order is by {by}.",
        "`ablate compare` trains every row anew, on the same seeds.",
    ]
    text = "".join(f"# {printable(line)}\n" for line in header) + write_yaml(_content(found, label, rows))
    parse_study(text, f"{study.name}-path")
    return text


def steps(study: Study, dataset: str, first: Values, last: Values, order: Sequence[str]) -> list[Step]:
    """Return the rows from `first` to `last`, one more setting changed in each, in `order`.

    A combination that is not in the space, that cannot be built, or that trains like the row above, is merged with the
    next setting. The last row has exactly the values of `last`.
    """
    rows = [Step(name="baseline", values=dict(first))]
    labels = setting_labels(study.space_for(dataset).names())
    changed: set[str] = set()
    waiting: list[str] = []
    for unit in _units(study, dataset, first, last, order):
        changed |= set(unit)
        waiting += [f"{labels[name]} {_text(last[name])}" for name in unit if name in last]
        values = {**{n: v for n, v in first.items() if n not in changed}, **{n: last[n] for n in changed if n in last}}
        if _trains_apart(study, dataset, values, rows[-1].values):
            rows.append(Step(name=", ".join(waiting), values=values))
            waiting = []
    if waiting and len(rows) > 1:
        rows[-1] = Step(name=", ".join([rows[-1].name, *waiting]), values=dict(last))
    return rows


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else printable(str(value))


def _units(study: Study, dataset: str, first: Values, last: Values, order: Sequence[str]) -> Iterator[list[str]]:
    """Yield the settings that differ, those together that one condition switches on or off."""
    ranges = study.space_for(dataset).ranges
    missing = object()
    differing = [n for n in order if not is_same(first.get(n, missing), last.get(n, missing))]
    unit = {name: name for name in differing}
    for name in ranges:  # each after those that its conditions name
        if name in unit and (name not in first or name not in last):
            for other in ranges[name].when:
                if other in unit:
                    kept, gone = unit[other], unit[name]
                    unit = {member: kept if head == gone else head for member, head in unit.items()}
    for head in dict.fromkeys(unit[name] for name in differing):
        members = [name for name in ranges if unit.get(name) == head]
        yield members


def _trains_apart(study: Study, dataset: str, values: Values, above: Values) -> bool:
    """Return whether a combination can be trained, and is another one than the row above."""
    if not study.space_for(dataset).contains(values):
        return False
    try:
        own, other = (study.settings_of(dataset, each).effective(None) for each in (values, above))
    except ValidationError:
        return False
    return own.model_dump_json() != other.model_dump_json()


def _content(found: Stored, dataset: str, rows: Sequence[Step]) -> dict[str, Any]:
    """Return the comparison's file as data."""
    study = found.study
    given, _ = read_yaml(found.record.file_text, study.name)
    measured = [o.metric for o in study.objectives if o.metric not in COST_METRICS]
    known = trials_table(found.snapshot).columns if study.protocol == "held_out" else ()
    tested = [on_test(metric) for metric in measured if on_test(metric) != metric and on_test(metric) in known]
    by_name: dict[Any, dict[str, Any]] = {row.name: row.given() for row in study.rows}
    variants = []
    for row in rows:
        own = by_name.get(row.values.get(VARIANT), {}) | {n: v for n, v in row.values.items() if n != VARIANT}
        variants.append({"name": row.name, **nested(own)})
    content = {
        "study": f"{study.study}-{dataset}-path"[-63:].lstrip("-_")
        if len(study.labels) > 1
        else f"{study.study[:58]}-path",
        **{key: given[key] for key in KEPT if key in given},
        "datasets": {dataset: study.datasets[dataset].model_dump(mode="json", exclude_unset=True)},
        **nested(study.fixed(dataset)),
        "variants": variants,
        "replicates": study.confirm.replicates if study.confirm is not None else REPLICATES,
        "compare": {"baseline": rows[0].name, "metrics": [*measured, *tested] or [study.objectives[0].metric]},
    }
    return dict(to_jsonable_python(content))


def _dataset(study: Study, dataset: str | None) -> str:
    labels = study.labels
    if dataset is None and len(labels) > 1:
        raise RequestError(
            f"study {study.name!r} has several data sets. Type --dataset to say which: {', '.join(labels)}"
        )
    if dataset is not None and dataset not in labels:
        raise RequestError(f"study {study.name!r} has no data set {dataset!r}. {did_you_mean(dataset, labels)}")
    return dataset or labels[0]


def _first(study: Study, dataset: str, trials: Mapping[int, TrialRecord], begin: str | None) -> TrialRecord:
    search = [trial for trial in trials.values() if trial.config.stage == "search"]
    if begin is not None and begin != START:
        if not begin.isdecimal():
            raise RequestError(f"--from {begin}: give the number of a trial, or {START}")
        return _numbered(study, trials, int(begin))
    if begin == START:
        given = study.start_of(dataset)
        if not given:
            raise RequestError(
                f"--from {START}: the file of study {study.name!r} has no `start` for data set {dataset!r}"
            )
        search = [t for t in search if all(is_same(t.config.parameters.get(n), v) for n, v in given[0].items())]
    else:
        search = [trial for trial in search if trial.state is TrialState.COMPLETE]
    if not search:
        raise RequestError(f"study {study.name!r}, data set {dataset!r}: there is no such trial yet to begin with")
    return min(search, key=lambda trial: trial.key.number)


def _last(found: Stored, dataset: str, trials: Mapping[int, TrialRecord], end: int | None) -> TrialRecord:
    if end is not None:
        return _numbered(found.study, trials, end)
    study, objective = found.study, found.study.objectives[0]
    table, _ = pooled(trials_table(found.snapshot), reports_table(found.snapshot))
    stage = "confirm" if confirmed(table).filter(pl.col("dataset") == dataset).height else "search"
    rows = candidates(table, study.objectives, dataset=dataset, stage=stage, constraints=study.constraints)
    if not rows.height:
        raise RequestError(f"study {study.name!r}, data set {dataset!r}: no complete trial keeps the constraints yet")
    values = metric_values(rows, metric_at(objective.metric, stage)).tolist()
    _, number = min((signed(objective, value), number) for value, number in zip(values, rows["trial"], strict=True))
    return trials[number]


def _numbered(study: Study, trials: Mapping[int, TrialRecord], number: int) -> TrialRecord:
    if number not in trials:
        raise RequestError(
            f"trial {number} of study {study.name!r}: there is no such trial. Numbers: 0 to {len(trials) - 1}"
        )
    return trials[number]


def _searched(study: Study, dataset: str, trial: TrialRecord) -> dict[str, Any]:
    ranges = study.space_for(dataset).ranges
    return {name: value for name, value in trial.config.parameters.items() if name in ranges}
