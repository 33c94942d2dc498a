"""Studies whose workers Ray's autoscaler adds and removes: what is refused, and what is rendered."""

from __future__ import annotations

import shlex
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ablate.kubernetes.preflight import needs
from ablate.kubernetes.template import manifest, rendered
from support.cluster_schemas import refusals
from support.commands import TINY
from support.deployed import End, built, connects
from support.deployment_rules import ENDS
from support.manifests import REQUESTS, head, job, request, worker
from support.pod_security import pod_faults
from support.rendered import render

GROWING = {
    "gpus": {"gpus": 8, "gpus_per_node": 2, "worker_range": "1:4"},
    "cpus": {"worker_range": "2:10"},
    "fixed": {"worker_range": "3:3", "runs_claim": "ablate-runs"},
}


@pytest.mark.parametrize("changes", GROWING.values(), ids=GROWING.keys())
def test_the_autoscaler_is_switched_on_between_its_limits(changes: dict[str, Any]) -> None:
    least, most = (int(number) for number in changes["worker_range"].split(":"))
    objects = manifest(request(**changes))
    assert refusals(objects) == []
    group = worker(objects)
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (least, least, most)
    cluster = job(objects)["rayClusterSpec"]
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["autoscalerOptions"]["version"] == "v2"
    words = shlex.split(job(objects)["entrypoint"])
    assert words[words.index("--autoscale") + 1] == str(most)
    assert words[words.index("--gpus") + 1] == str(changes.get("gpus", 0))


def test_only_the_autoscalers_container_has_a_token_of_the_api_server() -> None:
    objects = manifest(request(worker_range="1:4"))
    spec, options = head(objects)["template"]["spec"], job(objects)["rayClusterSpec"]["autoscalerOptions"]
    tokens = [each["name"] for each in spec["volumes"] if "projected" in each]
    assert len(tokens) == 1
    assert spec["automountServiceAccountToken"] is False
    for container in (*spec["initContainers"], *spec["containers"]):
        assert tokens[0] not in [mount["name"] for mount in container["volumeMounts"]]
    (mount,) = [mount for mount in options["volumeMounts"] if mount["name"] == tokens[0]]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount", "where Ray reads it"
    others = [worker(objects)["template"]["spec"], job(objects)["submitterPodTemplate"]["spec"]]
    assert not [volume for each in others for volume in each["volumes"] if "projected" in volume]


def test_the_head_as_kuberay_completes_it_is_restricted() -> None:
    objects = manifest(request(worker_range="1:4"))
    spec, options = head(objects)["template"]["spec"], dict(job(objects)["rayClusterSpec"]["autoscalerOptions"])
    for key in ("version", "idleTimeoutSeconds"):
        options.pop(key)
    added = {"name": "autoscaler", "image": spec["containers"][0]["image"]} | options
    assert pod_faults(spec | {"containers": [*spec["containers"], added]}) == []


@pytest.mark.parametrize("name", ["overlays/local", "overlays/gpu"])
def test_only_the_head_with_an_autoscaler_reaches_the_api_server(name: str) -> None:
    objects = built(name)
    labels = head(manifest(request(worker_range="1:4")))["template"]["metadata"]["labels"]
    growing, fixed, server = End(tuple(labels.items())), ENDS["head"], ENDS["the internet"]
    for port in (443, 6443):
        assert connects(objects, growing, server, port)
    assert not connects(objects, fixed, server, 6443)
    assert not connects(objects, growing, ENDS["the node's metadata"], 443)


@pytest.mark.parametrize("name", REQUESTS)
def test_without_workers_nothing_is_rendered_of_an_autoscaler(name: str) -> None:
    text = rendered(REQUESTS[name]).replace("cluster-autoscaler.kubernetes.io", "")
    assert not [word for word in ("utoscal", "projected", "api-server") if word in text]


def test_a_quota_must_hold_the_least_workers_and_the_autoscaler() -> None:
    fixed, growing = needs(request(nodes=2)), needs(request(worker_range="2:10"))
    assert growing == fixed | {"cpu": fixed["cpu"] + Fraction("0.5"), "memory": fixed["memory"] + 2**30}


def test_the_command_renders_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = render(capfd, tmp_path, TINY, "--workers", "1:4")
    assert (code, err) == (0, "")
    for line in ("enableInTreeAutoscaling: true", "minReplicas: 1", "maxReplicas: 4"):
        assert line in out


def test_the_command_prints_nothing_for_workers_that_cannot_be(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = render(capfd, tmp_path, TINY, "--workers", "4:1")
    assert (code, out) == (2, "")
    assert "--workers" in err
