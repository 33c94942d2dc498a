"""Events that another user of the ledger wrote: no request is carried out unchecked, and none ends in a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, text

from ablate.core.trial import TrialState
from ablate.ledger.requests import REQUESTED
from support import commands
from support.faults.study_runs import StudyRun
from support.steered import Steered

STUDY = """\
study: steered
trainable: support.steered_training:train
config: {x: {int: [0, 60]}, lr: {choices: [0.01, 0.1]}}
epochs: 2
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: random}
scheduler: {name: none}
budget: {trials: 3}
confirm: null
"""
COMPARED = """\
study: steered
trainable: support.steered_training:train
config: {lr: 0.1}
epochs: 2
variants: [{name: near, config: {x: 6}}, {name: far, config: {x: 9}}, {name: so, config: {x: 7}}]
objectives: [{metric: val_loss, direction: minimize}]
protocol: paper
compare: {baseline: near, metrics: [val_loss]}
"""
ASK = {"command": "enqueue", "message": "please"}
HOSTILE: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "it is no request (message:"),
    "no-object": ([1, 2], "it is no request"),
    "no-json": ("{'a", "it is no request"),
    "deep": ("[" * 100_000, "it is no request"),
    "no-command": ({"message": "do"}, "it names no command"),
    "unknown-command": ({"command": "rm -rf", "message": "x"}, "it is no request (command: Input should be 'enqueue'"),
    "command-list": ({"command": ["stop"], "message": "x"}, "it is no request (command:"),
    "no-trial": ({"command": "prune", "message": "x"}, "prune needs trial"),
    "trial-text": ({"command": "prune", "trial": "0", "message": "x"}, "it is no request (trial:"),
    "trial-true": ({"command": "retry", "trial": True, "message": "x"}, "it is no request (trial:"),
    "trial-unknown": ({"command": "retry", "trial": 10**30, "message": "x"}, "there is no such trial"),
    "no-term": ({"command": "stop", "message": "x"}, "stop needs term"),
    "other-term": ({"command": "stop", "term": 99, "message": "x"}, "its driver had ended"),
    "parameters-list": (ASK | {"parameters": [1]}, "it is no request (parameters:"),
    "no-parameters": (ASK | {"parameters": {}}, "give at least one searched setting"),
    "unknown-setting": (ASK | {"parameters": {"config.zz": 1}}, "config.zz is not searched"),
    "outside": (ASK | {"parameters": {"config.x": 99}}, "config.x must be a whole number from 0 to 60"),
    "infinite": (ASK | {"parameters": {"config.x": float("inf")}}, "config.x must be a whole number"),
    "no-number": (ASK | {"parameters": {"config.x": {"int": [0, 1]}}}, "config.x must be a whole number"),
    "no-choice": (ASK | {"parameters": {"config.lr": ["a"]}}, "config.lr must be one of 0.01, 0.1"),
    "escape": ({"command": "prune", "trial": 77, "message": "a\x1b[2J\n" * 999}, "there is no such trial"),
}


def insert(run: StudyRun, kind: str, payload: Any, dataset: str | None = "data") -> None:
    """Write an event as any user of the database can."""
    content = payload if isinstance(payload, str) else json.dumps(payload)
    sql = (
        "INSERT INTO ablate_note (study_id, kind, dataset, payload, driver_term, created_at)"
        " SELECT id, :kind, :dataset, :payload, 0, 0 FROM ablate_study"
    )
    _execute(run, sql, kind=kind, dataset=dataset, payload=content)


def _execute(run: StudyRun, sql: str, **values: Any) -> None:
    engine = create_engine(run.storage or f"sqlite:///{run.runs}/steered/ledger.sqlite", poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(sql), values)


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(study: StudyRun, *words: str) -> tuple[int, str, str]:
        place = ("--runs-dir", str(study.runs), *(("--storage", study.storage) if study.storage else ()))
        code, out, err = commands.run(capfd, *words, *place)
        assert "Traceback" not in out + err
        return code, out, err

    return run


@pytest.fixture
def steered(tmp_path: Path, storage: str) -> Steered:
    run = Steered(folder=tmp_path, text=STUDY, storage=storage if "postgresql" in storage else None)
    run.allow(1)
    return run


def test_a_request_that_no_command_wrote_is_answered_as_refused(steered: Steered, say: Any) -> None:
    command = steered.begin()
    command.until(steered.reported(1))
    for payload, _ in HOSTILE.values():
        insert(steered, REQUESTED, payload)
    insert(steered, REQUESTED, ASK | {"parameters": {"config.x": 1}}, "nowhere")
    insert(steered, REQUESTED, {"command": "stop", "term": 99, "message": "x"}, None)
    insert(steered, REQUESTED, ASK | {"parameters": {"config.x": 41.0}})
    assert say(steered, "status", "steered")[0] == 0, "while they wait"
    steered.allow(1_000)
    assert command.wait() == 0, command.output
    answers = steered.answers()
    for rule in [*(rule for _, rule in HOSTILE.values()), "there is no data set 'nowhere'"]:
        assert any(rule in answer.get("refused", "") for answer in answers), rule
    assert len(answers) == len(HOSTILE) + 3
    trials = steered.trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 3
    assert [trial.config.parameters["config.x"] for trial in trials].count(41) == 1, "the one that is right"
    code, out, _ = say(steered, "status", "steered")
    assert (code, out.count("Not done:"), "\x1b[2J" in out) == (0, 5, False)
    assert f"and {len(HOSTILE) - 5} more: ablate status steered --json" in " ".join(out.split())
    _, out, _ = say(steered, "status", "steered", "--json")
    assert len(json.loads(out)["requests"]["refused"]) == len(HOSTILE), "all but `stop`"
    assert say(steered, "report", "steered")[0] == 0
    assert steered.begin().wait() == 0


@pytest.mark.parametrize("study", [COMPARED, STUDY + "deterministic: 2\n"], ids=["comparison", "deterministic"])
def test_a_study_whose_order_is_fixed_is_not_changed_by_anybody(tmp_path: Path, say: Any, study: str) -> None:
    run = Steered(folder=tmp_path, text=study)
    run.allow(1)
    command = run.begin()
    command.until(run.reported(1))
    insert(run, REQUESTED, {"command": "prune", "trial": 0, "message": "x"})
    insert(run, REQUESTED, ASK | {"parameters": {"config.x": 1, "variant": "near"}})
    run.allow(1_000)
    assert command.wait() == 0, command.output
    assert [trial.state for trial in run.trials()] == [TrialState.COMPLETE] * 3
    refused = [answer["refused"] for answer in run.answers()]
    assert len(refused) == 2
    assert all("comparison" in text or "deterministic" in text for text in refused)
    assert say(run, "status", "steered")[0] == 0


def test_an_event_that_is_no_object_is_one_line_that_names_the_ledger(tmp_path: Path, say: Any) -> None:
    run = Steered(folder=tmp_path, text=STUDY)
    run.allow(1_000)
    assert run.begin().wait() == 0
    for payload in ([], "x"):
        insert(run, "frozen", payload)
        assert "No study" not in say(run, "list")[1]
        for words in [("status", "steered"), ("report", "steered"), ("search", str(run.file), *run.options)]:
            code, out, err = say(run, *words)
            assert (code, out) == (1, ""), (payload, out)
            line = " ".join(err.split())
            assert "ledger sqlite:///" in line
            assert "('frozen') is damaged: " in line, (payload, err)
        _execute(run, "DELETE FROM ablate_note WHERE driver_term = 0")
    assert say(run, "status", "steered")[0] == 0
