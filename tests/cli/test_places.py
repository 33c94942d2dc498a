"""Odd places and environments, through the command: what works there works, and the rest is one line."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.commands import LOCAL, run

CODE = "def train(config, run):\n    for epoch in run.epochs():\n        yield {'val_loss': config['x'] / epoch}\n"
STUDY = """\
study: placed
trainable: placed_code:train
config: {x: {float: [0.1, 1.0]}}
epochs: 2
objectives: [{metric: val_loss, direction: minimize}]
budget: {trials: 2}
confirm: null
"""
NOBODY = 54321  # a number without a name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "placed_code.py").write_text(CODE)
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def ablate(*words: str | bytes, **given: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ablate", *words]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **given)


@pytest.mark.parametrize("words", ["list", "status placed", "search study.yaml --executor local"])
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("", "--runs-dir: this names no folder; write '.'"),
        ("study.yaml", "study.yaml: cannot be used (Not a directory)"),
    ],
)
def test_no_folder_and_a_file_are_no_runs_folder(
    place: str, says: str, words: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capfd, *words.split(), "--runs-dir", place)
    assert (code, len(err.splitlines())) == (2, 1)
    assert says in err


@pytest.mark.services
def test_any_name_of_a_runs_folder_is_that_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name = "@a={b},c a?b#c%20b[a]*ä'\"$HOME;&\nb\\b"
    there = ("--runs-dir", name)
    for words in (
        ["search", "study.yaml", *LOCAL],
        ["status", "placed"],
        ["report", "placed"],
        ["trial", "placed", "0"],
    ):
        code, _, err = run(capfd, *words, *there)
        assert code == 0, (words, err)
    code, _, err = run(capfd, "export", "optuna", "placed", f"{name}/optuna.db", *there)
    assert code == 0, err
    assert {each.name for each in folder.iterdir()} - {"__pycache__"} == {name, "placed_code.py", "study.yaml"}
    assert {each.name for each in (folder / name).iterdir()} == {"placed", "optuna.db"}


@pytest.mark.parametrize("name", [b"caf\xe9", b"x" * 300, b"deep/" * 1000 + b"d"])
def test_a_name_that_cannot_be_one_is_one_line(name: bytes, folder: Path) -> None:
    done = ablate("search", "study.yaml", *LOCAL, b"--runs-dir=" + name)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, ""), done.stderr
    assert done.stderr.startswith("ablate: ")
    assert {each.name for each in folder.iterdir()} == {"placed_code.py", "study.yaml"}


@pytest.fixture
def strangers() -> Iterator[Path]:
    """A folder for a user without a name, with the study in it."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    place = Path(tempfile.mkdtemp(prefix="ablate-stranger-"))
    try:
        (place / "placed_code.py").write_text(CODE)
        (place / "study.yaml").write_text(STUDY)
        for each in (place, *place.iterdir()):
            os.chown(each, NOBODY, NOBODY)
        yield place
    finally:
        shutil.rmtree(place)


@pytest.mark.services
def test_a_user_without_a_name_and_without_a_home_runs_a_study(strangers: Path) -> None:
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # this interpreter, wherever it lies
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *reads]
    if subprocess.run([*become, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process can be given another user here")
    left_out = ("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [*become, sys.executable, "-m", "ablate", "search", "study.yaml", *LOCAL]
    done = subprocess.run(command, cwd=strangers, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (strangers / "runs" / "placed" / "trials.parquet").stat().st_uid == NOBODY


@pytest.mark.services
@pytest.mark.parametrize("number", [22, 95, 9])  # EINVAL, ENOTSUP, EBADF
def test_a_file_system_that_syncs_files_only_holds_a_study(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = []
    sync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            refused.append(descriptor)
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 0, err
    assert refused


OUTER = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:9"),
    "RAY_ADDRESS": "127.0.0.1:1",
    "RAY_RUNTIME_ENV_HOOK": "no.such.hook",
    "RAY_JOB_ID": "02000000",  # another Ray
    "UV": "uv",
    "UV_RUN_RECURSION_DEPTH": "1",
    "VIRTUAL_ENV": "elsewhere",
}


@pytest.mark.services
def test_an_own_ray_depends_on_no_variable_of_its_surroundings(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("proxy")}
    given = [*(["--tracker", "none"]), "--executor", "ray"]
    done = ablate("search", "study.yaml", *given, cwd=folder, env=environment | OUTER)
    assert done.returncode == 0, done.stderr
    assert (folder / "runs" / "placed" / "trials.parquet").is_file()


@pytest.mark.parametrize("command", ["search", "ui", "doctor"])
def test_another_program_s_database_is_not_touched(
    command: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect("mlflow.db")) as connection:
        connection.execute("CREATE TABLE experiments (experiment_id INTEGER, own TEXT)")
        connection.execute("CREATE TABLE films (title TEXT)")
        connection.commit()
    before = Path("mlflow.db").read_bytes()
    words = {"search": ["study.yaml", "--executor", "local"]}.get(command, [])
    code, out, err = run(capfd, command, *words, "--tracking-uri", "sqlite:///mlflow.db")
    assert code != 0
    assert "it is the database of another program" in " ".join((out + err).split())
    assert "Traceback" not in out + err
    assert Path("mlflow.db").read_bytes() == before
