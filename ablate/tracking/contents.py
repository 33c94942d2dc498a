"""The contents of a trial's MLflow run, computed from the ledger's records alone (pure; MLflow is not imported)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from itertools import groupby
from typing import Any

from ablate.base.plain_text import one_printable_line, settings_text
from ablate.core.config import leaves
from ablate.core.objectives import constraint_text, means, on_test, ranked
from ablate.core.trial import TrialConfig, TrialKey, TrialState
from ablate.ledger import ReportRecord, StudyRecord, TrialRecord, counted_reports
from ablate.study import VARIANT, Study

VALUE_LIMIT = 6000  # characters of a parameter, the smaller of MLflow's two limits
KEY_LIMIT = 250
RANK = "ablate.rank"
NAME_LIMIT = 100  # of a run: a page shows no more of it
# A trial stopped early ended as planned but before its full length. It must not be among the finished runs that
# MLflow's tables compare, so it is KILLED, as in Optuna's MLflow callback. SCHEDULED is a trial that will continue.
STATUS = {
    TrialState.WAITING: "SCHEDULED",
    TrialState.RUNNING: "RUNNING",
    TrialState.COMPLETE: "FINISHED",
    TrialState.PRUNED: "KILLED",
    TrialState.FAIL: "FAILED",
}
_FORBIDDEN = re.compile(r"[^\w\-. /]", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value of one metric; `timestamp` in milliseconds since the UTC epoch."""

    key: str
    value: float
    timestamp: int
    step: int


def milliseconds(seconds: float) -> int:
    """Return a ledger's time in MLflow's unit."""
    return int(seconds * 1000)


def study_id(record: StudyRecord) -> str:
    """Return an id that distinguishes a study from others of the same name on the same MLflow server."""
    text = json.dumps([record.name, record.seed, record.created_at])
    return blake2b(text.encode(), digest_size=8).hexdigest()


def study_tags(record: StudyRecord, dataset: str) -> dict[str, str]:
    """Return the tags that identify the parent run of `dataset`."""
    return {
        "ablate.study_id": study_id(record),
        "ablate.study": record.name,
        "ablate.dataset": dataset,
        "ablate.kind": "study",
    }


def study_parameters(study: Study, dataset: str) -> dict[str, str]:
    """Return the settings of the study file that may not change, by dotted name, without the searched axes."""
    unsaid = dict.fromkeys(("study", "datasets", "model", "training", "variants"), True)
    said = study.model_dump(mode="json", exclude={**unsaid, **_changeable(study)})
    task = study.datasets[dataset].model_dump(mode="json")
    named = {"study": study.name, "dataset": dataset, **leaves({"task": task, **said})}
    return {key_of(name): _text(value) for name, value in named.items()}


def study_note(study: Study) -> dict[str, str]:
    """Return tags of what a resumed study may change: budget, confirmation, further seeds, runs of candidates."""
    said = study.model_dump(mode="json", include=_changeable(study))
    return {f"ablate.{name}": _text(value) for name, value in said.items()}


def _changeable(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {"budget": True, "confirm": True}
    found |= {"replicates": True} if study.compare is not None else {}
    return found | ({"campaign": {"runs", "effort"}} if study.campaign is not None else {})


def trial_tags(record: TrialRecord, study: StudyRecord) -> dict[str, str]:
    """Return the tags that identify a trial's run, and those that never change."""
    config = record.config
    tags = {
        **study_tags(study, config.key.dataset),
        "ablate.kind": "trial",
        "ablate.trial": str(config.key.number),
        "ablate.stage": config.stage,
        "ablate.network": f"{network(config)[2]:04d}",
    }
    if config.variant is not None:
        tags["ablate.variant"] = config.variant
    if config.source is not None:
        tags["ablate.source"] = str(config.source)
    return tags


def changing_tags(record: TrialRecord) -> dict[str, str]:
    """Return the tags that change with a trial's progress."""
    tags = {
        "ablate.state": str(record.state),
        "ablate.attempt": str(record.attempt),
        "mlflow.note.content": cut(one_printable_line(state_text(record))),
    }
    if record.error is not None:
        tags["ablate.error"] = cut(record.error)
    return tags


def state_text(record: TrialRecord) -> str:
    """Return a trial's state in words: MLflow's column of descriptions shows it."""
    config = record.config
    epochs = f"{record.epochs_done} of {config.epochs} epochs"
    said = {
        TrialState.PRUNED: f"stopped early, {epochs}",
        TrialState.FAIL: f"failed: {(record.error or epochs).partition(chr(10))[0]}",
        TrialState.WAITING: f"waiting, {epochs}",
        TrialState.RUNNING: f"running, {epochs}",
    }.get(record.state, "complete")
    if config.source is None:
        return f"{said}, tunes {config.variant}" if config.stage == "tune" else said
    does = "confirms" if config.stage == "confirm" else "further seeds of"
    seeds = f"{len(config.seeds)} seed{'s' * (len(config.seeds) > 1)}"
    return f"{said}, {does} trial {config.source} on {seeds}"


def study_note_text(study: Study) -> str:
    """Return what a study asks, for the description of its experiment."""
    objectives = ", ".join(f"{each.direction} {each.metric}" for each in study.objectives)
    kept = "".join(f", {constraint_text(each)}" for each in study.constraints)
    return f"ablate study {study.name}: {objectives}{kept}. Results and front: ablate status {study.name}"


def run_name(config: TrialConfig, *, several: bool) -> str:
    """Return the name of a trial's run, by which trials sort: `0012 · QKV · width 50 · learning rate 0.0057`.

    A confirmation follows the trial that it confirms: `0012 confirmed by 0040`, others are `0012 more seeds 0060` and
    `0012 tested by 0070`, a tuning trial is `0012 tuning`. With `several` data sets, theirs comes first.
    """
    number = f"{config.key.number:04d}"
    if config.source is not None:
        does = "confirmed by" if config.stage == "confirm" else "more seeds"
        named = f"{config.source:04d} {does}" if config.evaluates is None else f"{config.evaluates:04d} tested by"
        parts = [f"{named} {number}", config.variant or ""]
    else:
        searched = [name for name in config.parameters if name != VARIANT]
        number = f"{number} tuning" if config.stage == "tune" else number
        parts = [number, config.variant or "", settings_text(config.parameters, searched)]
    name = " · ".join(part for part in parts if part)
    return cut(f"{config.key.dataset} {name}" if several else name, NAME_LIMIT)


def trial_parameters(config: TrialConfig) -> dict[str, str]:
    """Return the settings that a trial's training reads, by dotted name (`model.width`); values are text or JSON."""
    trial = {
        "dataset": config.key.dataset,
        "stage": config.stage,
        "protocol": config.protocol,
        "study_seed": config.study_seed,
        "seeds": list(config.seeds),
    }
    task = leaves({"task": config.task.model_dump(mode="json")})
    read = config.settings.described(config.parameters.keys())
    applying = {name: value for name, value in {**trial, **read, **task}.items() if value not in (None, {})}
    every = {**trial, **leaves(config.settings.model_dump(mode="json")), **task}
    chosen = {name: value for name, value in config.parameters.items() if name not in every}
    return {key_of(name): _text(value) for name, value in {**applying, **chosen}.items()}


def size_points(record: TrialRecord) -> list[Point]:
    """Return what was known of a trial before training, and Q = K M / P, all at step 0."""
    known = {name: float(value) for name, value in {**record.size, "q": record.q}.items() if value is not None}
    when = milliseconds(record.created_at)
    return [Point(key=key_of(name), value=value, timestamp=when, step=0) for name, value in known.items()]


def report_points(reports: Sequence[ReportRecord]) -> list[Point]:
    """Return the metrics of each epoch, ordered by epoch: means over replicates, and `wall_seconds`.

    With several replicates each one is also returned, as `metric/replicate_0`. `reports` are one trial's, ordered by
    epoch and replicate. The step is the epoch, the time that of the commit, so that recomputed points are equal.
    """
    points: list[Point] = []
    for epoch, group in groupby(reports, key=lambda r: r.epoch):
        rows = list(group)
        when = milliseconds(rows[0].created_at)
        values = {"wall_seconds": rows[0].wall_seconds, **_metrics(rows)}
        points += [Point(key=key_of(key), value=value, timestamp=when, step=epoch) for key, value in values.items()]
    return points


def counted_points(record: TrialRecord, reports: Sequence[ReportRecord]) -> list[Point]:
    """Return the metrics of the report that counts as the last point of each, if an earlier one than the last counts.

    A tracker shows the last point as the run's value. `reports` are all of a trial; none is returned for one that is
    neither COMPLETE nor PRUNED.
    """
    valued = record.state in (TrialState.COMPLETE, TrialState.PRUNED)
    counted = counted_reports(record.config, reports) if valued else []
    if not counted or counted[0].epoch == reports[-1].epoch:
        return []
    step, when = reports[-1].epoch, milliseconds(record.finished_at or reports[-1].created_at) + 1
    points = (point for point in report_points(counted) if point.key != "wall_seconds")
    return [replace(point, step=step, timestamp=when) for point in points]


def rank_points(study: Study, trials: Sequence[TrialRecord], reports: Sequence[ReportRecord]) -> dict[TrialKey, Point]:
    """Return the place from 1 of each ended trial of a data set, as metric RANK: confirmed networks, then `ranked`.

    `reports` are those of the trials. The step is the number of ended trials, the time the end of the last one.
    """
    ended = [trial for trial in trials if trial.state.finished]
    rows = {key: list(group) for key, group in groupby(reports, key=lambda r: r.key)}
    values: list[dict[str, float]] = []
    for trial in ended:
        counted = means([row.metrics for row in counted_reports(trial.config, rows.get(trial.key, []))])
        values.append({**counted, **trial.size, "wall_seconds": trial.wall_seconds})
    confirms = [t.config.stage == "confirm" and t.state is TrialState.COMPLETE for t in ended]

    def column(metric: str) -> list[float]:
        names = (on_test(metric) if confirming else metric for confirming in confirms)
        return [own.get(name, math.nan) for name, own in zip(names, values, strict=True)]

    order = ranked(study.objectives, study.constraints, [trial.state for trial in ended], column)
    when = milliseconds(max((trial.finished_at or trial.created_at for trial in ended), default=0))
    return {
        ended[i].key: Point(key=RANK, value=float(place), timestamp=when, step=len(ended))
        for place, i in enumerate(sorted(order, key=lambda i: not confirms[i]), start=1)
    }


def final_objectives(study: Study, record: TrialRecord, reports: Sequence[ReportRecord]) -> list[tuple[str, float]]:
    """Return the objectives of a complete trial, of the report that counts, by name; none for another trial."""
    if record.state is not TrialState.COMPLETE:
        return []
    counted = counted_reports(record.config, reports)
    known = {point.key: point.value for point in [*size_points(record), *report_points(counted)]}
    return [(each.metric, known[each.metric]) for each in study.objectives if each.metric in known]


def network(config: TrialConfig) -> tuple[str, str, int]:
    """Return the key of the trials that train one network: data set, stage, the first trial."""
    return config.key.dataset, config.stage, config.first


def pooled_points(trials: Sequence[TrialRecord], reports: Sequence[ReportRecord]) -> list[Point]:
    """Return the means over all seeds of complete trials of one network, as `pooled/METRIC`, and `pooled/seeds`.

    `reports` are those that count. The time is the end of the last trial, the step its last epoch.
    """
    when = milliseconds(max(trial.finished_at or trial.created_at for trial in trials))
    step = max(report.epoch for report in reports)
    values = {name: value for name, value in _metrics(reports).items() if "/" not in name}
    found = {"seeds": float(len(reports)), **values}
    return [
        Point(key=key_of(f"pooled/{name}"), value=value, timestamp=when, step=step) for name, value in found.items()
    ]


def _metrics(rows: Sequence[ReportRecord]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, value in means([row.metrics for row in rows]).items():
        values[name] = value
        if len(rows) > 1:
            values |= {f"{name}/replicate_{row.replicate}": row.metrics[name] for row in rows if name in row.metrics}
    return values


def key_of(name: str) -> str:
    """Return the key of a metric or a tag; one that MLflow does not take gets a mark, so that no two become one."""
    key = _FORBIDDEN.sub("_", name)
    if key == name and len(key) <= KEY_LIMIT:
        return key
    mark = f"-{sha256(name.encode()).hexdigest()[:8]}"
    return key[: KEY_LIMIT - len(mark)] + mark


def _text(value: Any) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value))


def cut(text: str, limit: int = VALUE_LIMIT) -> str:
    """Return a text of at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
