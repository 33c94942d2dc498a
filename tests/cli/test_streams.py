"""A console that cannot be written: a study completes all the same, and the exit code tells that its output is lost."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.ledger import Ledger
from support.commands import TINY
from support.paths import REPOSITORY

FULL = Path("/dev/full")
LOST = "ablate: the output could not be printed"
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `ablate` is this one; the exit code is that of `ablate`, also in a pipe."""
    ablate = shlex.join([sys.executable, "-m", "ablate"])
    script = f'{line.replace("ablate", ablate, 1)}\nexit "${{PIPESTATUS[0]}}"'
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=250, check=False
    )


def search(folder: Path, streams: str) -> subprocess.CompletedProcess[str]:
    (folder / "tiny.yaml").write_text(TINY.replace("trials: 3", "trials: 1").replace("{replicates: 2}", "null"))
    return shell(f"ablate search tiny.yaml --executor local --device cpu --tracker none {streams}", folder)


def assert_complete(folder: Path) -> None:
    """Require every trial of the study to have ended, and its report to be there."""
    with Ledger.open(f"sqlite:///{folder}/runs/tiny/ledger.sqlite", create=False) as ledger:
        trials = ledger.trials("tiny")
    assert [trial.state.finished for trial in trials] == [True]
    assert "</html>" in (folder / "runs/tiny/report/index.html").read_text()


@pytest.mark.services
@pytest.mark.parametrize(
    ("streams", "code", "lines"),
    [
        pytest.param("> /dev/full", 75, [f"{LOST} (No space left on device)."], marks=needs_full),
        pytest.param("2> /dev/full", 0, [], marks=[needs_full, pytest.mark.slow]),
        pytest.param("> /dev/full 2>&1", 75, [], marks=[needs_full, pytest.mark.slow]),
        pytest.param("| true", 75, [f"{LOST} (Broken pipe)."]),
    ],
)
def test_a_study_whose_console_cannot_be_written_completes_and_says_so_in_one_line(
    streams: str, code: int, lines: list[str], tmp_path: Path
) -> None:
    done = search(tmp_path, streams)
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    assert done.returncode == code, done.stderr
    assert_complete(tmp_path)
    said = done.stderr.splitlines()
    assert len(said) == len(lines), done.stderr
    assert all(line.startswith(start) for line, start in zip(said, lines, strict=True))


@pytest.mark.services
@needs_full
@pytest.mark.parametrize("command", ["list", "schema", "--version", "--help", "status --help"])
def test_a_plain_command_whose_output_is_lost_says_so_and_fails(command: str, tmp_path: Path) -> None:
    done = shell(f"ablate {command} > /dev/full", tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (75, 1), done.stderr
    assert done.stderr.startswith(f"{LOST} (No space left on device). Run the same command again")


@pytest.mark.services
@pytest.mark.parametrize("command", ["--help", "plan große–數.yaml", "list --runs-dir –數"])
@pytest.mark.parametrize(
    "setting", ["PYTHONIOENCODING=ascii", "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0", "COLUMNS=0"]
)
def test_a_terminal_of_another_encoding_or_of_no_width_shows_the_text(
    setting: str, command: str, tmp_path: Path
) -> None:
    plain, done = (shell(f"{variables} ablate {command}", tmp_path) for variables in ("COLUMNS=80", setting))
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    if setting == "COLUMNS=0":
        assert done.returncode == plain.returncode
        assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)


@pytest.mark.services
@needs_full
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(tmp_path: Path) -> None:
    assert shell("ablate status nothing 2> /dev/full", tmp_path).returncode == 2
    assert shell("ablate nonsense 2> /dev/full", tmp_path).returncode == 2
    assert shell("ablate status nothing > /dev/full", tmp_path).returncode == 2


@pytest.mark.services
def test_a_command_without_standard_output_says_so(tmp_path: Path) -> None:
    done = shell("ablate list >&-", tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (75, 1), done.stderr
    assert done.stderr.startswith(f"{LOST} (Bad file descriptor).")


def test_a_plain_command_whose_reader_has_left_ends_silently(tmp_path: Path) -> None:
    done = shell("ablate schema | true", tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
