"""However a user's code ends, that is the end of its trial, in one line with file and line, on both executors."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from ablate.api import load_study
from support.commands import LOCAL, RAY, run

ENDS = {  # by the value of config["way"]: the statement, what is said of it, and how often it is tried
    "text": ("sys.exit('bad lr')", r"mine\.py:{line}: .*sys\.exit\('bad lr'\)", 1),
    "zero": ("sys.exit(0)", r"mine\.py:{line}: .*sys\.exit\(0\)", 1),
    "two": ("raise SystemExit(2)", r"mine\.py:{line}: .*sys\.exit\(2\)", 1),
    "at_once": ("os._exit(0)", r"mine\.py:{line}: .*os\._exit\(0\)", 1),
    "at_once_3": ("os._exit(3)", r"mine\.py:{line}: .*os\._exit\(3\)", 1),
    "exec": ("os.execv('/bin/true', ['true'])", r"ended with exit code 0: .* was replaced by another program", 1),
    "keys": ("raise KeyboardInterrupt", r"mine\.py:{line}: .*KeyboardInterrupt", 1),
    "signal": ("signal.raise_signal(signal.SIGINT)", r"mine\.py:{line}: .*KeyboardInterrupt", 1),
    "own": ("raise Stop('mine')", r"mine\.py:{line}: Stop: mine", 1),
    "error": ("raise KeyError('lr')", r"mine\.py:{line}: KeyError: 'lr'", 1),
    "stop": ("raise StopIteration", r"mine\.py:{line}: .*StopIteration", 1),
    "closed": ("raise GeneratorExit", r"mine\.py:{line}: .*GeneratorExit", 1),
    "cancelled": ("raise asyncio.CancelledError", r"mine\.py:{line}: .*CancelledError", 1),
    "deep": ("deep(0)", r"mine\.py:\d+: RecursionError", 1),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", r"its process was ended by SIGKILL.*attempt 3", 3),
    "crash": ("ctypes.string_at(0)", r"mine\.py:{line}: its process was ended by SIGSEGV.*attempt 3", 3),
    "abort": ("os.abort()", r"mine\.py:{line}: its process was ended by SIGABRT.*attempt 3", 3),
    "forked": ("fork()", r"mine\.py:\d+: ValueError: in the parent", 1),
}  # fmt: skip
HEAD = """
import asyncio, ctypes, os, signal, sys

class Stop(BaseException):
    pass

def deep(n):
    return deep(n + 1)

def fork():
    if os.fork() == 0:
        raise ValueError("in the child")
    os.wait()
    raise ValueError("in the parent")

def train(config, run):
    way = config["way"]
    run.keep()
    for epoch in run.epochs():
        if epoch == 2:
            with open(config["log"], "a") as log:
                log.write(way + "\\n")
            end(way)
        yield {"val_loss": 1.0 / epoch}

def end(way):
"""
STUDY = """\
study: ends
trainable: mine:train
config:
  way: {{choices: [{ways}]}}
  log: {log}
epochs: 3
objectives: [{{metric: val_loss, direction: minimize}}]
sampler: {{name: grid}}
scheduler: {{name: none}}
budget: {{trials: 100}}
confirm: null
"""


def write(folder: Path, ends: Sequence[str] = ()) -> dict[str, int]:
    """Write the study and its code, and return the line of each end."""
    code, lines = HEAD, {}
    for way, (statement, _, _) in ENDS.items():
        code += f"    if way == {way!r}:\n"
        lines[way] = code.count("\n") + 1
        code += f"        {statement}\n"
    (folder / "mine.py").write_text(code)
    ways = ["fine", *ends, "fine_too"]
    (folder / "study.yaml").write_text(STUDY.format(ways=", ".join(ways), log=folder / "log"))
    return lines


@pytest.mark.services
@pytest.mark.parametrize(
    ("executor", "ends"),
    [
        pytest.param(LOCAL, [*ENDS], id="local"),
        pytest.param(RAY, ["text", "at_once", "exec", "signal", "killed"], id="ray"),
        pytest.param(RAY, [*ENDS], id="ray-all", marks=pytest.mark.slow),
    ],
)
def test_every_end_of_a_users_code_is_the_end_of_its_trial_alone(
    executor: tuple[str, ...],
    ends: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    lines = write(tmp_path, ends)
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capfd, "search", "study.yaml", *executor)
    assert code == 0, err
    found = {row["config.way"]: row for row in load_study("ends").trials().iter_rows(named=True)}
    assert {way: row["state"] for way, row in found.items()} == {
        "fine": "COMPLETE",
        "fine_too": "COMPLETE",
        **dict.fromkeys(ends, "FAIL"),
    }
    tried = (tmp_path / "log").read_text().split()
    for way in ends:
        _, said, times = ENDS[way]
        error = found[way]["error"]
        assert re.search(said.format(line=lines[way]), error), (way, error)
        assert "\n" not in error
        assert "\x1b" not in error
        assert tried.count(way) == times, (way, error)
    assert "Traceback" not in err


IMPORTS = {
    "exit": ("import sys\nprint('a script')\nsys.exit(0)\n", r"mine\.py:3 calls sys\.exit\(0\)"),
    "arguments": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()\n",
        r"mine\.py:4 calls sys\.exit\(2\)",
    ),
    "error": ("import nothing_of_this_name\n", r"cannot import 'mine': No module named 'nothing_of_this_name'"),
    "os": ("import os\nos._exit(0)\n", r"mine\.py:2: .*os\._exit\(0\)"),
    "killed": ("import os\nos.kill(os.getpid(), 9)\n", "its process was ended by SIGKILL"),
    "keys": ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
}


@pytest.mark.services
@pytest.mark.parametrize("form", IMPORTS)
def test_a_module_that_ends_when_it_is_imported_makes_no_command_succeed(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    text, said = IMPORTS[form]
    (tmp_path / "mine.py").write_text(text + "def train(config, run):\n    return {'val_loss': config['way']}\n")
    monkeypatch.chdir(tmp_path)
    for command in (
        ("plan", "study.yaml"),
        ("search", "study.yaml", *LOCAL),
        ("new", "mine", "--function", "mine:train"),
    ):
        code, out, err = run(capfd, *command)
        assert code == 2, (command, out, err)
        [line] = [line for line in err.splitlines() if line.startswith("ablate: ")]
        assert re.search(said, line), line
        assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "mine.yaml").exists()


HOPELESS = """
def train(config, run):
    run.keep()
    for epoch in run.epochs():
        if config["way"] not in {fine}:
            raise AttributeError("no such thing")
        yield {{"val_loss": 1.0 / epoch}}
"""


def hopeless(
    folder: Path, fine: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *options: str
) -> tuple[int, str, pl.DataFrame]:
    (folder / "mine.py").write_text(HOPELESS.format(fine=fine))
    ways = "a, b, c, d"
    starts = "start: [{config.way: a}, {config.way: b}, {config.way: c}, {config.way: d}]\n"
    (folder / "study.yaml").write_text(STUDY.format(ways=ways, log="x").replace("  log: x\n", "") + starts)
    monkeypatch.chdir(folder)
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL, *options)
    return code, err, load_study("ends").trials()


@pytest.mark.services
def test_a_study_whose_first_two_trials_fail_before_a_report_ends_with_the_line_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, err, trials = hopeless(tmp_path, [], monkeypatch, capfd)
    assert code == 1
    assert trials["state"].to_list() == ["FAIL", "FAIL"]
    said = err.splitlines()[-1]
    assert "mine.py:6: AttributeError: no such thing" in said
    assert "--keep-going" in said
    code, err, trials = hopeless(tmp_path, [], monkeypatch, capfd)
    assert (code, trials["state"].to_list()) == (1, ["FAIL"] * 2), "both fail again, and it says so again"
    code, err, trials = hopeless(tmp_path, [], monkeypatch, capfd, "--keep-going")
    assert (code, trials["state"].to_list()) == (1, ["FAIL"] * 4), "none has completed"


@pytest.mark.services
@pytest.mark.parametrize("fine", ["a", "b"])
def test_one_report_is_enough_to_go_on(
    fine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, err, trials = hopeless(tmp_path, [fine], monkeypatch, capfd)
    assert code == 0, err
    assert sorted(trials["state"].to_list()) == ["COMPLETE", "FAIL", "FAIL", "FAIL"]


@pytest.mark.services
def test_a_sampler_that_ends_the_process_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("def train(config, run):\n    return {'val_loss': config['lr']}\n")
    (tmp_path / "ours.py").write_text("import sys\n\ndef build(*_, **__):\n    sys.exit(0)\n")
    (tmp_path / "study.yaml").write_text(
        "study: ends\ntrainable: mine:train\nconfig: {lr: {float: [0, 1]}}\nsampler: {name: 'ours:build'}\n"
        "objectives: [{metric: val_loss, direction: minimize}]\nbudget: {trials: 2}\nconfirm: null\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 1
    assert re.search(r"ours\.py:4 called sys\.exit\(0\) before the command was done", " ".join(err.split())), err
