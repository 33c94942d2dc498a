"""The examples of commands: parts that are switches, and torchrun with two processes, killed and continued."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from support.commands import LOCAL
from support.paths import REPOSITORY
from support.processes import have_ended, marked

ABLATE = [sys.executable, "-m", "ablate"]
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # python and torchrun of this one
    "PYTHONPATH": str(REPOSITORY),
    "OMP_NUM_THREADS": "1",
}


def example(name: str, folder: Path, changes: dict[str, str]) -> Path:
    place = Path(shutil.copytree(REPOSITORY / "examples" / name, folder / name))
    text = (place / "study.yaml").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (place / "study.yaml").write_text(text)
    return place


def started(place: Path, command: str) -> subprocess.Popen[str]:
    words = [*ABLATE, command, "study.yaml", *LOCAL]
    return subprocess.Popen(
        words, cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finished(place: Path, command: str) -> str:
    running = started(place, command)
    out, _ = running.communicate(timeout=600)
    assert running.returncode == 0, out
    return out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_parts_of_a_command_are_compared(tmp_path: Path) -> None:
    place = example("parts_of_a_command", tmp_path, {"replicates: 5": "replicates: 2", "epochs: 12": "epochs: 6"})
    out = finished(place, "compare")
    trials = pl.read_parquet(place / "runs" / "parts_of_a_command" / "trials.parquet").filter(stage="confirm")
    found = dict(trials.select("variant", "test_accuracy").iter_rows())
    assert set(found) == {"complete", "without-standardize", "without-hidden", "without-ema"}
    assert found["complete"] > 0.85 > found["without-standardize"] + 0.2
    assert "without-standardize" in out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_torchrun_with_two_processes_is_killed_and_continues_to_the_same_numbers(tmp_path: Path) -> None:
    changes = {
        "{trials: 3}": "{trials: 1}",
        "confirm: {replicates: 2, top: 1}": "confirm: null\nsampler: {name: random}",
    }
    reports = []
    for name, kills in (("whole", 0), ("killed", 2)):
        place = example("torchrun", tmp_path / name, changes)
        output = place / "runs" / "torchrun" / "checkpoints" / "data" / "000000" / "output.txt"
        for kill in range(kills):
            running = started(place, "search")
            while not (output.exists() and f"epoch {kill + 2}:" in output.read_text()):
                assert running.poll() is None
                time.sleep(0.01)
            running.send_signal(signal.SIGKILL)
            running.communicate()
            assert have_ended(marked(f"ABLATE_FOLDER={place}")), "neither torchrun nor a rank is left"
        finished(place, "search")
        lines = re.findall(r"epoch (\d): accuracy .* of 2 processes", output.read_text())
        assert [*map(int, sorted(set(lines)))] == [1, 2, 3, 4]
        table = pl.read_parquet(place / "runs" / "torchrun" / "reports.parquet")
        reports.append(table.select("epoch", "val_accuracy").sort("epoch").rows())
    assert reports[0] == reports[1]
    assert len(reports[0]) == 4
