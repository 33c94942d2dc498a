"""`ablate campaign` and `ablate judge` on planted gains, alone, beside each other and after a kill."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ablate
from ablate.functions.code.snapshot import environment
from ablate.ledger import Ledger
from ablate.studies.locations import Locations
from ablate.studies.status import overview
from ablate.tracking.address import default_uri
from support.commands import LOCAL, checked, run, write_study
from support.paths import REPOSITORY
from support.searches import url_in

CODE = """\
import pathlib
import time


def train(config, run):
    pathlib.Path("training").touch()
    while config["held"] and not pathlib.Path("allowed").exists():
        time.sleep(0.05)
    if config["arm"] == "crash":
        raise ValueError("boom")
    if config["arm"] == "mute":
        return {"loss": 1.0}
    if config["arm"] == "flaky" and run.seed == 1_000_001:
        return {"val_loss": float("nan")}
    noise = 0.005 * run.stream("noise", config["arm"], str(config["effect"])).standard_normal()
    loss = 1 - config["effect"] + 0.01 * run.stream("seed").standard_normal() + noise
    return {"val_loss": loss, "params": 10 + 0 * config["idle"]}
"""
STUDY = """\
study: planted
trainable: campaign_code:train
config: {effect: 0.0, arm: none, idle: 0, held: 0}
objectives: [{metric: val_loss, direction: minimize}]
variants: [{name: whole}, {name: strong, config: {effect: 0.1}}]
campaign: {runs: 16, close: {test: false, replicates: 3}}
"""
Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Say:
    """A command in the folder of a campaign that is open: its exit code and the last of what it prints."""
    write_study(tmp_path, {"campaign_code.py": CODE, "study.yaml": STUDY})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def command(*words: str) -> tuple[int, str]:
        code, out, err = run(capfd, *words, *([] if words[1] in ("status", "list") else LOCAL))
        assert "] search" not in err
        return code, " ".join((out or err).split())

    code, out = command("campaign", "open", "study.yaml")
    assert code == 0
    assert out.startswith("4 runs, 0 candidates.")
    assert "12 for 2 sd (= 0.0" in out
    return command


@pytest.mark.services
def test_each_state_has_its_line_and_exit_code(say: Say) -> None:
    cases = [
        (["--set", "config.effect=-0.1"], 3, " val_loss behind the champion; a gain worth keeping is now unlikely"),
        (["--set", "config.effect=-0.1"], 3, "DISCARD: judged before, after 1 run (no run spent)."),
        (["--set", "config.arm=crash"], 3, "DISCARD: crashed in run 1: campaign_code.py:10: ValueError: boom"),
        (["--set", "config.arm=mute"], 3, "DISCARD: crashed in run 1: no finite value of val_loss in the last report"),
        (["--set", "config.idle=1"], 3, "DISCARD after 3 runs: same numbers as the champion to the last bit."),
        (["--set", "config.effct=1"], 2, "config.effct is no setting of the study file. Did you mean 'config.effect'?"),
        (["--set", "config.effect=0.0"], 2, "it is the champion's configuration"),
        (["--part", "weak"], 2, "--part weak: the study file has no such row."),
        (["--set", "config.effect=0.05", "--runs", "2"], 4, "UNDECIDED after 2 runs: gain 0.0"),
        (["--part", "strong", "--note", "why not", "--by", "ana"], 0, "KEEP gain 0."),
        (["--set", "config.arm=b", "--no-wait"], 4, "OPEN: 0 runs, 0 running; no keep before 8."),
    ]
    for options, code, line in cases:
        assert (found := say("judge", "planted", *options))[0] == code, found
        assert line in found[1], options
    assert [study["state"] for study in overview(Locations(runs_dir=Path("runs")))] == ["interrupted"]
    found = checked("judge", say("judge", "planted", "--set", "config.effect=0.09", "--json")[1])
    assert (found["state"], found["k"], found["reign"]) == ("discard", 2, 2), "after the one that waited"
    listed = checked("campaign_list", say("campaign", "list", "planted", "--json")[1])
    kept = next(each for each in listed if each["state"] == "keep")
    assert (kept["note"], kept["by"], kept["change"]) == ("why not", "ana", {"config.effect": 0.1})
    assert (kept["gain"], kept["cost"]["params"]) == (pytest.approx(0.1, abs=0.02), [10, 10])
    assert "config.effect=0.1 (why not): KEEP" in say("campaign", "list", "planted")[1]
    assert say("campaign", "close", "planted")[0] == 0
    status = checked("campaign_status", say("campaign", "status", "planted", "--json")[1])
    assert status["closed"]
    assert status["champion"] == {"candidate": kept["candidate"], "revision": None, "settings": kept["settings"]}
    assert (status["closing"]["mean"], status["closing"]["n"]) == (pytest.approx(0.1, abs=0.02), 3)
    assert "Validation, 3 fresh seeds: gain 0." in say("campaign", "status", "planted")[1]
    assert "the campaign is closed" in say("judge", "planted", "--set", "config.arm=c")[1]


@pytest.mark.services
def test_a_closing_with_a_run_that_failed_claims_no_gain(say: Say) -> None:
    assert say("judge", "planted", "--part", "strong", "--set", "config.arm=flaky")[0] == 0
    code, line = say("campaign", "close", "planted")
    assert code == 0
    assert re.search(r"3 fresh seeds: no gain is claimed, because these trials failed: \d+. If the machine is at", line)
    closing = checked("campaign_status", say("campaign", "status", "planted", "--json")[1])["closing"]
    assert (closing["mean"], closing["low"], closing["n"], len(closing["failed"])) == (None, None, 3, 1)
    assert "no gain is claimed" in Path("runs/planted/report/index.html").read_text()


@pytest.mark.services
def test_a_spent_budget_is_named_and_the_campaign_can_be_closed(say: Say, tmp_path: Path) -> None:
    (tmp_path / "short.yaml").write_text(STUDY.replace("study: planted", "study: short\nbudget: {trials: 9}"))
    assert say("campaign", "open", "short.yaml")[0] == 0
    more = "raise `budget` in the study file, then type ablate campaign open FILE --extend"
    code, line = say("judge", "short", "--part", "strong")
    assert (code, line) == (4, f"OPEN: 3 runs, and the budget is spent: {more}.")
    assert say("judge", "short", "--part", "strong", "--set", "config.arm=b")[0] == 2
    code, line = say("judge", "short", "--set", "config.arm=c")
    assert (code, f"the budget is spent: {more}" in line) == (2, True)
    assert "no candidate was kept" in say("campaign", "close", "short")[1]
    assert "UNDECIDED after 3 runs: gain 0." in say("campaign", "list", "short")[1]


@pytest.mark.services
def test_a_spent_time_is_named_and_the_campaign_can_be_closed(say: Say, tmp_path: Path) -> None:
    budget = "study: short\nbudget: {wall_clock: 1s}"
    (tmp_path / "short.yaml").write_text(STUDY.replace("study: planted", budget).replace("campaign_code", "slow_code"))
    slow = CODE.replace('    if config["arm"] == "crash"', '    time.sleep(0.4)\n    if config["arm"] == "crash"')
    write_study(tmp_path, {"slow_code.py": slow})
    say("campaign", "open", "short.yaml")
    say("judge", "short", "--part", "strong")
    code, line = say("judge", "short", "--set", "config.arm=c")
    assert (code, "the budget is spent: raise `budget`" in line) == (2, True), line
    assert say("campaign", "close", "short")[0] == 0


@pytest.mark.services
def test_a_candidate_that_hangs_is_withdrawn(say: Say, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver = begin(tmp_path, "--set", "config.held=1")
    driver.kill()
    driver.wait()
    code, _, err = run(capfd, "prune", "planted", "0")
    assert (code, "is no run of an open candidate" in " ".join(err.split())) == (2, True)
    assert run(capfd, "prune", "planted", "4")[0] == 0
    assert say("judge", "planted", "--part", "strong")[0] == 0
    assert "DISCARD: withdrawn in run 1" in say("campaign", "list", "planted")[1]
    champion = say("campaign", "status", "planted")[1]
    assert "Champion: candidate 2" in champion
    assert run(capfd, "prune", "planted", "5")[0] == 2, "a run of the champion"


@pytest.mark.services
def test_other_packages_are_named_and_taken_once(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.driver.campaign_code.environment", lambda: {**environment(), "numpy": "0.1"})
    judge = ("judge", "planted", "--set", "config.effect=-0.1")
    code, line = say(*judge)
    assert code == 2
    assert re.search(r"since the campaign was opened or continued, numpy \S+ -> 0.1 changed: its runs would not", line)
    assert say(*judge, "--code-changed")[0] == 3
    assert say("judge", "planted", "--set", "config.effect=-0.2")[0] == 3


@pytest.mark.services
def test_a_first_run_that_is_far_behind_is_stopped_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = """\
def train(config, run):
    for epoch in run.epochs():
        yield {"val_loss": 1 - config["effect"] + 0.01 * run.stream("seed").standard_normal()}
"""
    study = """\
study: curves
trainable: curve_code:train
config: {effect: 0.0}
epochs: 6
objectives: [{metric: val_loss, direction: minimize}]
campaign: {runs: 16, close: {test: false}}
"""
    write_study(tmp_path, {"curve_code.py": loop, "study.yaml": study})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(capfd, "campaign", "open", "study.yaml", *LOCAL)[0] == 0
    code, out, err = run(capfd, "judge", "curves", "--set", "config.effect=-0.5", *LOCAL)
    line = "DISCARD: its first run was stopped at epoch 2 of 6, far behind the champion's. Not shown: that it is worse."
    assert (code, " ".join(out.split())) == (3, line), err
    [listed] = checked("campaign_list", run(capfd, "campaign", "list", "curves", "--json")[1])
    assert (listed["state"], listed["reason"], listed["runs"]) == ("discard", "behind", 1)


@pytest.mark.services
def test_the_example_of_the_page_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / "campaign.md").read_text()
    code, study, example = (
        re.findall(rf"```{kind}\n(.*?)```", page, re.S)[0] for kind in ("python", "yaml", "console")
    )
    write_study(tmp_path, {"nano.py": code, "nano.yaml": study})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for step in example.split("$ ablate ")[1:]:
        command, _, says = step.partition("\n")
        _, out, err = run(capfd, *command.split(), *LOCAL)
        assert out.partition("Report:")[0].split() == says.split(), err


@pytest.mark.services
def test_mlflow_shows_what_became_of_each_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    write_study(tmp_path, {"campaign_code.py": CODE, "study.yaml": STUDY})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    here = ("--executor", "local", "--runs-dir", str(tmp_path / "runs"))
    assert run(capfd, "campaign", "open", "study.yaml", *here)[0] == 0
    judge = ("judge", "planted", *here)
    assert run(capfd, *judge, "--set", "config.effect=-0.1")[0] == 3
    client = mlflow.MlflowClient(default_uri(tmp_path / "runs"))
    [experiment] = [each.experiment_id for each in client.search_experiments() if each.name == "planted"]

    def shown() -> tuple[dict[str, set[str]], Any]:
        runs = client.search_runs([experiment])
        [parent] = [each for each in runs if each.data.tags["ablate.kind"] == "study"]
        found: dict[str, set[str]] = {}
        for each in runs:
            if (number := each.data.tags.get("ablate.candidate")) is not None:
                found.setdefault(number, set()).add(each.data.tags.get("ablate.verdict", ""))
        return found, parent

    assert shown()[0] == {"0": {""}, "1": {"discard"}}
    assert run(capfd, *judge, "--part", "strong", "--note", "why not")[0] == 0
    verdicts, parent = shown()
    assert verdicts == {"0": {""}, "1": {"discard"}, "2": {"keep"}}
    assert (parent.data.tags["ablate.champion"], parent.data.tags["ablate.reign"]) == ("2", "2")
    gains = {point.step: point.value for point in client.get_metric_history(parent.info.run_id, "gain")}
    listed = checked("campaign_list", run(capfd, "campaign", "list", "planted", "--json")[1])
    assert gains == {each["candidate"]: pytest.approx(each["gain"]) for each in listed}
    spent = {point.step: point.value for point in client.get_metric_history(parent.info.run_id, "error_spent")}
    assert spent == {1: pytest.approx(0.05 / 51), 2: pytest.approx(0.05 * 2 / 52)}


@pytest.mark.services
def test_later_candidates_may_have_other_runs_and_another_effort_by_extend(say: Say, tmp_path: Path) -> None:
    for change in ("runs: 2", "runs: 16, effort: thorough", "runs: 2, effort: thorough"):
        (tmp_path / "study.yaml").write_text(STUDY.replace("runs: 16", change))
        code, refused = say("campaign", "open", "study.yaml")
        assert code == 2, change
        assert "exists with another effort or number of runs for a candidate: campaign." in refused
    code, out = say("campaign", "open", "study.yaml", "--extend")
    assert code == 0, out
    assert "About 4.5 runs for a change that does nothing" in out
    assert say("judge", "planted", "--set", "config.effect=0.05")[1].startswith("UNDECIDED after 2 runs")


@pytest.mark.services
def test_less_time_is_not_judged_in_packs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = "runs: 16, cheaper: {wall_seconds: 0.9}, margin: {val_accuracy: 0.1}"
    timed = f"""\
study: timed
datasets: {{digits: {{patch: 4}}}}
model: {{width: 8, depth: 1}}
objectives: [{{metric: val_accuracy, direction: maximize}}]
campaign: {{{asked}}}
"""
    write_study(tmp_path, {"study.yaml": timed})
    code, _, said = run(capfd, "campaign", "open", str(tmp_path / "study.yaml"), "--pack", "4", *LOCAL)
    assert code == 2
    assert "study 'timed' measures wall_seconds, and in a pack" in " ".join(said.split())


def begin(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start `ablate judge` as a process and return it once its run trains."""
    (folder / "training").unlink(missing_ok=True)
    words = [sys.executable, "-m", "ablate", "judge", "planted", *options, *LOCAL]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{folder}"}
    process = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    while not (folder / "training").exists():
        assert process.poll() is None, "it ended before it trained"
        time.sleep(0.05)
    return process


def terms(folder: Path) -> list[int]:
    with Ledger.open(url_in(folder / "runs" / "planted")) as ledger:
        return [event.driver_term for event in ledger.events("planted") if event.kind == "judged"]


@pytest.mark.services
def test_of_two_callers_one_drives_and_the_other_gets_its_answer(say: Say, tmp_path: Path) -> None:
    driver = begin(tmp_path, "--set", "config.held=1", "--set", "config.effect=-0.1")
    assert say("judge", "planted", "--set", "config.effect=-0.2", "--wait", "0.5")[0] == 4
    (tmp_path / "allowed").touch()
    code, line = say("judge", "planted", "--set", "config.effect=-0.2")
    assert (code, line.startswith("DISCARD")) == (3, True)
    assert driver.wait() == 3
    assert len(set(terms(tmp_path))) == 1, "one driver judged both"


@pytest.fixture
def in_storage(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign's ledger in each kind of database."""
    if "postgresql" in storage:
        monkeypatch.setenv("ABLATE_STORAGE", storage)


@pytest.mark.services
@pytest.mark.usefixtures("in_storage")
def test_a_killed_caller_is_continued_by_the_same_command(say: Say, tmp_path: Path) -> None:
    change = ("--set", "config.held=1", "--set", "config.effect=-0.1")
    driver = begin(tmp_path, *change)
    driver.kill()
    driver.wait()
    assert say("judge", "planted", *change, "--wait", "1", "--grace", "0")[0] == 4, "it paused what it drove"
    (tmp_path / "allowed").touch()
    code, line = say("judge", "planted", *change)
    assert (code, line.startswith("DISCARD after 1 run")) == (3, True)
    assert len(json.loads(say("campaign", "list", "planted", "--json")[1])) == 1


@pytest.mark.services
def test_the_python_interface_judges_in_the_order_of_the_calls(say: Say) -> None:
    options: dict[str, Any] = {"executor": "local", "tracker": "none"}
    with ablate.campaign("study.yaml", **options) as campaign:
        found = campaign.judge_all([{"settings": {"config.effect": effect}} for effect in (-0.1, -0.2)])
        assert [each.state for each in found] == ["discard"] * 2
        kept = campaign.judge(part="strong", note="why not")
        assert (kept.state, kept.runs, kept.need) == ("keep", 8, None)
        assert kept.low < 0.1 < kept.high
        assert campaign.status()["champion"]["settings"] == {"config.effect": 0.1}
        assert campaign.close()["closing"]["mean"] == pytest.approx(0.1, abs=0.02)
