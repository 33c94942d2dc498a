"""A cluster that a study joined is free again before its networks, tables and report are sent anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.faults.raylets import cluster

STUDY = """\
study: released
datasets: {digits: {patch: 4, train_limit: 128}}
model: {width: 8, depth: 1, mlp: none}
training: {epochs: 2, batch_size: 32, learning_rate: {float: [1e-3, 1e-2], log: true}}
scheduler: {name: none}
budget: {trials: 2}
confirm: {replicates: 1}
"""
# A tracker that looks at the cluster when it is given the networks; the nodes report what is free once a second.
TRACKER = """\
import json, os, time
import ray
from ablate.tracking.tracker import Several

class Looks(Several):
    def log_models(self, configs, *, write):
        joined = ray.is_initialized()
        with ray.init(address=os.environ["CLUSTER"], log_to_driver=False, ignore_reinit_error=True):
            deadline = time.monotonic() + 60
            while (free := ray.available_resources().get("CPU")) != ray.cluster_resources()["CPU"]:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
        with open("seen.json", "w") as file:
            json.dump({"networks": len(configs), "joined": joined, "free": free}, file)

def build(name, **_):
    return Looks()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_are_free_when_publishing_begins(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "looks.py").write_text(TRACKER)
    with cluster() as made:
        made.start(2)
        command = [sys.executable, "-m", "ablate", "search", "study.yaml", "--runs-dir", "runs", "--device", "cpu"]
        done = subprocess.run(
            [*command, "--tracker", "looks:build", "--address", made.address, "--gpus", "0"],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CLUSTER": made.address},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["networks"] > 0
    assert (seen["joined"], seen["free"]) == (False, 2.0)
