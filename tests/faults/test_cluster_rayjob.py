"""The manifest of `ablate k8s render`, run as written on pods of this machine: killed, preempted, retried, finished."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.faults import kubelet
from support.faults.kubelet import Provided, RayCluster, until
from support.faults.lossless import check_mlflow, check_whole, study
from support.faults.study_runs import StudyRun
from support.mlflow_server import mlflow_server
from support.pods_here import require_containers
from support.postgres import PostgresServer
from support.s3 import S3Server

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]
NAME, TRIALS, EPOCHS = "shipped", 10, 60


@pytest.fixture
def run(tmp_path: Path, postgres_server: PostgresServer) -> StudyRun:
    """The study as its ledger in PostgreSQL shows it."""
    text = study(NAME, trials=TRIALS, epochs=EPOCHS, replicates=1).replace("steps_per_epoch: 1", "steps_per_epoch: 40")
    return StudyRun(folder=tmp_path, text=text, storage=postgres_server.empty())


@pytest.fixture
def manifest(run: StudyRun) -> list[dict[str, Any]]:
    """What `ablate k8s render` prints."""
    command = [sys.executable, "-m", "ablate", "k8s", "render", str(run.file), "--image", "registry/ablate:0.1.0"]
    done = subprocess.run(
        [*command, "--nodes", "2", "--cpus", "1", "--memory", "4Gi"], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def of_kind(manifest: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in manifest if each["kind"] == kind]
    return found


@pytest.fixture
def provided(run: StudyRun, manifest: list[dict[str, Any]], s3_server: S3Server, tmp_path: Path) -> Iterator[Provided]:
    """PostgreSQL, a bucket and an MLflow server, told to the pods by Secret and ConfigMap alone."""
    require_containers()
    store = s3_server.url(f"shipped-{secrets.token_hex(4)}")
    (tmp_path / "tracking").mkdir()
    with mlflow_server(tmp_path / "tracking") as server:
        server.start()
        study_file = of_kind(manifest, "ConfigMap")
        keys = s3_server.environment()
        secret = {
            "storage-url": str(run.storage),
            "aws-access-key-id": keys["AWS_ACCESS_KEY_ID"],
            "aws-secret-access-key": keys["AWS_SECRET_ACCESS_KEY"],
        }
        yield Provided(
            secrets={"ablate": secret},
            settings={
                "ablate": {"ABLATE_STORE": store, "MLFLOW_TRACKING_URI": server.url},
                study_file["metadata"]["name"]: study_file["data"],
            },
            claims={"ablate-data": run.data},
            scratch=tmp_path / "pods",
        )


def status(cluster: RayCluster, submission: str) -> dict[str, Any]:
    """Return what the dashboard says of a job; an empty dictionary while it does not answer."""
    url = f"http://127.0.0.1:{cluster.dashboard}/api/jobs/{submission}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {cluster.token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.load(answer))
    except OSError:
        return {}


def attempt(manifest: list[dict[str, Any]], provided: Provided, number: int) -> tuple[RayCluster, str]:
    """Make a new cluster from the same manifest and hand it the job, as KubeRay does for each retry."""
    provided.scratch.mkdir(exist_ok=True)
    cluster = RayCluster(job=of_kind(manifest, "RayJob"), provided=provided, token=secrets.token_hex(16))
    said = cluster.start()
    assert "FAULT" not in said
    until(lambda: _dashboard(cluster))
    submission = f"{NAME}-{number}"
    code, printed = cluster.submit(submission)
    assert code == 0, printed
    return cluster, submission


def _dashboard(cluster: RayCluster) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{cluster.dashboard}/api/version", timeout=5).close()
    except urllib.error.HTTPError:
        return True  # it answers, and asks for the token
    except OSError:
        return False
    return True


def test_a_job_whose_driver_and_whose_clusters_are_lost_is_finished_by_its_retries(
    run: StudyRun, manifest: list[dict[str, Any]], provided: Provided, measured: Callable[[str], None]
) -> None:
    committed = [0]

    def further(reports: int) -> Callable[[], bool]:
        return lambda: run.committed() >= committed[-1] + reports

    # The driver alone is killed: the job fails, KubeRay deletes the cluster and makes another one.
    cluster, job = attempt(manifest, provided, 0)
    try:
        until(further(40))
        kubelet.kill_driver("/study/study.yaml")
        until(lambda: status(cluster, job).get("status") == "FAILED")
    finally:
        cluster.kill()
    committed.append(run.committed())

    # The whole cluster is killed.
    cluster, job = attempt(manifest, provided, 1)
    try:
        until(further(40))
    finally:
        cluster.kill()
    committed.append(run.committed())

    # The head is drained: its preStop hook lets running trials pause, then the pods end.
    cluster, job = attempt(manifest, provided, 2)
    try:
        until(further(40))
        before = time.monotonic()
        cluster.stop()
        stopped = time.monotonic() - before
        assert not kubelet.driver_pids("/study/study.yaml")
    finally:
        cluster.kill()
    assert stopped < 28
    assert "RUNNING" not in {str(trial.state) for trial in run.trials()}, "a trial was not paused"
    committed.append(run.committed())

    cluster, job = attempt(manifest, provided, 3)
    try:
        until(lambda: status(cluster, job).get("status") in ("SUCCEEDED", "FAILED"), 300)
        assert status(cluster, job)["status"] == "SUCCEEDED", cluster.logs()
    finally:
        cluster.kill()
    check_whole(run, trials=TRIALS, epochs=EPOCHS, drivers=4)
    check_mlflow(run, provided.settings["ablate"]["MLFLOW_TRACKING_URI"])
    measured(f"RayJob executed as written, {len(committed)} clusters: driver killed, cluster killed, head drained in "
             f"{stopped:.1f} s, then finished: {TRIALS} trials x {EPOCHS} epochs, none lost or doubled")  # fmt: skip
