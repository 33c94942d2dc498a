"""The head is lost altogether, and every node and the driver with it; the same command goes on on a new cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from lossless import check_whole, repeated_steps, reports, study
from raylets import Cluster, cluster, send
from replayed import check_decisions, check_suggestions
from study_runs import Command, StudyRun

LOSSES, SLOTS, TRIALS, EPOCHS = 3, 3, 18, 9


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
            command.until(lambda loss=loss: len(run.steps()) >= 20 * loss)
            before = set(map(repr, reports(run)))
            lose(ray, command)
        assert before <= set(map(repr, reports(run))), "what was committed stands"
    with cluster() as ray:
        ray.start(1, 2)
        command = run.search("--address", ray.address, fresh=True)
        assert command.wait(300) == 0, command.output
    assert f"Study {run.name!r} goes on" in command.output
    check_whole(run, trials=TRIALS, drivers=LOSSES + 1)
    repeated = sum(repeated_steps(run).values())
    assert repeated <= SLOTS * LOSSES
    assert check_decisions(run) > 0, "a study in which nothing is stopped shows nothing"
    assert check_suggestions(run) == TRIALS
    measured(f"GCS, {SLOTS} slots on 2 nodes and the driver killed {LOSSES} times, each time a new cluster: "
             f"{repeated} of at most {SLOTS * LOSSES} steps repeated")  # fmt: skip


def lose(ray: Cluster, command: Command) -> None:
    """`kill -9` of the driver and of every process of the cluster."""
    every = [process.pid for node in ray.all for process in node.family()]
    send([command.pid, *every], signal.SIGKILL)
    ray.kill()
    command.wait(30)
