"""The only node that holds trials is lost: the driver says what it waits for, and continues when another one joins."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.faults.lossless import check_whole, repeated_steps, study
from support.faults.raylets import cluster, send
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_that_cannot_be_set_up_end_the_driver_in_one_line_and_charge_no_trial(tmp_path: Path) -> None:
    with cluster() as ray:
        ray.start(1)
        run = StudyRun(
            folder=tmp_path,
            text=study("bare", trials=TRIALS, epochs=2),
            options=("--address", ray.address, "--gpus", "0", "--device", "cpu", "--tracker", "none"),
        )
        missing = json.dumps({"runtime_env": {"working_dir": f"file://{tmp_path}/missing.zip"}})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", missing)
            command = run.search(fresh=True)
            assert command.wait(300) == 75, command.output
        (said,) = [line for line in command.output.splitlines() if line.startswith("ablate: ")]
        assert "Ray cannot start a worker" in said
        assert f"No such file or directory: '{tmp_path}/missing.zip'" in said
        assert "^^" not in said
        last = run.search(fresh=True)  # a warm process would have another environment
        assert last.wait(300) == 0, last.output
    check_whole(run, trials=TRIALS, epochs=2, drivers=2)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_study_that_ends_while_the_raylet_beside_its_driver_is_frozen_ends_in_one_line(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    never = {"RAY_health_check_failure_threshold": "1000000"}  # so that the cluster does not remove the node
    with cluster(**never) as ray:
        ray.start(head_cpus=1)
        run = StudyRun(
            folder=tmp_path,
            text=study("beside", trials=1, epochs=8),
            options=("--address", ray.address, "--gpus", "0", "--device", "cpu", "--tracker", "none"),
            pace=1.0,
        )
        command = run.search(fresh=True)
        command.until(lambda: len(run.steps()) >= 3)
        assert ray.head is not None
        raylets = [process.pid for process in ray.head.family() if "/raylet/raylet " in process.title]
        send(raylets, signal.SIGSTOP)
        assert command.wait(200) == 75, command.output
        (line,) = [line for line in command.output.splitlines() if line.startswith("ablate: ")]
        assert line.startswith("ablate: the raylet that this machine runs for the Ray cluster at"), line
        send(raylets, signal.SIGCONT)
        assert "complete" in run.finish(fresh=True)
    check_whole(run, trials=1, epochs=8, drivers=2)
    measured("the raylet beside the driver of a joined cluster frozen before the end: exit code 75 and one line")
