"""Asks the driver of a study to do something: checked against the study, then written into its ledger."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ablate.base.errors import RequestError, did_you_mean, each_once
from ablate.core.code_version import SHORT
from ablate.ledger.requests import ENQUEUE, STOP, Command, Request, find_unanswered
from ablate.studies.locations import Locations
from ablate.studies.status import resume_command, running_driver
from ablate.studies.stored import Stored, open_ledger, trial_of
from ablate.study.given import read_given
from ablate.study.space import Choices, Range
from ablate.study.values import is_same
from ablate.study.yaml_text import assignments, read_scalar
from ablate.tuning.recorded import has_room, recorded_searches
from ablate.tuning.refusals import refusal


def enqueue(name: str, locations: Locations, words: Sequence[str], *, dataset: str | None = None) -> str:
    """Ask for a configuration as the next trial of a data set; `words` are NAME=VALUE. Return what will happen.

    Raises RequestError, with nothing written, for a setting or value that the study does not search, for a
    configuration that is in the study already, and for a comparison or a deterministic study.
    """
    typed = each_once(map(_setting, words))
    with open_ledger(name, locations) as ledger:
        found = Stored.of(ledger, name)
        label = _label(found, dataset)
        ranges = found.study.space_for(label).ranges
        given = {setting: _value(ranges.get(setting), text) for setting, text in typed.items()}
        message = shlex.join([ENQUEUE, label, *assignments(given)])
        _refuse(found, _request(label, ENQUEUE, message, parameters=given))
        values = read_given(found.study, label, given)
        _refuse_repeated(found, label, values)
        ledger.request(name, {"command": ENQUEUE, "parameters": values, "message": message}, dataset=label)
    return _promise(found, locations, label)


def stop(name: str, locations: Locations) -> str:
    """Ask the driver of a study to pause its trials and end; return what will happen.

    Raises RequestError if certainly no driver runs: its lease is free, or its process on this machine has ended.
    """
    with open_ledger(name, locations) as ledger:
        found = Stored.of(ledger, name)
        driver = running_driver(found.record)
        if driver is None:
            raise RequestError(f"study {name!r}: no driver runs it, so there is nothing to stop")
        ledger.request(name, {"command": STOP, "term": found.record.term, "message": STOP})
    doubt = "" if driver["here"] else "If it still runs, "
    return f"{doubt}{driver['holder']} pauses its trials and ends. To continue: {resume_command(found, locations)}"


def ask_campaign(
    name: str, locations: Locations, command: Command, parameters: Mapping[str, Any], *, only_check: bool = False
) -> int:
    """Ask a campaign to judge a change, or to close; return the rowid of the request, or raise RequestError."""
    with open_ledger(name, locations) as ledger:
        found = Stored.of(ledger, name)
        code = [parameters["code"]["revision"][:SHORT]] if parameters.get("code") else []
        words = [command, *assignments(parameters.get("settings", {})), *code]
        label, message = found.study.labels[0], shlex.join(words)
        _refuse(found, _request(label, command, message, parameters=dict(parameters)))
        if only_check:
            return 0
        payload = {"command": command, "parameters": dict(parameters), "message": message}
        return ledger.request(name, payload, dataset=label)


def typed_settings(words: Iterable[str]) -> dict[str, Any]:
    """Return settings from words NAME=VALUE, each value read as in a study file."""
    return {name: read_scalar(value) for name, value in each_once(map(_setting, words)).items()}


def _setting(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise RequestError(f"{word!r}: write NAME=VALUE, as in model.depth=2")
    return name, value


def _value(spec: Range | None, text: str) -> Any:
    """Return the value that was typed: a study file's, or the text itself where only that is a choice, as in 007."""
    value = read_scalar(text)
    return text if isinstance(spec, Choices) and not spec.contains(value) and spec.contains(text) else value


def _label(found: Stored, dataset: str | None) -> str:
    labels = found.study.labels
    if dataset is None and len(labels) == 1:
        return labels[0]
    if dataset is None:
        raise RequestError(f"study {found.study.name!r} has several data sets. Type --dataset: {', '.join(labels)}")
    if dataset not in labels:
        raise RequestError(f"study {found.study.name!r} has no data set {dataset!r}. {did_you_mean(dataset, labels)}")
    return dataset


def _request(dataset: str, command: Command, message: str, **argument: Any) -> Request:
    """Return a request before it is written."""
    return Request(rowid=0, created_at=time.time(), dataset=dataset, command=command, message=message, **argument)


def _refuse(found: Stored, request: Request) -> None:
    """Raise RequestError with the reason for which the driver would refuse a request."""
    search = recorded_searches(found.study, found.snapshot).get(str(request.dataset))
    if (reason := refusal(request, found.study, search)) is not None:
        raise RequestError(f"study {found.study.name!r}: {reason}")


def _refuse_repeated(found: Stored, label: str, values: dict[str, Any]) -> None:
    for trial in found.snapshot.trials:
        if trial.key.dataset == label and is_same(trial.config.parameters, values):
            raise RequestError(f"study {found.study.name!r}: trial {trial.key} has this configuration: {trial.state}")
    for request in find_unanswered(found.snapshot.events):
        if request.dataset == label and is_same(request.parameters, values):
            raise RequestError(f"study {found.study.name!r}: this configuration is enqueued already")


def ask_about(
    name: str, locations: Locations, command: Command, number: int, *, dataset: str | None, from_start: bool = False
) -> str:
    """Ask about a trial, unless the same was asked and is not done yet; return what will happen.

    PRUNE stops an unfinished search trial at its next report. RETRY tries one that is FAIL again with fresh attempts;
    with `from_start` its reports and checkpoints are deleted first. Raises RequestError if `refusal` finds a reason.
    """
    with open_ledger(name, locations) as ledger:
        found = Stored.of(ledger, name)
        label = trial_of(found, number, dataset).key.dataset
        message = f"{command} {label} {number}{' --from-start' if from_start else ''}"
        asked = _request(label, command, message, trial=number, from_start=from_start)
        _refuse(found, asked)
        waiting = find_unanswered(found.snapshot.events)
        same = [(each.command, each.trial, each.dataset, each.from_start) for each in waiting]
        if (command, number, label, from_start) not in same:
            more = {"from_start": True} if from_start else {}
            ledger.request(name, {"command": command, "trial": number, "message": message, **more}, dataset=label)
    return _promise(found, locations)


def _promise(found: Stored, locations: Locations, label: str | None = None) -> str:
    """Return when a request is carried out; `label` is the data set to which it adds a trial."""
    here = recorded_searches(found.study, found.snapshot)
    if label is not None and not has_room(here[label], here.values(), found.record.active_seconds):
        return (
            f"Recorded. The budget of {label!r} is spent: raise `budget` in the study file, then type"
            " ablate search FILE --extend"
        )
    driver, command = running_driver(found.record), resume_command(found, locations)
    if driver is None:
        return f"Recorded. No driver runs; the next one takes it up: {command}"
    if driver["here"]:
        return "Recorded. The running driver takes it up within seconds."
    return (
        f"Recorded. {driver['holder']} takes it up within seconds if it still runs; otherwise the next one: {command}"
    )
