"""The raylet of the driver's own Ray dies, freezes or starts slowly: one line and exit code 75, or a later start."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.faults import counting
from support.faults.lossless import check_whole, repeated_steps, study
from support.faults.raylets import QUICK_DETECTION
from support.faults.study_runs import Command, StudyRun
from support.processes import have_ended

OPTIONS = ("--gpus", "0", "--cpus-per-trial", "1", "--device", "cpu", "--tracker", "none")
TRIALS, EPOCHS = 6, 30
WAIT_LIMIT = "RAY_raylet_start_wait_time_s"


def raylet_of(command: Command) -> int | None:
    """Return the pid of the raylet that the command started, or None before there is one."""
    found = [pid for pid, line in command.children().items() if line.split(" ")[0].endswith("/raylet/raylet")]
    return found[0] if found else None


def freeze_raylet(command: Command) -> int:
    """Stop the raylet as soon as it exists, so that it cannot register, and return its pid."""
    command.until(lambda: raylet_of(command) is not None)
    pid = raylet_of(command)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def one_line(command: Command) -> str:
    """Return the only line that says what happened; fail on a traceback."""
    assert "Traceback" not in command.output, command.output
    (line,) = [line for line in command.output.splitlines() if line.startswith("ablate: ")]
    return line


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_whose_raylet_is_killed_exits_in_one_line_and_the_same_command_completes_the_study(
    tmp_path: Path, long: bool, measured: Callable[[str], None]
) -> None:
    text = study("headless", trials=TRIALS, epochs=EPOCHS)
    run = StudyRun(folder=tmp_path, text=text, options=OPTIONS, pace=1.0)
    kills, seconds = 5 if long else 1, 0.0
    for kill in range(1, kills + 1):
        command = run.search(fresh=True)
        command.until(lambda kill=kill: len(run.steps()) >= 3 * kill)
        raylet = raylet_of(command)
        assert raylet is not None
        os.kill(raylet, signal.SIGKILL)
        killed_at = time.monotonic()
        assert command.wait() == 75, command.output
        seconds = max(seconds, time.monotonic() - killed_at)
        assert one_line(command).startswith(
            "ablate: the Ray of this study has ended (its raylet has ended with exit code -9)"
        )
        assert have_ended(command.children())  # an agent notices a second later that its raylet has
    (run.data / counting.PACE).write_text("0")
    run.finish(fresh=True)
    check_whole(run, trials=TRIALS, epochs=EPOCHS, drivers=kills + 1)
    repeated = sum(repeated_steps(run).values())
    assert repeated <= (os.cpu_count() or 1) * kills
    measured(f"kill -9 of the raylet of the driver's own Ray, {kills} kills: exit code 75 and one line after at most "
             f"{seconds:.0f} s, {repeated} steps repeated")  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_ray_that_does_not_start_in_time_is_one_line_and_exit_code_75(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WAIT_LIMIT, "3")
    run = StudyRun(folder=tmp_path, text=study("late", trials=1, epochs=1), options=OPTIONS)
    command = run.search(fresh=True)
    freeze_raylet(command)
    assert command.wait() == 75, command.output
    assert one_line(command).startswith(
        "ablate: Ray did not start on this machine: its raylet has not registered within 3 s."
    )
    assert have_ended(command.children())
    monkeypatch.delenv(WAIT_LIMIT)
    run.finish(fresh=True)


@pytest.mark.timeout(600)
def test_a_raylet_that_crashes_at_its_start_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAIT_LIMIT, str(10**6))
    run = StudyRun(folder=tmp_path, text=study("crashed", trials=1, epochs=1), options=OPTIONS)
    command = run.search(fresh=True)
    os.kill(freeze_raylet(command), signal.SIGKILL)
    assert command.wait() == 75, command.output
    assert one_line(command).startswith(
        "ablate: Ray did not start on this machine: its raylet has ended with exit code -9."
    )
    assert have_ended(command.children())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_is_obeyed_while_ray_starts(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WAIT_LIMIT, str(10**6))
    run = StudyRun(folder=tmp_path, text=study("impatient", trials=1, epochs=1), options=OPTIONS)
    command = run.search(fresh=True)
    freeze_raylet(command)
    os.kill(command.pid, number)
    assert command.wait() == (75 if number == signal.SIGTERM else 128 + number), command.output
    assert one_line(command).startswith("ablate: interrupted; nothing is lost.")
    assert have_ended(command.children())


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_ray_that_takes_longer_than_thirty_seconds_to_start_is_started_again(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    run = StudyRun(folder=tmp_path, text=study("slow", trials=1, epochs=1), options=OPTIONS)
    command = run.search(fresh=True)
    raylet = freeze_raylet(command)
    time.sleep(40)
    assert raylet not in command.children(), "Ray itself has given it up; another one is started"
    assert command.wait() == 0, command.output
    measured("own Ray whose raylet does not start within 40 s: the study completes")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_whose_raylet_is_frozen_exits_in_one_line_and_the_same_command_completes_the_study(
    tmp_path: Path, long: bool, monkeypatch: pytest.MonkeyPatch, measured: Callable[[str], None]
) -> None:
    for name, value in ({} if long else QUICK_DETECTION).items():
        monkeypatch.setenv(name, value)
    epochs = 300 if long else EPOCHS  # longer than Ray's own detection takes
    run = StudyRun(folder=tmp_path, text=study("frozen", trials=2, epochs=epochs), options=OPTIONS, pace=1.0)
    command = run.search(fresh=True)
    command.until(lambda: len(run.steps()) >= 3)
    freeze_raylet(command)
    frozen_at = time.monotonic()
    assert command.wait(200) == 75, command.output
    seconds = time.monotonic() - frozen_at
    assert one_line(command).startswith("ablate: the Ray of this study has ended (it has no live node)")
    assert have_ended(command.children())
    (run.data / counting.PACE).write_text("0")
    run.finish(fresh=True, seconds=300)
    check_whole(run, trials=2, epochs=epochs, drivers=2)
    measured(f"the raylet of the driver's own Ray frozen: exit code 75 and one line after {seconds:.0f} s")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_that_ends_while_its_raylet_is_frozen_is_complete_and_its_driver_exits(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    run = StudyRun(folder=tmp_path, text=study("thawless", trials=1, epochs=8), options=OPTIONS, pace=1.0)
    command = run.search(fresh=True)
    command.until(lambda: len(run.steps()) >= 3)
    freeze_raylet(command)
    assert command.wait() == 0, command.output
    assert have_ended(command.children())
    check_whole(run, trials=1, epochs=8)
    measured("the raylet of the driver's own Ray frozen before the end: the study completes, exit code 0")
