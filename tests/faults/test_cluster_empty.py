"""The only node that holds trials is lost: the driver says what it waits for, and continues when another one joins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.faults.lossless import check_whole, repeated_steps, study
from support.faults.raylets import cluster
from support.faults.study_runs import StudyRun

TRIALS, EPOCHS = 3, 12
WAITS = "no live node of the Ray cluster holds a trial; waiting for a node to join"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_without_a_node_says_so_and_completes_the_study_on_a_new_one(
    tmp_path: Path, long: bool, measured: Callable[[str], None]
) -> None:
    lines = 3 if long else 1  # one each minute
    with cluster() as ray:
        ray.start(1)
        run = StudyRun(
            folder=tmp_path,
            text=study("empty", trials=TRIALS, epochs=EPOCHS),
            options=("--address", ray.address, "--gpus", "0", "--device", "cpu", "--tracker", "none"),
            pace=0.3,
        )
        command = run.search(fresh=True)
        command.until(lambda: len(run.steps()) >= EPOCHS // 2)
        ray.nodes.pop().kill()
        command.until(lambda: command.output.count(WAITS) >= lines, 240)
        taken = len(run.steps())
        ray.add_node(cpus=1)
        ray.wait()
        command.until(lambda: len(run.steps()) > taken)
        assert command.wait(300) == 0, command.output
    assert command.output.count(WAITS) == lines, command.output
    assert "Traceback" not in command.output
    check_whole(run, trials=TRIALS, epochs=EPOCHS)
    repeated = sum(repeated_steps(run).values())
    assert repeated <= 1
    measured(f"the only node with CPUs killed: {lines} line(s) while waiting, the study completes on a new node, "
             f"{repeated} step repeated")  # fmt: skip
