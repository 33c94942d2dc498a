"""Asks the driver of a study to do something: checked against the study, then written into its ledger."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from ablate.base.errors import RequestError, did_you_mean
from ablate.inspection.status import resume_command, running_driver
from ablate.inspection.studies import Stored, open_ledger, trial_of
from ablate.ledger import Ledger, TrialRecord
from ablate.ledger.requests import find_unanswered
from ablate.locations import Locations
from ablate.study.given import given_faults
from ablate.study.space import Choices, Range, is_same
from ablate.study.yaml_text import read_scalar
from ablate.trial import TrialState
from ablate.tuning.recorded import ENQUEUE, PRUNE, RETRY, STOP, TUNED, has_room, recorded_searches


def enqueue(name: str, locations: Locations, words: Sequence[str], *, dataset: str | None = None) -> str:
    """Ask for a configuration as the next trial of a data set; `words` are NAME=VALUE. Return what will happen.

    Raises RequestError, with nothing written, for a setting or value that the study does not search, for a
    configuration that is in the study already, and for a comparison or a deterministic study.
    """
    typed = dict(_setting(word) for word in words)
    with open_ledger(name, locations) as ledger:
        found = Stored.of(ledger, name)
        _refuse_fixed_order(found, ENQUEUE)
        label = _label(found, dataset)
        ranges = found.study.space_for(label).ranges
        given = {setting: _value(ranges.get(setting), text) for setting, text in typed.items()}
        faults = [f"{fault} {rule}".strip() for fault, rule in given_faults(found.study, label, given)]
        if faults:
            raise RequestError(f"study {name!r}: {'; '.join(text.rstrip('.') for text in faults)}")
        values = {setting: ranges[setting].read(value) for setting, value in given.items()}
        _refuse_repeated(found, label, values)
        message = shlex.join([ENQUEUE, label, *(f"{setting}={value}" for setting, value in values.items())])
        _write(ledger, found, {"command": ENQUEUE, "parameters": values, "message": message}, label)
    return _promise(found, locations, label)


def prune(name: str, locations: Locations, number: int, *, dataset: str | None = None) -> str:
    """Ask to stop a trial at its next report; return what will happen.

    Raises RequestError unless it is an unfinished search trial of a search that is not deterministic.
    """
    with open_ledger(name, locations) as ledger:
        found = Stored.of(ledger, name)
        _refuse_fixed_order(found, PRUNE)
        trial = trial_of(found, number, dataset)
        if trial.state.finished:
            raise RequestError(f"trial {trial.key} has ended: it is {trial.state}. Only a trial that has not is pruned")
        if trial.config.stage != "search":
            kind = "a tuning trial" if trial.config.stage == "tune" else "a confirmation"
            raise RequestError(f"trial {trial.key} is {kind}, which is always trained in full")
        _ask_about(ledger, found, trial, PRUNE)
    return _promise(found, locations)


def retry(name: str, locations: Locations, number: int, *, dataset: str | None = None) -> str:
    """Ask to try a failed trial again with fresh attempts; return what will happen.

    Raises RequestError unless it is FAIL, if the study is deterministic, or if the values of tuning are chosen.
    """
    with open_ledger(name, locations) as ledger:
        found = Stored.of(ledger, name)
        if found.study.deterministic is not None:
            _refuse_fixed_order(found, RETRY)
        trial = trial_of(found, number, dataset)
        if trial.state is not TrialState.FAIL:
            raise RequestError(f"trial {trial.key} is {trial.state}: only a trial that is FAIL is tried again")
        here = recorded_searches(found.study, found.snapshot).get(trial.key.dataset)
        if here is not None and not here.may_retry(trial.config):
            raise RequestError(f"trial {trial.key} is a tuning trial: {TUNED}")
        _ask_about(ledger, found, trial, RETRY)
    return _promise(found, locations)


def stop(name: str, locations: Locations) -> str:
    """Ask the running driver of a study to pause its trials and end; return what will happen.

    Raises RequestError if no driver runs.
    """
    with open_ledger(name, locations) as ledger:
        found = Stored.of(ledger, name)
        driver = running_driver(found.record)
        if driver is None:
            raise RequestError(f"study {name!r}: no driver runs it, so there is nothing to stop")
        _write(ledger, found, {"command": STOP, "term": found.record.epoch, "message": STOP}, None)
    return f"{driver['holder']} pauses its trials and ends. To continue: {resume_command(found, locations)}"


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


def _refuse_fixed_order(found: Stored, command: str) -> None:
    """Raise RequestError for a study whose trials or their order must not depend on when a user asks."""
    study = found.study
    if study.compare is not None:
        rule = "is a comparison: it trains its whole design, each trial in full"
        raise RequestError(f"study {study.name!r} {rule}. Nothing can be added or pruned")
    if study.deterministic is not None:
        instead = " Put the configuration into `start:` of a study file." if command == ENQUEUE else ""
        rule = "is deterministic: its trials must not depend on the moment at which a user asks"
        raise RequestError(f"study {study.name!r} {rule}, so `ablate {command}` is refused.{instead}")


def _refuse_repeated(found: Stored, label: str, values: dict[str, Any]) -> None:
    for trial in found.snapshot.trials:
        if trial.key.dataset == label and is_same(trial.config.parameters, values):
            raise RequestError(f"study {found.study.name!r}: trial {trial.key} has this configuration: {trial.state}")
    for request in find_unanswered(found.snapshot.notes):
        if request.dataset == label and is_same(request.payload.get("parameters"), values):
            raise RequestError(f"study {found.study.name!r}: this configuration is enqueued already")


def _ask_about(ledger: Ledger, found: Stored, trial: TrialRecord, command: str) -> None:
    """Ask about a trial, unless the same was asked and is not done yet."""
    number, dataset = trial.key.number, trial.key.dataset
    for request in find_unanswered(found.snapshot.notes):
        same = (request.payload["command"], request.payload.get("trial"), request.dataset)
        if same == (command, number, dataset):
            return
    asked = {"command": command, "trial": number, "message": f"{command} {dataset} {number}"}
    _write(ledger, found, asked, dataset)


def _write(ledger: Ledger, found: Stored, payload: dict[str, Any], dataset: str | None) -> None:
    ledger.request(found.study.name, payload, dataset=dataset)


def _promise(found: Stored, locations: Locations, label: str | None = None) -> str:
    """Return when a request is carried out; `label` is the data set to which it adds a trial."""
    here = recorded_searches(found.study, found.snapshot)
    if label is not None and not has_room(here[label], here.values(), found.record.active_seconds):
        return (
            f"Recorded. The budget of {label!r} is spent: raise `budget` in the study file, then type"
            " ablate search FILE --extend"
        )
    if running_driver(found.record) is not None:
        return "Recorded. The running driver takes it up within seconds."
    return f"Recorded. No driver runs; the next one takes it up: {resume_command(found, locations)}"
