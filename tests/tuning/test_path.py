"""Code in the current folder runs only where a study names it: no other command, process or server looks there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.commands import TINY

ABLATE = Path(sys.executable).with_name("ablate")
HOOK = """\
import os, sys

class Missed:
    def find_spec(self, name, path=None, target=None):
        with open(os.environ["MISSED"], "a") as out:
            out.write(name.partition(".")[0] + "\\n")

sys.meta_path.append(Missed())
"""
OWN = """\
def build(options):
    import own_neighbour  # imported when it is called, as code of one's own may
    return own_neighbour.build(options)
"""
NEIGHBOUR = "from ablate.tuning.stopping.schedulers import build_none as build\n"
pytestmark = pytest.mark.skipif(not ABLATE.is_file(), reason="ablate is not installed in this environment")


def search(study: str, runs: Path, executor: str) -> list[str]:
    return ["search", study, "--executor", executor, "--tracker", "none", "--runs-dir", str(runs), "--device", "cpu"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that has been searched, and an empty tracking database."""
    folder = tmp_path_factory.mktemp("studies")
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "runs").mkdir()
    command = [str(ABLATE), *search("tiny.yaml", folder / "runs", "local")]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=240)
    (folder / "runs" / "mlflow.db").touch()
    return folder / "runs"


def looks(runs: Path) -> list[list[str]]:
    place = ["--runs-dir", str(runs)]
    return [
        ["--help"],
        ["list", *place],
        ["status", "tiny", *place],
        ["trial", "tiny", "0", *place],
        ["report", "tiny", *place],
        ["doctor", str(runs.parent / "tiny.yaml"), *place],
        ["plan", str(runs.parent / "tiny.yaml"), "--no-time"],
        ["data", "list"],
        ["schema"],
    ]


def serve(start: Sequence[str], runs: Path, folder: Path, environment: dict[str, str]) -> None:
    """Start `ablate ui` in `folder`, wait for its first page, and end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*start, "ui", "--runs-dir", str(runs), "--port", str(port)]
    with open(folder.parent / "ui.log", "w") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            except urllib.error.HTTPError:  # the server answers: 401, without the token
                return
            except OSError:
                time.sleep(0.2)
        pytest.fail(f"no page: {Path(log.name).read_text()[-2000:]}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def hostile(folder: Path, names: set[str]) -> Path:
    """Fill `folder` with a module for each name that leaves a trace where it runs; return the file of traces."""
    folder.mkdir()
    trace = folder.parent / "ran.txt"
    for name in names:
        code = f"with open({str(trace)!r}, 'a') as out: out.write({name!r} + ' ')\n"
        (folder / f"{name}.py").write_text(f"{code}raise ImportError({name!r})\n")
    return trace


def missed_names(runs: Path, folder: Path) -> set[str]:
    """Return every name that the commands try to import and do not find, gathered by an import hook."""
    (folder / "hook").mkdir()
    (folder / "clean").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK)
    missed = folder / "missed.txt"
    environment = {**os.environ, "PYTHONPATH": str(folder / "hook"), "MISSED": str(missed)}
    for arguments in [*looks(runs), search(str(runs.parent / "tiny.yaml"), folder / "runs", "ray")]:
        command = [str(ABLATE), *arguments]
        subprocess.run(command, cwd=folder / "clean", env=environment, check=True, capture_output=True, timeout=240)
    serve([str(ABLATE)], runs, folder / "clean", environment)
    return {name for name in missed.read_text().split() if name.isidentifier()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_command_runs_code_of_the_current_folder(runs: Path, tmp_path: Path) -> None:
    missed = missed_names(runs, tmp_path)
    assert "cython" in missed  # scipy tries it
    installed = {"numpy", "torch", "ray", "mlflow", "polars", "rich", "typer", "yaml", "uvicorn", "ablate"}
    trace = hostile(tmp_path / "hostile", missed | installed | set(sys.stdlib_module_names) - {"__future__"})
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    (tmp_path / "hostile" / "ablate.py").unlink()  # `python -m ablate` asks for it by name
    commands = {f"ablate {words[0]}": [str(ABLATE), *words] for words in looks(runs)}
    commands |= {f"-m {words[0]}": [sys.executable, "-m", "ablate", *words] for words in looks(runs)[:3]}
    commands["search"] = [str(ABLATE), *search(str(runs.parent / "tiny.yaml"), tmp_path / "again", "ray")]
    ran: dict[str, str] = {}
    codes: dict[str, int] = {}
    for name, command in commands.items():
        done = subprocess.run(command, cwd=trace.parent / "hostile", env=environment, capture_output=True, timeout=240)
        codes[name] = done.returncode
        if trace.exists():
            ran[name] = trace.read_text()
            trace.unlink()
    assert ran == {}
    assert set(codes.values()) == {0}, codes
    serve([str(ABLATE)], runs, tmp_path / "hostile", environment)
    assert not trace.exists(), trace.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_module_of_ones_own_finds_its_neighbours_and_hides_nothing(executor: str, tmp_path: Path) -> None:
    (tmp_path / "own_scheduler.py").write_text(OWN)
    (tmp_path / "own_neighbour.py").write_text(NEIGHBOUR)
    for name in ("json", "torch", "polars"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a neighbour took the place of a library')\n")
    text = TINY.replace("scheduler: {name: none}", "scheduler: {name: 'own_scheduler:build'}")
    (tmp_path / "own.yaml").write_text(text)
    command = [str(ABLATE), *search("own.yaml", tmp_path / "runs", executor)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_looking_at_a_study_does_not_run_the_module_that_it_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "from ablate.tuning.stopping.schedulers import build_none as build_scheduler\n"
        "from ablate.tuning.sampling.samplers import build_random as build_sampler\n"
    )
    text = TINY.replace("study: tiny", "study: mine")
    text = text.replace("scheduler: {name: none}", "scheduler: {name: 'mine:build_scheduler'}")
    (tmp_path / "mine.yaml").write_text(f"{text}sampler: {{name: 'mine:build_sampler'}}\n")
    command = [str(ABLATE), *search("mine.yaml", tmp_path / "runs", "local")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    trace = hostile(tmp_path / "elsewhere", {"mine"})
    for arguments in (["list"], ["status", "mine"], ["trial", "mine", "0"], ["report", "mine"]):
        command = [str(ABLATE), *arguments, "--runs-dir", str(tmp_path / "runs")]
        subprocess.run(command, cwd=tmp_path / "elsewhere", check=True, capture_output=True, timeout=240)
    assert not trace.exists()
