"""MLflow as deploy/ starts it: the container's command, user, read-only root and Secret, on a real PostgreSQL."""

from __future__ import annotations

import base64
import json
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.deployed import built, expanded_arguments, make_secret, one
from support.pods_here import Here, require_containers
from support.postgres import PostgresServer

SECONDS = 240.0


def get(
    url: str, password: str | None = None, *, host: str | None = None, body: object = None, method: str | None = None
) -> int:
    """Return the status of a request."""
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode(), method=method)
    if password is not None:
        token = base64.b64encode(f"ablate:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    if host is not None:
        request.add_header("Host", host)
    if body is not None:
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.services
@pytest.mark.timeout(400)
def test_mlflow_starts_as_deployed_and_lets_nobody_in_without_its_password(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    require_containers()
    objects = built("overlays/local")
    deployment = one(objects, "Deployment", "mlflow")
    pod = deployment["spec"]["template"]["spec"]
    container = dict(pod["containers"][0])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    container["command"] = container["command"][3:]  # without tini, which is in the image and not here
    container["args"] = [word.replace("--port=5000", f"--port={port}") for word in expanded_arguments(deployment)]
    database = postgres_server.empty()
    made = make_secret(tmp_path / "made", "gpu", STORAGE_URL=f"{database}&x=1", MLFLOW_BACKEND_URL=database)
    assert made.code == 0, made.said
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    artifacts.chmod(0o777)
    tmp_path.chmod(0o755)
    settings = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    here = Here(
        folder=tmp_path / "pod", pod=pod, container=container, secrets={"ablate": made.data}, settings=settings,
        folders={"artifacts": artifacts},
    )  # fmt: skip
    url, password = f"http://127.0.0.1:{port}", made.data["mlflow-password"]
    with here.started() as inside:
        deadline = time.monotonic() + SECONDS
        while not answers(url):
            assert inside.process.poll() is None, here.log()[-3000:]
            assert time.monotonic() < deadline, here.log()[-3000:]
            time.sleep(0.5)
        search = f"{url}/api/2.0/mlflow/experiments/search"
        assert get(search, body={"max_results": 1}) == 401, "nobody without a password"
        assert get(search, "wrong-password-of-more-than-12", body={"max_results": 1}) == 401
        assert get(search, password, body={"max_results": 1}) == 200
        assert get(search, password, host="mlflow:5000", body={"max_results": 1}) == 200
        assert get(search, password, host="evil.example:5000", body={"max_results": 1}) == 403
        assert get(url) == 401, "its pages ask for it, too"
        assert get(f"{url}/api/2.0/mlflow/experiments/create", password, body={"name": "made here"}) == 200
        artifact = f"{url}/api/2.0/mlflow-artifacts/artifacts/x.txt"
        assert put(artifact, password) == 200
        assert (artifacts / "x.txt").read_bytes() == b"kept"
        assert (artifacts / "x.txt").stat().st_uid == 1000
        change_password(url, password)
    assert password not in here.log()


def change_password(url: str, password: str) -> None:
    """Give the user another password as deploy/README.md tells; the Secret alone does not change it."""
    other = {"username": "ablate", "current_password": password, "password": "another-one-of-more-than-12"}
    assert get(f"{url}/api/2.0/mlflow/users/update-password", password, body=other, method="PATCH") == 200
    search = f"{url}/api/2.0/mlflow/experiments/search"
    assert get(search, password, body={"max_results": 1}) == 401
    assert get(search, other["password"], body={"max_results": 1}) == 200


def put(url: str, password: str) -> int:
    """Return the status of an upload."""
    token = base64.b64encode(f"ablate:{password}".encode()).decode()
    request = urllib.request.Request(url, data=b"kept", method="PUT", headers={"Authorization": f"Basic {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(answer.status)


def answers(url: str) -> bool:
    """Return whether /health answers, as the probes ask."""
    try:
        return get(f"{url}/health", host="10.0.0.7:5000") == 200
    except OSError:
        return False
