"""A disk runs full in mid-study, under checkpoints, ledger or results, and is freed: one line, and nothing half."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl
import pytest

from ablate.driver.doctor import examine
from ablate.driver.options import RunOptions
from ablate.engine.training import checkpoint
from support.faults import small_disk
from support.faults.lossless import check_mlflow, check_whole, repeated_steps, study
from support.faults.small_disk import SmallDisk
from support.faults.study_runs import LOCAL, Command, StudyRun

TRIALS, EPOCHS, MEGABYTES = 3, 8, 16
MLFLOW = (*LOCAL[:-1], "mlflow")
RAY = ("--gpus", "0", "--device", "cpu", "--tracker", "none")
What = Literal["checkpoints", "ledger", "results", "everything"]
SAID = {
    "checkpoints": "file://{disk}/full(/checkpoints/digits/.*: |: cannot be written .)No space left on device.*; free",
    "ledger": "ledger sqlite:///{disk}/ledger.sqlite: the disk is full; free some space and run the same command again",
    "results": "{disk}/full(/trials.parquet|/study.yaml|:) cannot be written.*No space left on device.*; free some",
    "everything": "({disk}/full|the disk is full).*same command",
}


@dataclass(frozen=True, kw_only=True)
class Full:
    """A study of which a small disk holds `what` and another one the rest."""

    what: What
    disk: SmallDisk
    run: StudyRun

    def search(self) -> Command:
        """Start the command, the same each time."""
        elsewhere = self.run.folder / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        store = self.disk.folder if self.what == "checkpoints" else elsewhere
        return self.run.search(*() if self.what == "everything" else ("--store", f"file://{store}"))

    def assert_one_clear_line(self, command: Command) -> None:
        """Require exit code 75, no traceback, and one line that says where it happened and what to do."""
        assert command.wait() == 75, command.output
        said = [line for line in command.output.splitlines() if line.startswith("ablate: ")]
        assert len(said) == 1, command.output
        assert re.search(SAID[self.what].format(disk=re.escape(str(self.disk.folder))), said[0]), said
        assert "Traceback" not in command.output

    def check_nothing_half(self) -> None:
        """Require that each checkpoint and table that has its name is whole."""
        for file in [*self.disk.folder.rglob("epoch-*.safetensors"), *self.run.folder.rglob("epoch-*.safetensors")]:
            checkpoint.read(file.parent, file.name)
        for file in self.run.home.glob("*.parquet"):
            pl.read_parquet(file)


@contextmanager
def study_on_small_disk(what: What, folder: Path, options: Sequence[str]) -> Iterator[Full]:
    """Mount the disk and yield the study, of which nothing has begun."""
    place = folder / ("disk" if what in ("checkpoints", "ledger") else "runs")
    storage = {
        "checkpoints": None,
        "ledger": f"sqlite:///{place}/ledger.sqlite",
        "results": f"sqlite:///{folder}/ledger.sqlite",
        "everything": None,
    }
    with small_disk.small_disk(place, megabytes=MEGABYTES) as disk:
        text = study("full", trials=TRIALS, epochs=EPOCHS)
        cpus = 2 if options == RAY else None
        run = StudyRun(folder=folder, text=text, options=options, storage=storage[what], pace=0.05, cpus=cpus)
        yield Full(what=what, disk=disk, run=run)


@pytest.mark.skipif(small_disk.missing() is not None, reason=str(small_disk.missing()))
@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("checkpoints", LOCAL),
        ("ledger", LOCAL),
        ("results", LOCAL),
        pytest.param("checkpoints", RAY, marks=pytest.mark.faults),
        pytest.param("ledger", RAY, marks=pytest.mark.faults),
        pytest.param("everything", MLFLOW, marks=pytest.mark.faults),
        pytest.param("everything", RAY, marks=pytest.mark.faults),
    ],
)
def test_a_disk_that_runs_full_ends_the_driver_in_one_line_and_once_freed_nothing_is_lost(
    what: What, options: tuple[str, ...], tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with study_on_small_disk(what, tmp_path, options) as full:
        run = full.run
        command = full.search()
        command.until(lambda: len(run.steps()) > EPOCHS + 3)
        while command.code is None:  # what is removed meanwhile makes no room
            full.disk.fill()
            time.sleep(0.001)
        full.assert_one_clear_line(command)
        full.check_nothing_half()
        full.assert_one_clear_line(full.search())  # still full
        full.check_nothing_half()
        full.disk.free()
        last = full.search()
        assert last.wait() == 0, last.output
        check_whole(run, trials=TRIALS, epochs=EPOCHS, drivers=3)
        full.check_nothing_half()
        repeated = sum(repeated_steps(run).values())
        assert repeated <= (4 if options == RAY else 2)
        assert pl.read_parquet(run.home / "reports.parquet").height == TRIALS * EPOCHS * 2
        assert "</html>" in (run.home / "report" / "index.html").read_text()
        assert not [*tmp_path.rglob("*.tmp")]
        if options == MLFLOW:
            check_mlflow(run, f"sqlite:///{run.runs / 'mlflow.db'}")
    how = {LOCAL: "", RAY: ", on Ray", MLFLOW: " and MLflow"}[options]
    measured(f"a full disk under {what}{how}: exit code 75 and one line; once freed, {repeated} steps repeated")


@pytest.mark.skipif(small_disk.missing() is not None, reason=str(small_disk.missing()))
def test_a_disk_that_was_full_before_is_one_line_and_the_same_command_begins_later(tmp_path: Path) -> None:
    with study_on_small_disk("everything", tmp_path, LOCAL) as full:
        full.disk.fill()
        full.assert_one_clear_line(full.search())
        full.disk.free()
        full.run.finish()
        check_whole(full.run, trials=TRIALS, epochs=EPOCHS, drivers=2)


@pytest.mark.skipif(small_disk.missing() is not None, reason=str(small_disk.missing()))
def test_the_doctor_sees_that_a_disk_is_full_though_it_takes_an_empty_file(tmp_path: Path) -> None:
    with small_disk.small_disk(tmp_path / "disk", megabytes=1) as disk:
        disk.fill()
        (disk.folder / "empty").touch()
        settings = RunOptions(runs_dir=disk.folder)
        (found,) = [finding for finding in examine(settings, None) if finding.what == "runs"]
        assert not found.good
        assert "No space left" in found.seen
