"""The link of a node is cut for 45 seconds: hosts are network namespaces behind a bridge of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.faults import netns
from support.faults.lossless import check_whole, repeated_steps, study
from support.faults.raylets import Node, cluster
from support.faults.study_runs import StudyRun

CUT_SECONDS = 45.0
TRIALS, EPOCHS = 20, 12


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.skipif(netns.missing() is not None, reason=str(netns.missing()))
def test_a_link_that_is_down_for_a_while_costs_each_trial_on_it_one_step_at_most(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with netns.hosts(2) as (here, hosts), cluster() as ray:
        ray.add_head(host=here)
        for host in hosts:
            ray.add_node(cpus=1, host=host.address, within=host.within)
        ray.wait()
        run = StudyRun(
            folder=tmp_path,
            text=study("cut", trials=TRIALS, epochs=EPOCHS),
            options=("--address", ray.address, "--gpus", "0", "--device", "cpu", "--tracker", "none"),
            pace=0.5,
        )
        command = run.search(fresh=True)
        command.until(lambda: all(steps_on(node, run) > 2 for node in ray.nodes))
        hosts[0].cut()
        cut_at = time.time()
        command.until(lambda: time.time() > cut_at + CUT_SECONDS)
        hosts[0].mend()
        touched = {
            line["trial"] for line in run.steps() if line["pid"] in pids(ray.nodes[0]) and line["at"] > cut_at - 1
        }
        assert command.wait(600) == 0, command.output
    check_whole(run, trials=TRIALS, epochs=EPOCHS)
    repeated = repeated_steps(run)
    assert set(repeated) <= touched
    assert max(repeated.values(), default=0) <= 1
    assert {trial.key.number for trial in run.trials() if trial.attempt > 1} <= touched
    later = min(line["at"] for line in run.steps() if line["trial"] in touched and line["at"] > cut_at + CUT_SECONDS)
    measured(f"a link cut for {CUT_SECONDS:g} s: {sum(repeated.values())} steps repeated, {len(touched)} trial touched;"
             f" it went on {later - cut_at:.0f} s after the cut")  # fmt: skip


def pids(node: Node) -> set[int]:
    """Return the processes of a node that may hold a trial."""
    return set(node.workers())


def steps_on(node: Node, run: StudyRun) -> int:
    """Return how many steps were taken on `node`."""
    return sum(line["pid"] in pids(node) for line in run.steps())
