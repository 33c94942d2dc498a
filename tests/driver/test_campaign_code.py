"""`ablate judge --code` on planted changes of a repository's code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ablate.functions.code.snapshot import environment
from support.commands import LOCAL, checked, run
from support.paths import REPOSITORY
from support.repositories import commit, git, repository, write

TRAIN = """\
import pathlib, random, sys, time
import data

GAIN = 0.0
HELD = False
seed = int(sys.argv[1])
if HELD:
    pathlib.Path("../../../../training").touch()
    while not pathlib.Path("../../../../allowed").exists():
        time.sleep(0.05)
noise = random.Random(f"{seed} {GAIN}").gauss(0, 0.003) + random.Random(seed).gauss(0, 0.01)
print(f"val_loss={1 - GAIN - float(sys.argv[2]) + noise:.9f} rows={len(open('rows/a.csv').read())}")
"""
FUNCTION = """
def train(config, run):
    noise = run.stream("noise", str(GAIN)).standard_normal() * 0.003 + run.stream("seed").standard_normal() * 0.01
    return {"val_loss": 1 - GAIN - config["shift"] + noise}
"""
STUDY = f"""\
study: coded
trainable:
  command: {sys.executable} train.py {{seed}} {{shift}}
  metrics: {{val_loss: "val_loss={{number}}"}}
config: {{shift: 0.0}}
epochs: 1
objectives: [{{metric: val_loss, direction: minimize}}]
campaign: {{runs: 16, guard: [data.py], link: [rows], close: {{test: false, replicates: 2}}}}
"""
Say = Callable[..., tuple[int, str]]


def gain(amount: float, text: str = TRAIN) -> dict[str, str]:
    return {"train.py": text.replace("GAIN = 0.0", f"GAIN = {amount}")}


def commands(place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Say:
    """Return what runs a command in the folder `place`: its exit code and what it prints, errors last."""
    monkeypatch.chdir(place)

    def say(*words: str) -> tuple[int, str]:
        code, out, err = run(capfd, *words, *([] if {"status", "list", "report"} & {*words} else LOCAL))
        return code, out if "--json" in words else " ".join((out + err).split())

    return say


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Say]:
    """Return what opens a campaign in a new repository and returns a command there."""

    def opened(study: str, files: Mapping[str, str]) -> Say:
        files = {**files, "study.yaml": study, ".gitignore": "rows\nruns\ntraining\nallowed\n"}
        place = repository(tmp_path / "repo", files)
        write(place, {"rows/a.csv": "12345"})
        found = commands(place, monkeypatch, capfd)
        code, line = found("campaign", "open", "study.yaml")
        assert code == 0, line
        return found

    return opened


@pytest.fixture
def say(begin: Callable[..., Say]) -> Say:
    """A command in the repository of a campaign that is open."""
    return begin(STUDY, {"train.py": TRAIN, "data.py": ""})


@pytest.mark.services
def test_a_planted_gain_is_kept_and_what_changes_nothing_costs_no_run(say: Say) -> None:
    here = Path.cwd()
    worse = commit(here, gain(-0.1))
    comment = commit(here, {"train.py": "# a comment\n" + TRAIN})
    guarded = commit(here, {"data.py": "x = 1", "requirements.txt": "numpy"})
    better = commit(here, {**gain(0.1), "data.py": ""})
    cases = [
        ([comment], 2, "study 'coded': it is the champion's program"),
        ([guarded], 2, "the candidate changes data.py, which the campaign guards"),
        (["nothing"], 2, "'nothing' is no revision, branch or worktree"),
        ([worse, comment], 2, "study 'coded': it is the champion's program"),
        ([worse], 3, "DISCARD after 1 run: 0."),
        ([worse], 3, "DISCARD: judged before, after 1 run (no run spent)."),
        ([worse, better], 0, f"Champion is now {better[:7]} (reign 2)."),
        ([better], 2, "it is the champion's program"),
    ]
    for revisions, code, line in cases:
        found = say("judge", "coded", *(word for each in revisions for word in ("--code", each)))
        assert (found[0], line in found[1]) == (code, True), found
    code, line = say("judge", "coded", "--code", better, "--set", "config.shift=-0.1")
    assert (code, line.startswith("DISCARD after 1 run")) == (3, True), line
    first, kept, both = checked("campaign_list", say("campaign", "list", "coded", "--json")[1])
    assert (first["code"]["revision"], kept["code"]["revision"]) == (worse, better)
    assert (kept["gain"], both["champion"]) == (pytest.approx(0.1, abs=0.02), {"candidate": 2, "revision": better})
    assert [each["code"] for each in kept["warnings"]] == ["dependencies"]
    assert "+GAIN = 0.1" in git(here, *kept["diff"].split()[1:])
    assert both["diff"] is None, "the champion's code"
    assert say("report", "coded")[0] == 0
    assert kept["diff"] in (here / "runs/coded/report/index.html").read_text()
    assert better[:7] in say("campaign", "list", "coded")[1]
    assert len(list((here / "runs" / "coded" / "versions").iterdir())) > 1
    assert say("campaign", "close", "coded")[0] == 0
    assert not list((here / "runs" / "coded" / "versions").iterdir())
    assert len(git(here, "worktree", "list").splitlines()) == 1
    status = checked("campaign_status", say("campaign", "status", "coded", "--json")[1])
    assert (status["champion"]["revision"], status["closing"]["n"]) == (better, 2)


@pytest.mark.services
def test_the_working_tree_is_judged_and_stays_as_it_is(say: Say) -> None:
    here = Path.cwd()
    write(here, {"notes.txt": "untracked", **gain(0.1)})
    git(here, "add", "notes.txt")
    before = git(here, "status", "--porcelain"), git(here, "diff"), git(here, "write-tree"), git(here, "stash", "list")
    shutil.rmtree(here / "runs" / "coded" / "versions")
    found = checked("judge", say("judge", "coded", "--json")[1])
    assert (found["state"], found["code"]["dirty"], found["change"]) == ("keep", True, {})
    after = git(here, "status", "--porcelain"), git(here, "diff"), git(here, "write-tree"), git(here, "stash", "list")
    assert after == before
    revision = found["code"]["revision"]
    assert "GAIN = 0.1" in git(here, "show", f"{revision}:train.py")
    assert "+GAIN = 0.1" in git(here, *found["diff"].split()[1:])
    assert len(list((here / "runs" / "coded" / "versions").iterdir())) == 2, "the deleted one was made again"
    assert "it is the champion's program" in say("judge", "coded")[1]


@pytest.mark.services
def test_the_example_of_the_page_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / "campaign.md").read_text().partition("## A change of code")[2]
    (evaluate, train), (study,), (example,) = (
        re.findall(rf"```{kind}\n(.*?)```", page, re.S) for kind in ("python", "yaml", "console")
    )
    files = {"evaluate.py": evaluate, "train.py": train, "net.yaml": study, ".gitignore": "runs/"}
    say = commands(repository(tmp_path / "net", files), monkeypatch, capfd)
    assert say("campaign", "open", "net.yaml")[0] == 0
    write(Path.cwd(), {"train.py": train.replace("WIDTH = 64", "WIDTH = 96")})
    command, _, says = example.removeprefix("$ ablate ").partition("\n")
    found, told = (
        re.sub(r"now \w{7} ", "now REV ", " ".join(text.split())) for text in (say(*command.split())[1], says)
    )
    assert found.startswith(told), found


@pytest.mark.services
def test_a_killed_caller_is_continued_by_the_same_command(say: Say) -> None:
    here = Path.cwd()
    held = commit(here, gain(-0.1, TRAIN.replace("HELD = False", "HELD = True")))
    words = [sys.executable, "-m", "ablate", "judge", "coded", "--code", held, *LOCAL]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    driver = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    while not (here / "training").exists():
        assert driver.poll() is None, "it ended before it trained"
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    (here / "allowed").touch()
    code, line = say("judge", "coded", "--code", held)
    assert (code, line.startswith("DISCARD after 1 run")) == (3, True), line
    assert len(json.loads(say("campaign", "list", "coded", "--json")[1])) == 1


@pytest.mark.services
def test_a_worktree_that_cannot_be_made_costs_no_candidate(say: Say, capfd: pytest.CaptureFixture[str]) -> None:
    here = Path.cwd()
    write(here, gain(0.1))
    assert say("judge", "coded", "--no-wait")[0] == 4
    shutil.rmtree(here / "runs" / "coded" / "versions")
    shutil.rmtree(here / ".git" / "worktrees")
    (here / ".git" / "worktrees").touch()
    assert say("judge", "coded")[0] == 75
    code, _, err = run(capfd, "resume", "coded", *LOCAL)
    assert (code, "Nothing is lost: correct it, then type ablate resume coded" in " ".join(err.split())) == (75, True)
    (here / ".git" / "worktrees").unlink()
    code, line = say("judge", "coded")
    assert (code, line.startswith("KEEP")) == (0, True), line


@pytest.mark.services
def test_other_packages_leave_the_code_of_a_campaign_as_it_is(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.driver.campaign_code.environment", lambda: {**environment(), "numpy": "0.1"})
    write(Path.cwd(), gain(0.1))
    assert say("judge", "coded")[0] == 2
    code, line = say("judge", "coded", "--code-changed")
    assert (code, line.startswith("KEEP")) == (0, True), line
    write(Path.cwd(), gain(0.2))
    assert say("judge", "coded")[0] == 0


@pytest.mark.services
def test_a_repository_with_a_fault_is_refused_at_the_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4\nsize 5\n"
    study = STUDY.replace("guard: [data.py], link: [rows], ", "")
    files = {"train.py": TRAIN, "data.py": "", "study.yaml": study, ".gitignore": "runs/", "w.bin": pointer}
    say = commands(repository(tmp_path / "repo", files), monkeypatch, capfd)
    code, line = say("campaign", "open", "study.yaml")
    assert (code, "w.bin: is a Git LFS pointer" in line) == (2, True)


@pytest.mark.services
def test_a_function_is_judged_in_its_version(
    begin: Callable[..., Say], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train = TRAIN.replace("int(sys.argv[1])", "0").partition("noise =")[0] + FUNCTION
    trainable = STUDY.partition("trainable:")[2].partition("config:")[0]
    study = STUDY.replace(trainable, " train:train\n").replace("link: [rows], ", "").replace("epochs: 1\n", "")
    monkeypatch.syspath_prepend(".")
    say = begin(study, {"train.py": train, "data.py": ""})
    assert "git ignores rows/: a run sees of it only what `campaign.link` names" in caplog.text
    write(Path.cwd(), gain(0.1, train))
    code, line = say("judge", "coded", "--note", "why not")
    assert (code, line.startswith("KEEP")) == (0, True), line


@pytest.mark.services
def test_the_code_of_the_opening_measures(begin: Callable[..., Say]) -> None:
    writes = "pathlib.Path(sys.argv[3], 'said').write_text(f'val_loss={1 - GAIN + noise}')\nprint('val_loss=9')\n"
    train = TRAIN.partition("print(")[0] + writes
    evaluate = "import pathlib, sys\nprint(pathlib.Path(sys.argv[1], 'said').read_text())"
    asked = f"evaluate: '{sys.executable} evaluate.py {{output}}'"
    study = STUDY.replace("{shift}", "{shift} {folder}").replace("guard: [data.py]", asked)
    say = begin(study, {"train.py": train, "data.py": "", "evaluate.py": evaluate})
    write(Path.cwd(), {"evaluate.py": "print('val_loss=0')"})
    code, line = say("judge", "coded")
    assert (code, "same numbers as the champion to the last bit" in line) == (3, True), line
    write(Path.cwd(), gain(0.1, train))
    assert say("judge", "coded")[0] == 0


@pytest.mark.services
def test_outside_a_repository_there_is_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"train.py": TRAIN, "data.py": "", "rows/a.csv": "1", "study.yaml": STUDY})
    say = commands(tmp_path, monkeypatch, capfd)
    assert say("campaign", "open", "study.yaml")[0] == 2, "its guard needs code"
    write(tmp_path, {"study.yaml": STUDY.replace("guard: [data.py], link: [rows], ", "")})
    assert say("campaign", "open", "study.yaml")[0] == 0
    code, line = say("judge", "coded", "--code", "HEAD")
    assert code == 2
    assert "as it was opened without code" in line
    assert "is in no git repository" in line
    assert say("judge", "coded", "--set", "config.shift=-0.1")[0] == 3
