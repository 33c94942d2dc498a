"""Two drivers on one study: the second is refused; after a takeover the first one writes nothing more and says so."""

from __future__ import annotations

import hashlib
import re
import signal
from pathlib import Path

import pytest

from support.faults import counting, killing
from support.faults.reference import STEPS, STUDY, Reference
from support.faults.study_runs import LOCAL, Command, Inject, StudyRun

MLFLOW = (*LOCAL[:-1], "mlflow")
HELD = re.compile(r"is held by .+ \(process \d+\) .*since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")


def contents(run: StudyRun) -> dict[str, tuple[str, int]]:
    """Return digest and time of change (ns) of every file of the study and of MLflow.

    Left out: SQLite's own files beside its databases, and a database of MLflow's that a driver is still making.
    """
    return {
        str(file.relative_to(run.runs)): (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns)
        for file in run.runs.rglob("*")
        if file.is_file() and not file.name.endswith(("-shm", "-wal")) and ".mlflow.db" not in file.parent.name
    }


@pytest.mark.parametrize("options", [LOCAL, pytest.param(MLFLOW, marks=pytest.mark.faults)], ids=["plain", "mlflow"])
def test_the_second_is_refused_and_after_a_takeover_the_first_leaves(
    options: tuple[str, ...], tmp_path: Path, reference: Reference
) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY, options=options, pace=0.02)
    first = run.search()
    first.until(lambda: run.committed() >= 2)
    second = run.search()
    assert second.wait() == 75
    assert HELD.search(" ".join(second.output.split())), second.output
    assert f"pid {first.pid}" in " ".join(second.output.split())
    assert "--takeover" in second.output

    first.signal(signal.SIGSTOP)  # it could not see the takeover; what it does next, it does after it
    (run.data / counting.PACE).write_text("0")
    third = run.search("--takeover")
    assert third.wait() == 0, third.output
    before = contents(run)
    first.signal(signal.SIGCONT)
    assert first.wait() == 1, first.output
    assert "another driver took over" in " ".join(first.output.split())
    after = contents(run)
    assert before.items() <= after.items(), "nothing is changed or removed"
    assert all("-attempt-001" in name for name in after.keys() - before.keys()), "at most a checkpoint of its own"
    reference.compare(run, repeated=2 * STEPS)
    with run.ledger() as ledger:
        epochs = [report.driver_term for report in ledger.reports(run.name)]
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2}


def overtaken(run: StudyRun, inject: Inject) -> Command:
    """Return a driver that `inject` has stopped, and that another one has overtaken and ended the study."""
    first = run.search(inject=inject)
    first.until(lambda: stopped(first.pid))
    third = run.search("--takeover")
    assert third.wait() == 0, third.output
    return first


def test_a_driver_whose_unfinished_file_the_new_one_removed_says_that_it_was_overtaken(
    tmp_path: Path, reference: Reference
) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY, options=LOCAL)
    first = overtaken(run, killing.within_a_checkpoint)
    first.signal(signal.SIGCONT)
    assert first.wait() == 1, first.output
    assert "another driver took over" in " ".join(first.output.split())
    reference.compare(run, repeated=2 * STEPS)


@pytest.mark.faults
@pytest.mark.parametrize("options", [LOCAL, MLFLOW], ids=["plain", "mlflow"])
def test_a_driver_that_was_overtaken_before_its_report_writes_none(
    options: tuple[str, ...], tmp_path: Path, reference: Reference
) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY, options=options)
    first = overtaken(run, killing.after_the_last_trial)
    before = contents(run)
    first.signal(signal.SIGCONT)
    assert first.wait() == 1, first.output
    assert contents(run) == before
    reference.compare(run, repeated=0)


@pytest.mark.faults
def test_a_running_driver_leaves_within_its_heartbeat_after_a_takeover(tmp_path: Path, reference: Reference) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY, pace=0.05)
    first = run.search()
    first.until(lambda: run.committed() >= 2)
    third = run.search("--takeover")
    third.until(lambda: len({event.driver_term for event in run.events()}) == 2)
    assert first.wait() == 1, first.output
    assert not (run.home / "report").exists()
    assert third.wait() == 0, third.output
    reference.compare(run, repeated=3 * STEPS)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
