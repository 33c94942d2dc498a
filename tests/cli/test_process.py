"""A command as a whole process: when garbage is collected, and how it ends."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ablate.base.garbage import RARE, USUAL, collect_as_usual, collecting_rarely
from ablate.driver.options import RunOptions
from ablate.driver.progress import ProgressDisplay
from ablate.driver.run import search
from support.commands import TINY

REGISTERED = """
import atexit, gc, sys
from ablate.cli import app
from ablate.cli.process import process

def collections():
    return sum(each["collections"] for each in gc.get_stats())

class Freed:
    def __del__(self):
        print("freed")

def command():
    atexit.register(lambda: print(f"registered, {collections() - before} collections"))
    gc.freed = Freed()
    run()

before, run, app.main = collections(), app.main, command
sys.argv = ["ablate", *sys.argv[1:]]
process()
"""
RAISES = """
from ablate.cli import app
from ablate.cli.process import process

def command():
    raise {error}

app.main = command
process()
"""


def ablate(code: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_a_short_command_hardly_collects_and_frees_nothing_at_its_end(tmp_path: Path) -> None:
    done = ablate(REGISTERED, "list", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    assert last.startswith("registered, "), "what libraries registered runs, and modules are not taken apart"
    assert int(last.split()[1]) < 10, "about 300 as usual"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("SystemExit(0)", 0, ""),
        ("SystemExit(None)", 0, ""),
        ("SystemExit(75)", 75, ""),
        ("SystemExit('a text')", 1, "a text\n"),
        ("KeyboardInterrupt", 130, ""),
        ("ValueError('a fault')", 1, "ValueError: a fault\n"),
    ],
)
def test_it_ends_with_the_exit_code_of_its_command(error: str, code: int, said: str, tmp_path: Path) -> None:
    done = ablate(RAISES.format(error=error), folder=tmp_path)
    assert done.returncode == code
    assert done.stderr.endswith(said)
    assert bool(said) == bool(done.stderr)


def test_the_last_output_reaches_a_pipe(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "ablate", "schema"], capture_output=True, check=True)
    assert done.stdout.endswith(b"}\n")
    done = subprocess.run([sys.executable, "-m", "ablate", "status", "nowhere"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


OFTEN = """
import gc
from pathlib import Path

def train(config, run):
    for epoch in run.epochs():
        Path(__file__).with_suffix(".txt").write_text(str(gc.get_threshold()))
        yield {"val_score": config["x"]}
"""
STUDY = """\
study: often
trainable: mine:train
config: {x: {float: [0.0, 1.0]}}
epochs: 1
objectives: [{metric: val_score, direction: maximize}]
budget: {trials: 1}
confirm: null
"""


@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.services)])
def test_a_trial_collects_as_usual(executor: str, tmp_path: Path) -> None:
    """Its tensors may lie in cycles; only imports collect rarely."""
    (tmp_path / "mine.py").write_text(OFTEN)
    (tmp_path / "study.yaml").write_text(STUDY)
    words = ["search", "study.yaml", "--executor", executor, "--tracker", "none"]
    done = subprocess.run([sys.executable, "-m", "ablate", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine.txt").read_text() == str(USUAL)


def test_a_driver_collects_as_usual_once_a_trial_is_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []

    def update(_: object) -> None:
        seen.append(gc.get_threshold())

    monkeypatch.setattr(ProgressDisplay, "update", update)
    (tmp_path / "study.yaml").write_text(TINY)
    gc.set_threshold(*RARE)
    try:
        search(tmp_path / "study.yaml", RunOptions(runs_dir=tmp_path, executor="local", tracker="none"), Console())
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*USUAL)
    assert set(seen) == {USUAL}


def test_what_a_process_of_a_users_own_has_chosen_stays() -> None:
    first, second = collecting_rarely(), collecting_rarely()  # of two threads
    try:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        assert gc.get_threshold() == USUAL
        with collecting_rarely():
            gc.set_threshold(99, 4, 5)
        assert gc.get_threshold() == (99, 4, 5)
        gc.set_threshold(123, 4, 5)
        with collecting_rarely():
            assert gc.get_threshold() == RARE
        collect_as_usual()
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*USUAL)
