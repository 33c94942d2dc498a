"""What users ask of a running study, through the real command: each request is carried out once, killed or not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import RESUMABLE
from ablate.core.trial import TrialState
from ablate.ledger import TrialRecord
from ablate.ledger.requests import REQUESTED
from support import commands, steered_training
from support.faults import killing
from support.steered import MANY, Steered

STUDY = """\
study: steered
trainable: support.steered_training:train
config: {x: {int: [0, 60]}, lr: {float: [1.0e-3, 1.0e-1], log: true}}
epochs: 4
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: tpe, startup_trials: 3}
scheduler: {name: none}
budget: {trials: 6}
confirm: null
"""
Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def steered(tmp_path: Path) -> Steered:
    run = Steered(folder=tmp_path, text=STUDY)
    run.allow(1)
    return run


@pytest.fixture
def say(steered: Steered, capfd: pytest.CaptureFixture[str]) -> Say:
    """A command beside the study: its exit code and what it prints."""

    def run(*words: str) -> tuple[int, str, str]:
        code, out, err = commands.run(capfd, *words, "--runs-dir", str(steered.runs))
        return code, " ".join(out.split()), " ".join(err.split())

    return run


def chosen(trials: list[TrialRecord]) -> list[dict[str, Any]]:
    return [dict(trial.config.parameters) for trial in trials]


def given(trials: list[TrialRecord]) -> list[Any]:
    return [trial.sampler_state.get("given", {}).get("settings") for trial in trials]


def test_what_is_enqueued_is_the_next_trial_once_and_a_killed_study_suggests_the_same(
    steered: Steered, say: Say, tmp_path: Path
) -> None:
    command = steered.begin()
    command.until(steered.reported(1))
    code, out, err = say("enqueue", "steered", "config.x=41", "config.lr=5e-2")
    assert (code, out) == (0, "Recorded. The running driver takes it up within seconds."), err
    assert say("enqueue", "steered", "config.x=43")[0] == 0
    assert "Pending: enqueue data config.x=41 config.lr=0.05" in say("status", "steered")[1]
    pending = json.loads(say("status", "steered", "--json")[1])["requests"]["pending"]
    assert [each["asked"] for each in pending] == [
        "enqueue data config.x=41 config.lr=0.05",
        "enqueue data config.x=43",
    ]
    command.kill()
    assert len(steered.trials()) == 1, "killed before it could take up what is asked"
    steered.end()
    trials = steered.trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 6
    assert chosen(trials)[1] == {"config.x": 41, "config.lr": 0.05}
    assert trials[2].config.parameters["config.x"] == 43
    assert given(trials) == [None, ["config.x", "config.lr"], ["config.x"], None, None, None]
    assert [answer["trial"] for answer in steered.answers()] == [1, 2]
    assert "Pending" not in say("status", "steered")[1]
    assert "enqueued by `ablate enqueue`: config.x, config.lr" in say("trial", "steered", "1")[1]

    whole = Steered(folder=tmp_path / "whole", text=STUDY)
    whole.allow(1)
    command = whole.begin()
    command.until(whole.reported(1))
    for words in (["config.x=41", "config.lr=5e-2"], ["config.x=43"]):
        from ablate.driver.requests import enqueue
        from ablate.studies.locations import Locations

        enqueue("steered", Locations(runs_dir=whole.runs), words)
    whole.allow(MANY)
    assert command.wait() == 0, command.output
    assert chosen(whole.trials()) == chosen(trials), "the same requests at the same places, never interrupted"


def test_what_no_driver_can_take_up_waits_for_the_next_one(steered: Steered, say: Say) -> None:
    steered.end()
    assert say("enqueue", "steered", "config.x=60", "config.lr=0.1")[1].startswith("Recorded. The budget of 'data' is")
    steered.file.write_text(STUDY.replace("trials: 6", "trials: 7"))
    steered.end("--extend")
    assert chosen(steered.trials())[6] == {"config.x": 60, "config.lr": 0.1}


def test_a_configuration_that_is_in_the_study_is_refused(steered: Steered, say: Say) -> None:
    command = steered.begin()
    command.until(steered.reported(1))
    first = chosen(steered.trials())[0]
    words = [f"{name}={value}" for name, value in first.items()]
    code, _, err = say("enqueue", "steered", *words)
    assert (code, "trial steered/data/0 has this configuration" in err) == (2, True), err
    assert say("enqueue", "steered", "config.x=5", "config.lr=0.01")[0] == 0
    assert "enqueued already" in say("enqueue", "steered", "config.lr=0.01", "config.x=5")[2]
    command.kill()


FAULTY = {
    "unknown": (["config.xx=1"], "config.xx is not searched on data set 'data'. Did you mean 'config.x'?"),
    "too-large": (["config.x=61"], "config.x must be a whole number from 0 to 60"),
    "no-integer": (["config.x=1.5"], "config.x must be a whole number from 0 to 60"),
    "text": (["config.lr=high"], "config.lr must be a number from 0.001 to 0.1"),
    "twice": (["config.x=1", "config.x=2"], "config.x is given twice: leave one of them out"),
    "no-value": (["config.x"], "'config.x': write NAME=VALUE"),
    "both": (["config.x=-1", "config.lr=2"], "from 0 to 60; config.lr must be"),
    "data-set": (["config.x=1", "--dataset", "date"], "no data set 'date'. Did you mean 'data'?"),
    "nan": (["config.lr=.nan"], "config.lr must be a number"),
}


def test_a_wrong_request_is_one_line_and_writes_nothing(steered: Steered, say: Say) -> None:
    steered.end()
    for words, says in FAULTY.values():
        code, out, err = say("enqueue", "steered", *words)
        assert (code, out) == (2, ""), err
        assert says in err
    for words, says in [
        (["prune", "steered", "2"], "trial steered/data/2 has ended: it is COMPLETE"),
        (["prune", "steered", "77"], "trial 77 of study 'steered': there is no such trial"),
        *(([*words, "steered", str(10**30)], "there is no such trial") for words in (["trial"], ["retry"], ["prune"])),
        (["trial", "steered", str(2**63)], "there is no such trial"),
        (["retry", "steered", "2"], "trial steered/data/2 is COMPLETE: only a trial that is FAIL"),
        (["stop", "steered"], "no driver runs it"),
        (["stop", "stered"], "Did you mean 'steered'?"),
    ]:
        code, out, err = say(*words)
        assert (code, out) == (2, ""), err
        assert says in err
    assert not [event for event in steered.events() if event.kind == REQUESTED]


def test_a_ledger_that_is_gone_or_a_folder_is_one_line(steered: Steered, say: Say) -> None:
    ledger = steered.runs / "steered" / "ledger.sqlite"
    ledger.parent.mkdir(parents=True)
    for says in ("study 'steered': there is no ledger.sqlite in", "ledger.sqlite: this is a folder, not a file"):
        for command in (["status"], ["trial", "0"], ["report"], ["stop"], ["resume"]):
            code, out, err = say(command[0], "steered", *command[1:])
            assert (code, out) == (2, ""), err
            assert says in err
        ledger.mkdir(exist_ok=True)


@pytest.mark.parametrize("killed", [False, True])
def test_a_pruned_trial_ends_at_its_next_report(steered: Steered, say: Say, killed: bool) -> None:
    command = steered.begin()
    command.until(steered.reported(1))
    for _ in range(2):  # asked twice, done once
        assert say("prune", "steered", "0")[0] == 0
    if killed:
        command.kill()
        steered.end()
    else:
        steered.allow(2)
        command.until(lambda: steered.trials()[0].state.finished)
        steered.allow(MANY)
        assert command.wait() == 0, command.output
    trials = steered.trials()
    assert [trial.state for trial in trials] == [TrialState.PRUNED] + [TrialState.COMPLETE] * 5
    assert trials[0].epochs_done == (1 if killed else 2)
    assert trials[0].error == "stopped by `ablate prune`"
    assert "PRUNED: stopped by `ablate prune`" in say("trial", "steered", "0")[1]
    assert [answer.get("refused") for answer in steered.answers()] == [None]


def test_a_trial_that_ends_before_it_can_be_pruned_keeps_its_end(steered: Steered, say: Say) -> None:
    steered.allow(3)
    command = steered.begin()
    command.until(steered.reported(3))
    assert say("prune", "steered", "0")[0] == 0
    steered.allow(MANY)
    assert command.wait() == 0, command.output
    assert steered.trials()[0].state is TrialState.COMPLETE, "its next report was its last one"
    assert [answer["refused"] for answer in steered.answers()] == [
        "trial steered/data/0 has ended: it is COMPLETE. Only a trial that has not is pruned"
    ]
    assert "Not done: prune data 0: trial steered/data/0 has ended: it is COMPLETE" in say("status", "steered")[1]


@pytest.mark.parametrize("fault", ["broken", "nan"])
def test_a_failed_trial_is_tried_again_in_a_complete_study(steered: Steered, say: Say, fault: str) -> None:
    (steered.data / fault).write_text(" ".join(str(x) for x in range(61)))
    steered.allow(MANY)
    command = steered.begin()
    assert command.wait() == 1, command.output
    assert {trial.state for trial in steered.trials()} == {TrialState.FAIL}
    before = chosen(steered.trials())
    (steered.data / fault).unlink()
    assert "the next one takes it up: ablate resume steered" in say("retry", "steered", "4")[1]
    assert say("retry", "steered", "4")[0] == 0
    steered.end()
    trials = steered.trials()
    assert chosen(trials) == before, "no trial more"
    assert [trial.state for trial in trials] == [TrialState.FAIL] * 4 + [TrialState.COMPLETE, TrialState.FAIL]
    assert (trials[4].epochs_done, trials[4].error, trials[4].attempt) == (4, None, 2)
    assert [answer["trial"] for answer in steered.answers()] == [4]
    with steered.ledger() as ledger:
        losses = [report.metrics["val_loss"] for report in ledger.reports("steered", "data", 4)]
    x, lr = before[4]["config.x"], before[4]["config.lr"]
    assert losses == [(x - steered_training.BEST) ** 2 + lr / epoch for epoch in (1, 2, 3, 4)]


def test_a_stopped_study_pauses_and_continues(steered: Steered, say: Say) -> None:
    steered.allow(2)
    command = steered.begin()
    command.until(steered.reported(2))
    code, out, err = say("stop", "steered")
    assert code == 0, err
    assert out.endswith(
        "pauses its trials and ends. To continue: ablate resume steered --runs-dir " + str(steered.runs)
    )
    command.until(lambda: bool(steered.answers()))
    steered.allow(3)
    assert command.wait() == RESUMABLE, command.output
    assert "To continue: ablate search" in command.output
    (trial,) = steered.trials()
    assert (trial.state, trial.epochs_done) == (TrialState.WAITING, 3)
    steered.end()
    assert [trial.state for trial in steered.trials()] == [TrialState.COMPLETE] * 6, "the next driver is not stopped"
    assert len(steered.answers()) == 1


def test_a_request_to_stop_a_killed_driver_does_not_stop_the_next_one(steered: Steered, say: Say) -> None:
    command = steered.begin()
    command.until(steered.reported(1))
    assert say("stop", "steered")[0] == 0
    command.kill()
    steered.end()
    assert len(steered.trials()) == 6


def test_a_warm_start_tells_the_sampler_and_is_recorded_once(steered: Steered, say: Say, tmp_path: Path) -> None:
    steered.file.write_text(STUDY.replace("trials: 6", "trials: 30"))
    steered.end()
    best = min(abs(trial.config.parameters["config.x"] - steered_training.BEST) for trial in steered.trials())

    def begun(name: str, **changes: str) -> Steered:
        text = STUDY.replace("study: steered", f"study: {name}")
        for old, new in changes.items():
            text = text.replace(f"{old}: ", f"{old}: {new} #", 1)
        made = Steered(folder=tmp_path / name, text=text)
        made.allow(MANY)
        return made

    cold, warm = begun("cold"), begun("warm")
    cold.end()
    (warm.folder / "runs").mkdir()
    (steered.home).rename(warm.runs / "steered")
    output = warm.end("--from", "steered")
    assert "Warm start: the sampler is told of 30 of the 30 finished search trials of study 'steered'." in output
    assert len(warm.trials()) == 6, "its own trials only"

    def distance(run: Steered) -> float:
        return math.fsum(abs(trial.config.parameters["config.x"] - steered_training.BEST) for trial in run.trials())

    assert distance(warm) < 6 * max(best, 8) < distance(cold), "planted: the best x is known to the warm one"

    (warm.runs / "steered").rename(tmp_path / "gone")
    before = [event for event in warm.events() if event.kind == "warm_start"]
    warm.file.write_text(warm.text.replace("trials: 6", "trials: 8"))
    warm.end("--from", "steered", "--extend")
    after = [event for event in warm.events() if event.kind == "warm_start"]
    assert len(before) == 1
    assert after == before
    assert distance(warm) < 8 * max(best, 8)


def test_a_warm_start_that_cannot_be_is_one_line(steered: Steered, tmp_path: Path) -> None:
    steered.end()
    other = {
        "objectives": ("val_loss, direction: minimize", "val_loss, direction: maximize", "its objectives are"),
        "sampler": ("tpe, startup_trials: 3", "random", "learns from no result"),
        "ranges": ("[0, 60]", "[70, 90]", "none of its 6 finished search trials"),
        "names": ("lr:", "rate:", "none of its 6 finished search trials"),
    }
    for name, (old, new, says) in other.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(STUDY.replace("study: steered", f"study: {name}").replace(old, new).replace("config.lr", "x"))
        command = steered.start(
            "search", str(file), "--runs-dir", str(steered.runs), *steered.options, "--from", "steered",
            inject=partial(killing.set_environment, {steered_training.FOLDER: str(steered.data)}),
        )  # fmt: skip
        assert command.wait() == 2, command.output
        if name != "names":  # the function reads `lr`, which is said first
            assert says in command.output
    command = steered.begin("--from", "steered")
    assert command.wait() == 2
    assert "has begun without it" in command.output


START = STUDY + "start: [{config.x: 50}, {config.lr: 0.02, config.x: 51}]\n"


def test_what_a_study_file_starts_with_is_tried_first(steered: Steered, say: Say) -> None:
    steered.file.write_text(START)
    steered.end()
    trials = steered.trials()
    assert [trial.config.parameters["config.x"] for trial in trials[:2]] == [50, 51]
    assert trials[1].config.parameters["config.lr"] == 0.02
    assert given(trials) == [["config.x"], ["config.x", "config.lr"]] + [None] * 4
    assert "start.1 of the study file" in say("trial", "steered", "1")[1]
    steered.file.write_text(START.replace("50", "49"))
    command = steered.begin()
    assert command.wait() == 2
    assert "would make its trials incomparable" in command.output


def test_every_fault_of_a_start_is_listed_with_its_line(steered: Steered, say: Say) -> None:
    steered.file.write_text(
        STUDY + "start:\n  - {config.x: 70}\n  - {config.y: 1,\n     config.lr: 5}\n"
        "  - {config.x: 3}\n  - {config.x: 3}\n  - {datasets: [date], config.x: 1}\n  - {}\n"
    )
    from ablate.base.errors import StudyFileError
    from ablate.study import load_study

    with pytest.raises(StudyFileError) as refused:
        load_study(steered.file)
    lines = [line.removeprefix(f"{steered.file}:") for line in str(refused.value).splitlines()]
    assert [line.partition(" ")[0].rstrip(":") for line in lines] == ["11", "12", "13", "15", "16", "17"]
    for line, says in zip(
        lines,
        [
            "whole number from 0 to 60",
            "not searched",
            "a number from 0.001",
            "equal to start.2",
            "'data'",
            "at least one",
        ],
        strict=True,
    ):
        assert says in line


COMPARED = """\
study: steered
trainable: support.steered_training:train
config: {lr: 0.1}
epochs: 4
variants: [{name: near, config: {x: 6}}, {name: far, config: {x: 9}}]
objectives: [{metric: val_loss, direction: minimize}]
protocol: paper
compare: {baseline: near, metrics: [val_loss]}
"""


@pytest.mark.parametrize("text", [COMPARED, STUDY + "deterministic: 2\n"], ids=["comparison", "deterministic"])
def test_a_study_whose_order_is_fixed_takes_no_configuration_and_prunes_nothing(
    steered: Steered, say: Say, text: str
) -> None:
    steered.file.write_text(text)
    command = steered.begin()
    command.until(steered.reported(1))
    says = "is a comparison" if text is COMPARED else "is deterministic"
    refused = [["enqueue", "steered", "config.x=5"], ["prune", "steered", "0"]]
    for words in refused if text is COMPARED else [*refused, ["retry", "steered", "0"]]:
        code, out, err = say(*words)
        assert (code, out) == (2, ""), err
        assert says in err
    assert say("stop", "steered")[0] == 0, "it pauses like any other"
    command.until(lambda: bool(steered.answers()))
    steered.allow(2)
    assert command.wait() == RESUMABLE, command.output
    steered.end()
    assert {trial.state for trial in steered.trials()} == {TrialState.COMPLETE}


def test_a_comparison_has_no_start() -> None:
    from ablate.base.errors import StudyFileError
    from ablate.study import parse_study

    with pytest.raises(StudyFileError, match="start: a comparison trains its whole design"):
        parse_study(COMPARED + "start: [{variant: near}]\n")


@pytest.mark.slow
def test_a_study_on_ray_takes_what_is_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ray = ("--gpus", "0", "--cpus-per-trial", "1", "--device", "cpu", "--tracker", "none")
    run = Steered(folder=tmp_path, text=STUDY, options=ray, cpus=1)
    run.allow(1)
    command = run.begin()
    command.until(run.reported(1))
    where = ("--runs-dir", str(run.runs))
    for words in (("enqueue", "steered", "config.x=41"), ("prune", "steered", "0"), ("stop", "steered")):
        code, _, err = commands.run(capfd, *words, *where)
        assert code == 0, err
        if words[0] == "prune":
            run.allow(6)
            command.until(lambda: len(run.trials()) > 1 and run.reported(3)())
    command.until(lambda: len(run.answers()) == 3)
    run.allow(MANY)
    assert command.wait() == RESUMABLE, command.output
    run.end()
    trials = run.trials()
    assert trials[0].state is TrialState.PRUNED
    assert trials[1].config.parameters["config.x"] == 41
    assert [trial.state for trial in trials[1:]] == [TrialState.COMPLETE] * 5
