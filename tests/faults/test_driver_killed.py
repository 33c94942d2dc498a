"""`kill -9` of the driver anywhere in a study, one trial at a time: in the end it is as if nothing had happened."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.faults import killing, mlflow_runs
from support.faults.reference import STEPS, STUDY, Reference, run_uninterrupted
from support.faults.study_runs import LOCAL, Command, StudyRun

KILLS = 20
MLFLOW = (*LOCAL[:-1], "mlflow")


def test_three_kills_at_start_up_in_training_and_before_the_report(
    tmp_path: Path, reference: Reference, measured: Callable[[str], None]
) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY)
    first = run.search(fresh=True)
    first.until(run.home.exists)
    first.kill()
    second = run.search()
    second.until(lambda: len(run.steps()) >= 7 * STEPS + STEPS // 2)  # in trial 3, which its rung is going to stop
    second.kill()
    assert run.search(inject=partial(killing.at_call, "write_results")).wait() == -9
    assert "continues" in run.finish()
    repeated = reference.compare(run, repeated=STEPS)
    measured(f"kill -9 of the driver, one trial at a time: {repeated} of {STEPS} steps repeated over 3 kills")


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("options", "fresh"), [(LOCAL, False), (MLFLOW, True)], ids=["plain", "mlflow"])
def test_twenty_kills_at_random_moments(
    options: tuple[str, ...], fresh: bool, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    reference = run_uninterrupted(tmp_path / "uninterrupted", options=options, fresh=fresh)
    draws, kills, repeated, studies = random.Random(20260), 0, 0, 0
    while kills < KILLS:
        run = StudyRun(folder=tmp_path / f"killed-{studies}", text=STUDY, options=options)
        before, studies = kills, studies + 1
        while kills < KILLS and killed_at(run.search(fresh=fresh), draws.uniform(0, reference.seconds)):
            kills += 1
        run.finish(fresh=fresh)  # once more, where it had come to its end
        repeated += reference.compare(run, repeated=STEPS * (kills - before))
        if options == MLFLOW:
            assert mlflow_runs.canonical(run) == mlflow_runs.canonical(reference.run)
    measured(f"kill -9 of the driver at {KILLS} random moments of {studies} studies of {reference.seconds:.0f} s: "
             f"{repeated} steps repeated, {STEPS} are one epoch")  # fmt: skip


def killed_at(command: Command, seconds: float) -> bool:
    """Kill a command so many seconds after its start; return False where it had ended well before."""
    while time.monotonic() < command.started + seconds and command.code is None:
        time.sleep(0.005)
    if command.code is not None:
        assert command.code == 0, command.output
        return False
    command.kill()
    return command.code != 0
