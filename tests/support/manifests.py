"""Good requests for a cluster, and the parts of what is rendered of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablate.kubernetes.request import ClusterRequest
from ablate.kubernetes.template import manifest
from ablate.study import read_study
from support.cluster_schemas import Plain
from support.paths import REPOSITORY

SEARCH = read_study(REPOSITORY / "search_spaces/digits.yaml")[1]
COMPARE = read_study(REPOSITORY / "search_spaces/fashion_mnist.yaml", scale=0.02)[1]
PASSWORDS = (
    "postgresql+psycopg://ada:tr0ub4dor@db/ablate",
    "--storage=postgresql+psycopg://ada:tr0ub4dor@db:5432/ablate?sslmode=require",
    "--tracking-uri=http://:tr0ub4dor@mlflow",
    "s3://bucket?secret_key=tr0ub4dor",
    "postgresql://db/ablate?user=ada&password=tr0ub4dor",
    "s3://AKIAME:wJalr/tr0ub4dor/x@bucket",
    "postgresql://ada@org:tr0ub4dor@db/ablate",
    "postgresql://ada:tr0ub4dor:7@db/ablate",
)
HARMLESS = (
    "postgresql+psycopg://ada@db.internal:5432/ablate?sslmode=require",
    "http://mlflow:5000/of/ada@example.org",
    "https://example.org/?seen=12:30",
    "s3://bucket/ada@org/x",
    "registry:5000/ablate@sha256:0",
)


def request(**changes: Any) -> ClusterRequest:
    """Return a good request with `changes`."""
    fields: dict[str, Any] = {"name": "digits", "study_text": SEARCH, "image": "registry.example.org/ablate:0.1.0"}
    return ClusterRequest(**fields | {"gpus": 0} | changes)


REQUESTS = {
    "no-gpu": request(),
    "no-gpu-three-nodes": request(nodes=3, cpus=2, memory="8Gi"),
    "one-gpu": request(gpus=1, gpus_per_trial=0.25),
    "eight-gpus-on-eight-nodes": request(gpus=8),
    "eight-gpus-on-one-node": request(gpus=8, gpus_per_node=8, gpus_per_trial=2.0),
    "digest": request(image=f"ghcr.io/org/ablate@sha256:{'0' * 64}"),
    "registry-with-a-port": request(image="registry:5000/a/b_c/ablate:v1"),
    "compare": request(name="fashion-mnist", study_text=COMPARE, command="compare"),
    "further-options": request(arguments=("--tracker", "none", "--cpus-per-trial=2", "--deterministic")),
    "longest-name": request(name="a" * 47),
    "a-name-that-yaml-takes-for-true": request(name="y", namespace="1e3"),
}


PLACES = {"ABLATE_STORE", "MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL_S3", "AWS_REGION"}  # keys of the ConfigMap
BUCKET_SECRETS = {"AWS_ACCESS_KEY_ID": "aws-access-key-id", "AWS_SECRET_ACCESS_KEY": "aws-secret-access-key"}
DRIVER_SECRETS = BUCKET_SECRETS | {
    "ABLATE_STORAGE": "storage-url", "MLFLOW_TRACKING_USERNAME": "mlflow-username",
    "MLFLOW_TRACKING_PASSWORD": "mlflow-password",
}  # fmt: skip
METRICS_PORT = 9464
NO_ABLATE = "ablate: this image has no ablate. Build it from deploy/Dockerfile and name it with --image."


def combined(text: str, *components: str) -> list[Plain]:
    """Return the objects of a rendered study with components of deploy/, as `kubectl kustomize` makes them."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "study.yaml").write_text(text)
        places = [os.path.relpath(REPOSITORY / "deploy/components" / name, folder) for name in components]
        (Path(folder) / "kustomization.yaml").write_text(yaml.dump({"resources": ["study.yaml"], "components": places}))
        done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    return [found[kind] for kind in ("ConfigMap", "PodDisruptionBudget", "RayJob")]


def job(objects: list[Plain]) -> Plain:
    """Return the RayJob's spec."""
    spec: Plain = next(each for each in objects if each["kind"] == "RayJob")["spec"]
    return spec


def head(objects: list[Plain]) -> Plain:
    """Return the head group."""
    group: Plain = job(objects)["rayClusterSpec"]["headGroupSpec"]
    return group


def worker(objects: list[Plain]) -> Plain:
    """Return the one worker group."""
    (group,) = job(objects)["rayClusterSpec"]["workerGroupSpecs"]
    found: Plain = group
    return found


def container(group: Plain) -> Plain:
    """Return the one container of a group's pods."""
    (found,) = group["template"]["spec"]["containers"]
    one: Plain = found
    return one


def hook() -> str:
    """Return what the shell of the head's preStop hook runs."""
    text: str = container(head(manifest(request())))["lifecycle"]["preStop"]["exec"]["command"][-1]
    return text
