"""The command line in this process, and a study that takes seconds."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ablate.cli import app as cli
from support.paths import REPOSITORY

SCHEMA = json.loads((REPOSITORY / "docs" / "json_schema.json").read_text())
TINY = """\
study: tiny
datasets: {digits: {patch: 4, train_limit: 128}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8, 16]}}
training: {epochs: 2, batch_size: 32, learning_rate: {float: [1e-3, 1e-2], log: true}}
scheduler: {name: none}
budget: {trials: 3}
confirm: {replicates: 2}
"""


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of `ablate ARGUMENTS` in this process."""
    former, sys.argv = sys.argv, ["ablate", *arguments]
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = former
    out, err = capfd.readouterr()
    return code, out, err


def succeed(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return standard output of `ablate ARGUMENTS`, which ends well."""
    code, out, err = run(capfd, *arguments)
    assert code == 0, err
    return out


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what is said of `ablate ARGUMENTS`, which is a wrong request."""
    code, _, err = run(capfd, *arguments)
    assert code == 2, err
    return err


def checked(name: str, text: str) -> Any:
    """Return the value of JSON text that a command printed; it fits `name` in docs/json_schema.json."""
    value = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA | {"$ref": f"#/$defs/{name}"}).validate(value)
    return value


LOCAL = ("--executor", "local", "--tracker", "none")


def local(path: Path, runs: Path) -> list[str]:
    """Return the words that search a study file in this process."""
    return ["search", str(path), *LOCAL, "--runs-dir", str(runs)]


RAY = ("--gpus", "0", "--tracker", "none")


def write_study(folder: Path, files: Mapping[str, str]) -> Path:
    """Write text files by name into a folder and return it."""
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def run_once(folder: Path, study: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Go to a folder with the comparison `study.yaml` and its code; run it there unless it has run."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    if not (folder / "runs" / study).exists():
        code, _, err = run(capfd, "compare", "study.yaml", *LOCAL)
        assert code == 0, err
