"""Checkpoints and results in an S3 store: killed and resumed from it bit for bit, and the store down in mid-study."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.faults import killing
from support.faults.lossless import check_whole, repeated_steps, study
from support.faults.reference import STEPS, STUDY, Reference
from support.faults.study_runs import LOCAL, Command, StudyRun
from support.s3 import BUCKET, S3Server
from support.stored_objects import objects

TRIALS, EPOCHS = 3, 8
RAY = ("--gpus", "0", "--device", "cpu", "--tracker", "none")


def test_killed_and_resumed_from_an_object_store_nothing_differs_from_a_study_on_a_disk(
    tmp_path: Path, reference: Reference, s3_server: S3Server, s3_store: str, measured: Callable[[str], None]
) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY, options=(*LOCAL, "--store", s3_store))
    command = let_in(run, s3_server)
    command.until(lambda: len(run.steps()) >= 7 * STEPS + STEPS // 2)
    command.kill()
    last = let_in(run, s3_server)
    assert last.wait() == 0, last.output
    repeated = reference.compare(run, repeated=STEPS)
    there = objects(s3_store)
    trials = {str(trial.key.number) for trial in run.trials()}
    assert {name.split("/")[3].lstrip("0") or "0" for name in there if "/checkpoints/" in name} == trials
    assert not list(run.runs.rglob("*.safetensors")), "a checkpoint on the disk"
    for name in ("trials.parquet", "reports.parquet", "study.yaml", "report/index.html"):
        assert there[f"{run.name}/{name}"] == (run.home / name).read_bytes(), name
    measured(f"killed with its checkpoints in S3: {repeated} of {STEPS} steps repeated, the ledger equal bit for bit")


@pytest.mark.faults
def test_driver_and_workers_killed_at_once_go_on_from_the_store(
    tmp_path: Path, s3_server: S3Server, s3_store: str, measured: Callable[[str], None]
) -> None:
    text = study("whole", trials=6, epochs=EPOCHS)
    run = StudyRun(folder=tmp_path, text=text, options=(*RAY, "--store", s3_store), pace=0.2, cpus=2)
    for kill in (1, 2):
        command = let_in(run, s3_server)
        command.until(lambda kill=kill: len(run.steps()) >= kill * 16)
        command.end()
    last = let_in(run, s3_server)
    assert last.wait() == 0, last.output
    check_whole(run, trials=6, epochs=EPOCHS, drivers=3)
    repeated = sum(repeated_steps(run).values())
    assert repeated <= 2 * 2
    assert not list(run.runs.rglob("*.safetensors"))
    measured(f"driver and 2 workers killed twice with their checkpoints in S3: {repeated} of at most 4 steps repeated")


def let_in(run: StudyRun, server: S3Server, *more: str) -> Command:
    """Start the command with what opens the store."""
    return run.search(*more, inject=partial(killing.set_environment, server.environment()))


@pytest.mark.parametrize("options", [LOCAL, pytest.param(RAY, marks=pytest.mark.faults)], ids=["local", "ray"])
def test_a_store_that_is_down_ends_the_driver_in_one_line_and_the_same_command_goes_on_later(
    options: tuple[str, ...], tmp_path: Path, s3_server: S3Server, s3_store: str, measured: Callable[[str], None]
) -> None:
    run = StudyRun(
        folder=tmp_path,
        text=study("down", trials=TRIALS, epochs=EPOCHS),
        options=(*options, "--store", s3_store),
        pace=0.05,
        cpus=2 if options == RAY else None,
    )
    command = let_in(run, s3_server)
    command.until(lambda: len(run.steps()) > EPOCHS + 3)
    with s3_server.away():
        stopped_at = time.monotonic()
        code = command.wait()
        ended_after = time.monotonic() - stopped_at
    assert code == 75, command.output
    said = [line for line in command.output.splitlines() if line.startswith("ablate: ")]
    assert len(said) == 1, command.output
    assert said[0].startswith("ablate: trial down/digits/")
    assert f"s3://{BUCKET}/" in said[0]
    assert "see that the store answers" in said[0]
    assert "Traceback" not in command.output
    last = let_in(run, s3_server)
    assert last.wait() == 0, last.output
    check_whole(run, trials=TRIALS, epochs=EPOCHS, drivers=2)
    repeated = sum(repeated_steps(run).values())
    assert repeated <= (2 if options == RAY else 1)
    measured(f"the S3 server down in mid-study ({'Ray' if options == RAY else 'one trial at a time'}): exit code 75 and"
             f" one line after {ended_after:.0f} s; later {repeated} steps repeated")  # fmt: skip
