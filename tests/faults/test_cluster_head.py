"""The head is lost altogether, and every node and the driver with it; the same command goes on on a new cluster."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.faults.lossless import check_whole, repeated_steps, reports, study
from support.faults.raylets import Cluster, cluster, send
from support.faults.replayed import check_decisions, check_suggestions
from support.faults.study_runs import Command, StudyRun

LOSSES, SLOTS, TRIALS, EPOCHS = 3, 3, 24, 9
LOSS_STEPS = 15  # three times this is less than ASHA leaves of 24 trials in any order


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_gcs_raylets_workers_and_driver_killed_at_once_and_a_new_cluster_loses_and_doubles_nothing(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    run = StudyRun(
        folder=tmp_path,
        text=study(
            "beheaded",
            trials=TRIALS,
            epochs=EPOCHS,
            sampler="tpe, startup_trials: 4",
            scheduler="asha, reduction: 3, min_epochs: 1",
            replicates=1,
        ),
        options=("--gpus", "0", "--device", "cpu", "--tracker", "none"),
        pace=0.3,
    )
    for loss in range(1, LOSSES + 1):
        with cluster() as ray:
            ray.start(1, 2)
            command = run.search("--address", ray.address, fresh=True)
            command.until(lambda loss=loss: len(run.steps()) >= LOSS_STEPS * loss)
            before = set(map(repr, reports(run)))
            lose(ray, command)
        assert before <= set(map(repr, reports(run))), "what was committed is kept"
    with cluster() as ray:
        ray.start(1, 2)
        command = run.search("--address", ray.address, fresh=True)
        assert command.wait(300) == 0, command.output
    assert f"Study {run.name!r} continues" in command.output
    check_whole(run, trials=TRIALS, drivers=LOSSES + 1)
    repeated = sum(repeated_steps(run).values())
    assert repeated <= SLOTS * LOSSES
    assert check_decisions(run) > 0, "a study in which nothing is stopped shows nothing"
    assert check_suggestions(run) == TRIALS
    measured(f"GCS, {SLOTS} slots on 2 nodes and the driver killed {LOSSES} times, each time a new cluster: "
             f"{repeated} of at most {SLOTS * LOSSES} steps repeated")  # fmt: skip


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_driver_whose_cluster_is_gone_leaves_in_one_line_and_goes_on_on_another(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    options = ("--gpus", "0", "--device", "cpu", "--tracker", "none")
    run = StudyRun(folder=tmp_path, text=study("left", trials=6, epochs=EPOCHS), options=options, pace=0.3)
    with cluster() as ray:
        ray.start(1, 1)
        command = run.search("--address", ray.address, fresh=True)
        command.until(lambda: len(run.steps()) >= EPOCHS)
        ray.kill()
        lost_at = time.monotonic()
        assert command.wait() == 75, command.output
        seconds = time.monotonic() - lost_at
    said = [line for line in command.output.splitlines() if line.startswith("ablate: ")]
    assert len(said) == 1
    assert re.fullmatch(
        r"ablate: the Ray cluster at .* has not answered for 45 s; what was committed is kept.*", said[0]
    )
    with cluster() as ray:
        ray.start(1, 1)
        command = run.search("--address", ray.address, fresh=True)
        assert command.wait() == 0, command.output
    check_whole(run, trials=6, epochs=EPOCHS, drivers=2)
    repeated = sum(repeated_steps(run).values())
    assert repeated <= 2
    measured(
        f"a cluster lost under its driver: exit code 75 and one line after {seconds:.0f} s, {repeated} steps repeated"
    )


def lose(ray: Cluster, command: Command) -> None:
    """`kill -9` of the driver and of every process of the cluster."""
    every = [process.pid for node in ray.all for process in node.family()]
    send([command.pid, *every], signal.SIGKILL)
    ray.kill()
    command.wait()
