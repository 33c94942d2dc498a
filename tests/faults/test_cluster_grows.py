"""A study asks Ray's autoscaler for nodes, trains on those that join later, and drops its request in the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.faults.lossless import check_whole, study
from support.faults.raylets import Node, cluster
from support.faults.study_runs import StudyRun

TRIALS, EPOCHS = 4, 12
# Writes, whenever it changes, how many trials the GCS holds a request for: what Ray's autoscaler reads.
WATCH = """\
import sys, time
from ray._raylet import GcsClient
from ray.autoscaler.v2.sdk import get_cluster_resource_state

client, before = GcsClient(address=sys.argv[1]), None
while True:
    state = get_cluster_resource_state(client)
    asked = [
        (dict(each.request.resources_bundle), each.count)
        for constraint in state.cluster_resource_constraints
        for each in constraint.resource_requests
    ]
    assert all(bundle == {"CPU": 1.0} for bundle, _ in asked), asked
    found = sum(count for _, count in asked)
    if found != before:
        print(found, flush=True)
    before = found
    time.sleep(0.2)
"""


@contextmanager
def watched(address: str, folder: Path) -> Iterator[Path]:
    """Yield the file in which the requests of the cluster stand, one number of trials per line."""
    file = folder / "asked"
    with file.open("wb") as output:
        watcher = subprocess.Popen([sys.executable, "-c", WATCH, address], stdout=output, stderr=subprocess.STDOUT)
    try:
        yield file
        assert watcher.poll() is None, file.read_text()
    finally:
        watcher.kill()
        watcher.wait()


def trains_on(node: Node, run: StudyRun) -> bool:
    """Return whether a worker of `node` has taken a step of a trial."""
    return bool(set(node.workers()) & {line["pid"] for line in run.steps()})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_trains_on_a_node_that_joined_later_and_drops_its_request(tmp_path: Path) -> None:
    with cluster(RAY_enable_autoscaler_v2="1") as ray:
        ray.start(1)
        run = StudyRun(
            folder=tmp_path,
            text=study("grows", trials=TRIALS, epochs=EPOCHS),
            options=("--address", ray.address, "--gpus", "0", "--device", "cpu", "--tracker", "none"),
            pace=0.3,
        )
        with watched(ray.address, tmp_path) as asked:
            command = run.search("--autoscale", "2", fresh=True)
            command.until(lambda: "2" in asked.read_text().split())
            late = ray.add_node(cpus=1)
            ray.wait()
            command.until(lambda: trains_on(late, run))
            assert command.wait(300) == 0, command.output
            requests = asked.read_text().split()
    assert max(map(int, requests)) == 2, "one trial a node, two nodes at most"
    assert requests[-1] == "0", "idle nodes would be kept for a study that has ended"
    check_whole(run, trials=TRIALS, epochs=EPOCHS)
