"""A command as a trainable: its output becomes reports, and nothing of it outlives its trial."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ablate.base.errors import PausedError, RequestError, StudyFileError, TrialError
from ablate.core.trial import BestReport, Report
from ablate.functions.code.changes import source_files
from ablate.ledger import Ledger
from ablate.study import parse_study
from support.commanded import COMMAND, commanded
from support.commands import run

SCRIPT = """\
import sys, time
x, seed, epochs = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
open(f"started-{seed}", "a").write(sys.argv[1] + chr(10))
print("noise", end="\\r")
for epoch in range(1, epochs + 1):
    print(f"loss {epoch}: val_loss={x + seed + 1 / epoch} val_loss_of_a_batch=99")
    print(f"val_extra={seed}")
    time.sleep(0.02)
print("test_loss=0.5"); print("test_loss=0.25")
"""
METRICS = {"val_loss": "val_loss=([0-9.e+-]+)", "val_extra": "val_extra=([0-9]+)", "test_loss": "test_loss=([0-9.]+)"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the script, which commands are typed in."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reports(command: str = COMMAND, *, x: object = 2.0, **more: Any) -> Iterator[Report]:
    return commanded(command, **{"metrics": METRICS, "config": {"x": x}, "seeds": (0, 1), **more})


def test_each_time_that_all_metrics_were_printed_is_a_report(folder: Path) -> None:
    found = list(reports())
    assert [(r.epoch, r.final) for r in found] == [(1, False), (2, False), (3, True)]
    assert [[m["val_loss"] for m in r.metrics] for r in found] == [[2 + s + 1 / e for s in (0, 1)] for e in (1, 2, 3)]
    assert [[m["val_extra"] for m in r.metrics] for r in found] == [[0, 1]] * 3
    assert not any("test_loss" in m for r in found for m in r.metrics)


def test_a_confirmation_reads_the_last_value_of_the_test_split(folder: Path) -> None:
    found = list(reports(stage="confirm"))
    assert [["test_loss" in m for m in r.metrics] for r in found] == [[False] * 2, [False] * 2, [True] * 2]
    assert [m["test_loss"] for m in found[-1].metrics] == [0.25, 0.25]


def test_a_trial_pauses_while_its_command_is_silent(folder: Path) -> None:
    (folder / "train.py").write_text("import time; time.sleep(1000)")
    asked = iter([False, False, True, True])
    with pytest.raises(PausedError):
        next(reports(pause=lambda: next(asked, True)))


@pytest.mark.parametrize("value", ["a b", "$(touch x)", "'; touch x; '", "{seed}", '"', "*"])
@pytest.mark.parametrize("shell", [False, True])
def test_a_value_is_one_argument_whatever_it_holds(value: str, shell: bool, folder: Path) -> None:
    (folder / "train.py").write_text(
        "import sys; open('seen', 'w').write(repr(sys.argv[1:])); print('val_loss=1 val_extra=1')"
    )
    next(reports(f"{sys.executable} train.py {{x}} end", x=value, shell=shell))
    assert (folder / "seen").read_text() == repr([value, "end"])
    assert not (folder / "x").exists()


def test_a_shell_runs_the_command_if_it_is_asked_to(folder: Path) -> None:
    command = "for i in 1 2 3; do echo val_loss={x}.$i val_extra={seed}; done | cat"
    found = list(reports(command, x=7, shell=True))
    assert [r.metrics[0]["val_loss"] for r in found] == [7.1, 7.2, 7.3]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "print('val_loss=1'); raise SystemExit(3)",
            r"exit code 3 before it printed val_extra\. Its last lines: val_loss=1",
        ),
        (
            "print('val_loss=1 val_extra=1'); raise SystemExit(3)",
            r"exit code 3 after 1 of 3 reports, before it printed val_extra, val_loss",
        ),
    ],
)
def test_a_command_that_ends_early_says_what_it_printed_last(code: str, says: str, folder: Path) -> None:
    (folder / "train.py").write_text(code)
    with pytest.raises(TrialError, match=says):
        list(reports())


STUDY = """\
study: commanded
trainable: {command: '%s', metrics: {val_loss: 'val_loss=([0-9.e+-]+)', test_loss: 'test_loss=([0-9.]+)'}}
config: {x: {choices: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}}
epochs: 4
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: grid}
scheduler: {name: asha, reduction: 2}
replicates: 2
budget: {trials: 6}
confirm: {replicates: 2}
"""


def test_a_study_of_a_command_is_searched_and_confirmed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "study.yaml").write_text(STUDY % COMMAND)
    code, _, err = run(capfd, "search", "study.yaml", "--executor", "local", "--tracker", "none")
    assert code == 0, err
    trials = pl.read_parquet(folder / "runs" / "commanded" / "trials.parquet")
    assert set(trials["state"]) == {"COMPLETE", "PRUNED"}
    confirmed = trials.filter(stage="confirm")
    assert (confirmed["config.x"].to_list(), confirmed["test_loss"].to_list()) == ([1.0], [0.25])
    started = [sorted((folder / f"started-{seed}").read_text().split()) for seed in (0, 1)]
    assert started == [["1.0", "2.0", "3.0", "4.0", "5.0", "6.0"]] * 2
    with Ledger.open(f"sqlite:///{folder}/runs/commanded/ledger.sqlite", create=False) as ledger:
        [event] = [event for event in ledger.snapshot("commanded").events if event.kind == "code"]
    assert list(event.payload["files"]) == ["train.py"]
    (folder / "train.py").write_text(SCRIPT.replace("1 / epoch", "2 / epoch"))
    code, _, err = run(capfd, "search", "study.yaml", "--executor", "local", "--tracker", "none")
    assert code == 2
    assert "the code that it names has changed since: train.py." in " ".join(err.split())


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("python train.py {x} --out=history.json --config=conf.yaml > log.txt", ["conf.yaml", "train.py"]),
        ("sh -c 'python train.py {x} | tee log.txt'", ["train.py"]),
        ("python -m pack.train {x}", ["pack/__init__.py", "pack/train.py"]),
        ("python train.py -m pack {x}", ["train.py"]),
        ("./begin {x} /usr/bin/env", ["./begin"]),
    ],
)
def test_the_code_of_a_command_is_watched_and_not_what_it_writes(command: str, files: list[str], folder: Path) -> None:
    (folder / "pack").mkdir()
    for name in ("history.json", "log.txt", "conf.yaml", "pack/__init__.py", "pack/train.py", "begin"):
        (folder / name).touch()
    (folder / "begin").chmod(0o755)
    study = parse_study((STUDY % command.replace("'", "''")), "study.yaml", known_good=True)
    assert sorted(source_files(study)) == files


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{x}", "{y}", r"the command uses \{y\}, which `config` does not give"),
        ("{x}", "", r"config\.x: the command does not use \{x\}"),
        ("{x}", "{x} {0}", r"the command uses \{0\}, which is no name"),
        (sys.executable, "pyhton3", r"begins with 'pyhton3', which is not a program here"),
        (", test_loss: 'test_loss=([0-9.]+)'", "", r"whose name starts with test_"),
        ("metric: val_loss", "metric: val_acc", r"has no metric 'val_acc'\."),
        ("objectives: [{metric: val_loss, direction: minimize}]", "", "val_accuracy', the default of `objectives`"),
    ],
)
def test_a_command_that_does_not_fit_is_refused_before_anything_runs(
    old: str, new: str, says: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import re

    (folder / "study.yaml").write_text((STUDY % COMMAND).replace(old, new))
    code, _, err = run(capfd, "search", "study.yaml", "--executor", "local", "--tracker", "none")
    assert (code, bool(re.search(says, " ".join(err.split())))) == (2, True), err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("trainable", "says"),
    [
        ("{command: ls}", r"trainable\.metrics: this key is required"),
        ("{command: ls, metric: 'acc=([0-9])'}", "a single metric begins with its name, val_"),
        ("{command: ls, metrics: {val_x: '('}}", r"metrics\.val_x\.pattern = '\(': not a regular expression"),
        ("{command: ls, metrics: {val_x: 'a=[0-9]'}}", r"metrics\.val_x\.pattern = 'a=\[0-9\]': has 0 groups"),
        ("{command: ls, metrics: {val_x: 'a=([0-9])'}, shel: true}", "this key is not known. Did you mean 'shell'"),
    ],
)
def test_a_study_file_of_a_command_is_checked(trainable: str, says: str) -> None:
    with pytest.raises((StudyFileError, RequestError), match=says):
        parse_study(f"study: s\ntrainable: {trainable}\n")


def test_words_that_cannot_be_split_and_numbers_with_a_form(folder: Path) -> None:
    with pytest.raises(StudyFileError, match="cannot be split into words: No closing quotation"):
        parse_study('study: s\ntrainable: {command: "echo \'x", metric: val_x=(.)}\nobjectives: [{metric: val_x}]\n')
    (folder / "train.py").write_text("import sys; print(f'val_loss={sys.argv[1]}. val_extra=1')")
    found = reports(f"{sys.executable} train.py {{x:.2f}}", x=0.123, epochs=1)
    assert [m["val_loss"] for m in next(found).metrics] == [0.12, 0.12]
    found.close()  # type: ignore[attr-defined]


def test_wrap_searches_a_command_and_continues_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["wrap", COMMAND, "x=1:4", "--metric", METRICS["val_loss"], "--epochs", "2"]
    words += ["--trials", "3", "--name", "w", "--executor", "local", "--tracker", "none"]
    for _ in range(2):
        code, _, err = run(capfd, *words)
        assert code == 0, err
    trials = pl.read_parquet(folder / "runs" / "w" / "trials.parquet")
    assert (trials.height, trials["config.x"].dtype) == (3, pl.Int64)
    assert len((folder / "started-0").read_text().split()) == 3


CURVE = """\
import sys
seed, epochs, form = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
losses = [[5, 3, 2, 4], [4, 4, 1, 3]][seed]  # the third report is the best
for epoch, loss in enumerate(losses, start=1):
    before = f"test_loss={10 * epoch + seed} " if form == "before" else ""
    print(f"epoch={epoch}" if form == "epochs" else "", f"{before}val_loss={loss} val_extra={epoch}")
    if form in ("behind", "epochs") or (form == "seldom" and epoch % 2 == 0):
        print(f"test_loss={10 * epoch + seed}")
if form == "end":
    print("test_loss=0.5")
"""
BEST = BestReport(metric="val_loss", direction="minimize")


@pytest.mark.parametrize(
    ("form", "tested"),
    [("before", [30.0, 31.0]), ("behind", [30.0, 31.0]), ("epochs", [30.0, 31.0]), ("end", [0.5, 0.5])],
)
def test_what_was_printed_of_the_best_report_is_that_of_the_test_split(
    form: str, tested: list[float], folder: Path
) -> None:
    (folder / "train.py").write_text(CURVE)
    asked: dict[str, Any] = {"epochs": 4, "checkpoints": folder / "trial"}
    asked |= {"epoch": "epoch={number}"} if form == "epochs" else {}
    found = list(reports(f"{COMMAND} {form}", stage="confirm", trial={"best": BEST}, **asked))[-1]
    assert [m["test_loss"] for m in found.metrics] == tested
    assert [m["val_loss"] for m in found.metrics] == [4, 3], "its last report"
    (read,) = reports(f"{COMMAND} {form}", stage="confirm", trial={"best": BEST, "evaluates": 4}, **asked)
    assert (read.epoch, read.final) == (3, True)
    assert [(m["val_loss"], m["test_loss"]) for m in read.metrics] == list(zip([2, 1], tested, strict=True))


def test_values_of_the_test_split_that_belong_to_no_report_are_refused(folder: Path) -> None:
    (folder / "train.py").write_text(CURVE)
    says = (
        r"printed test_loss 2 times, and none is known to be of its best report \(number 3\): print it with each report"
    )
    with pytest.raises(TrialError, match=says):
        list(reports(f"{COMMAND} seldom", stage="confirm", epochs=4, trial={"best": BEST}))
