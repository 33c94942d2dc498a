"""The TensorBoard tracker: one event file for each trial below the study's home, a pure function of the ledger."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ablate.base.files import DiskFolder
from ablate.core.trial import TrialConfig, TrialState
from ablate.ledger import ReportRecord, StudyRecord, TrialRecord
from ablate.study import Study
from ablate.study.space import Choices, Range
from ablate.tracking import contents
from ablate.tracking.progress import HomeTracker, require_package

require_package("tensorboard")

from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: E402
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2  # noqa: E402
from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: E402

FOLDER = "tensorboard"  # in a study's home
FILE = "events.out.tfevents.0.ablate"
FINAL = "final/"  # before an objective's value at the end of a complete trial


class TensorBoardTracker(HomeTracker):
    """Keeps the event file of each trial equal to the ledger; PatientTracker states the guarantees.

    What a file must hold follows from the ledger alone. A file that holds the beginning of it is continued, whoever
    was killed while writing it; any other one is replaced.
    """

    system = "TensorBoard"

    def catch_up(self) -> None:
        """Continue the event file of every trial that changed."""
        record = self._ledger.study(self._study.name)
        if record is None:
            return
        _continue(self.home / FOLDER, [_experiment(self._study, record)])
        for trial in self._changes.started():
            key = trial.key
            reports = self._ledger.reports(key.study, key.dataset, key.number)
            _continue(self.home / FOLDER / run_folder(trial.config), list(_events(self._study, trial, reports)))
            self._changes.done(trial)


def run_folder(config: TrialConfig) -> Path:
    """Return the folder of a trial's event file: `digits/0012`, `digits/0012-confirmed-by-0040`."""
    name = contents.run_name(config, several=False).partition(" · ")[0]
    return Path(config.key.dataset) / name.replace(" ", "-")


def _continue(folder: Path, events: Sequence[event_pb2.Event]) -> None:
    """Write `events`, after a first one with the version, into the event file of `folder`."""
    version = event_pb2.Event(wall_time=events[0].wall_time, file_version="brain.Event:2")
    written = io.BytesIO()
    for event in (version, *events):
        RecordWriter(written).write(event.SerializeToString(deterministic=True))
    content, file = written.getvalue(), folder / FILE
    there = DiskFolder(folder).read(FILE) if file.exists() else b""
    if there and content.startswith(there):
        with file.open("ab") as end:
            end.write(content[len(there) :])
    elif there != content:
        DiskFolder(folder).write(FILE, content)


def _events(study: Study, trial: TrialRecord, reports: Sequence[ReportRecord]) -> Iterator[event_pb2.Event]:
    """Yield a trial's events: its settings, an event for each epoch, and at its end sizes, objectives and status."""
    start = trial.started_at or trial.created_at
    yield _event(start, [_session_start(study, trial.config, start)])
    for step, points in groupby(contents.report_points(reports), key=lambda point: point.step):
        of_epoch = list(points)
        yield _event(of_epoch[0].timestamp / 1000, [_scalar(p.key, p.value) for p in of_epoch], step=step)
    if trial.state.finished:
        end = trial.finished_at or start
        values = [_scalar(point.key, point.value) for point in contents.size_points(trial)]
        values += [_scalar(FINAL + name, value) for name, value in contents.final_objectives(study, trial, reports)]
        status = "STATUS_FAILURE" if trial.state is TrialState.FAIL else "STATUS_SUCCESS"
        info = plugin_data_pb2.SessionEndInfo(status=api_pb2.Status.Value(status), end_time_secs=end)
        values.append(_plugin(metadata.SESSION_END_INFO_TAG, session_end_info=info))
        yield _event(end, values, step=trial.epochs_done)


def _event(when: float, values: Sequence[summary_pb2.Summary.Value], *, step: int = 0) -> event_pb2.Event:
    return event_pb2.Event(wall_time=when, step=step, summary=summary_pb2.Summary(value=values))


def _scalar(tag: str, value: float) -> summary_pb2.Summary.Value:
    return summary_pb2.Summary.Value(tag=tag, simple_value=value)


def _plugin(tag: str, **data: Any) -> summary_pb2.Summary.Value:
    # metadata.create_summary_metadata writes a mapping in any order, and a file must be the same each time
    message = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **data)
    content = message.SerializeToString(deterministic=True)
    kind = summary_pb2.SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content)
    described = summary_pb2.SummaryMetadata(plugin_data=kind)
    return summary_pb2.Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR)


def _session_start(study: Study, config: TrialConfig, start: float) -> summary_pb2.Summary.Value:
    info = plugin_data_pb2.SessionStartInfo(start_time_secs=start)
    ranges = study.space.ranges
    for name, value in {**config.parameters, "stage": config.stage}.items():
        field = _FIELDS[_kind(ranges[name])] if name in ranges else "string_value"
        setattr(info.hparams[name], field, str(value) if field == "string_value" else value)
    return _plugin(metadata.SESSION_START_INFO_TAG, session_start_info=info)


def _experiment(study: Study, record: StudyRecord) -> event_pb2.Event:
    """Return what TensorBoard's page of hyperparameters shows: the searched settings and the objectives."""
    kinds = {name: _kind(spec) for name, spec in study.space.ranges.items()} | {"stage": "DATA_TYPE_STRING"}
    infos = [api_pb2.HParamInfo(name=name, type=api_pb2.DataType.Value(kind)) for name, kind in kinds.items()]
    metrics = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=FINAL + each.metric), display_name=each.metric)
        for each in study.objectives
    ]
    asked = api_pb2.Experiment(
        name=study.name, time_created_secs=record.created_at, hparam_infos=infos, metric_infos=metrics
    )
    return _event(record.created_at, [_plugin(metadata.EXPERIMENT_TAG, experiment=asked)])


_FIELDS: Mapping[str, str] = {
    "DATA_TYPE_STRING": "string_value",
    "DATA_TYPE_BOOL": "bool_value",
    "DATA_TYPE_FLOAT64": "number_value",
}


def _kind(spec: Range) -> str:
    """Return TensorBoard's type of a setting: of a choice among different types, text."""
    types = {type(value) for value in spec.choices} if isinstance(spec, Choices) else {float}
    if types == {bool}:
        return "DATA_TYPE_BOOL"
    return "DATA_TYPE_FLOAT64" if types <= {int, float} else "DATA_TYPE_STRING"
