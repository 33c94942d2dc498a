"""Good requests for a cluster, and the parts of what is rendered of them."""

from __future__ import annotations

from typing import Any

from ablate.kubernetes.request import ClusterRequest
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
    "no-gpu-three-nodes": request(nodes=3, cpus="1.5", memory="8Gi"),
    "one-gpu": request(gpus=1, gpus_per_trial=0.25),
    "eight-gpus-on-eight-nodes": request(gpus=8),
    "eight-gpus-on-one-node": request(gpus=8, gpus_per_node=8, gpus_per_trial=2.0),
    "spot": request(gpus=2, spot="cloud.google.com/gke-spot=true"),
    "queue": request(gpus=2, queue="ablate"),
    "no-data-claim": request(data_claim=None),
    "runs-claim": request(runs_claim="ablate-runs"),
    "no-retry": request(retries=0),
    "digest": request(image=f"ghcr.io/org/ablate@sha256:{'0' * 64}"),
    "registry-with-a-port": request(image="registry:5000/a/b_c/ablate:v1"),
    "compare": request(name="fashion-mnist", study_text=COMPARE, command="compare"),
    "further-options": request(arguments=("--tracker", "none", "--cpus-per-trial=2", "--deterministic")),
    "longest-name": request(name="a" * 47),
    "a-name-that-yaml-takes-for-true": request(name="y", namespace="on", secret="1e3", queue="null"),
}


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
