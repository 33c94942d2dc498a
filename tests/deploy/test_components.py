"""The components of deploy/ on rendered studies, as `kubectl kustomize` combines them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablate.kubernetes.template import manifest, rendered
from support.cluster_schemas import CRD, refusals
from support.commands import run
from support.deployed import DEPLOY, End, Plain, built, connects, one
from support.deployment_rules import ENDS
from support.manifests import REQUESTS, combined, head, job, request, worker
from support.paths import REPOSITORY
from support.pod_security import pod_faults

NAMES = sorted(path.name for path in (DEPLOY / "components").iterdir())
TOGETHER = {  # Kueue and the autoscaler exclude each other
    "autoscaler": [name for name in NAMES if name not in ("queue", "priority")],
    "queue": [name for name in NAMES if name != "autoscaler"],
}
HEAD = "spec.rayClusterSpec.headGroupSpec.template"
WORKERS = "spec.rayClusterSpec.workerGroupSpecs.workers"
WORKER = f"{WORKERS}.template.spec"
SPOT: dict[str, Any] = {"key": "cloud.google.com/gke-spot", "values": ["true"]}
AVOID, PREFER = ([{"matchExpressions": [SPOT | {"operator": operator}]}] for operator in ("NotIn", "In"))
SMALL = {"cpu": "500m", "memory": "1Gi"}
STORE = "env.ABLATE_STORE.valueFrom.configMapKeyRef"
CHANGES: dict[str, dict[str, Any]] = {  # all that a component changes in a RayJob, by place; None is for what is gone
    "arch": {f"{place}.nodeSelector.kubernetes.io/arch": "arm64"
             for place in ("spec.submitterPodTemplate.spec", f"{HEAD}.spec", WORKER)},
    "autoscaler": {
        "spec.rayClusterSpec.enableInTreeAutoscaling": True,
        f"{WORKERS}.replicas": 1,
        f"{HEAD}.metadata.labels.ablate.dev/autoscaler": "ray",
        f"{HEAD}.spec.volumes.api-server.name": "api-server",
        f"{HEAD}.spec.volumes.api-server.projected.sources": [
            {"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}}],
    },
    "data-claim": {f"{place}.volumes.data.persistentVolumeClaim.claimName": "my-data"
                   for place in (f"{HEAD}.spec", WORKER)},
    "node-selector": {f"{WORKER}.nodeSelector.pool": "a"},
    "priority": {"metadata.labels.kueue.x-k8s.io/priority-class": "ablate-urgent"},
    "queue": {"metadata.labels.kueue.x-k8s.io/queue-name": "ablate", "spec.suspend": True},
    "retries": {"spec.preRunningDeadlineSeconds": 3600},
    "runs-claim": {
        f"{place}.volumes.runs.persistentVolumeClaim.claimName": "ablate-runs" for place in (f"{HEAD}.spec", WORKER)
    } | {
        f"{place}.{part}": None
        for place in (f"{HEAD}.spec.initContainers.doctor", f"{HEAD}.spec.containers.ray-head",
                      f"{WORKER}.containers.ray-worker")
        for part in ("env.ABLATE_STORE.name", f"{STORE}.name", f"{STORE}.key")
    },
    "spot": {
        f"{HEAD}.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": AVOID,
        f"{WORKER}.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": PREFER[0]}],
        f"{WORKER}.tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": SPOT["key"], "operator": "Equal", "value": "true", "effect": "NoSchedule"}],
    },
    "toleration": {f"{WORKER}.tolerations": [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}]},
}  # fmt: skip


def places(found: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value by its place; what is in a list is named by its name, or the list is one value."""
    if isinstance(found, list) and found and all(isinstance(each, dict) for each in found):
        names = [each.get("name", each.get("groupName")) for each in found]
        found = found if None in names else dict(zip(names, found, strict=True))
    if isinstance(found, dict) and found:
        for key, each in found.items():
            yield from places(each, f"{place}.{key}" if place else key)
    elif not isinstance(found, dict):
        yield place, found


@pytest.mark.parametrize("name", NAMES)
def test_a_component_changes_what_it_names_and_nothing_else(name: str) -> None:
    good = request(gpus=8)
    *others, job_before = manifest(good)
    *same, job_after = combined(rendered(good), name)
    assert same == others
    before, after = dict(places(job_before)), dict(places(job_after))
    options = {key: value for key, value in after.items() if key.startswith("spec.rayClusterSpec.autoscalerOptions")}
    assert bool(options) is (name == "autoscaler")
    changed = {key: after.get(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert {key: value for key, value in changed.items() if key not in options} == CHANGES[name]


def test_a_component_has_15_lines_at_most_and_is_named_where_people_choose() -> None:
    listed = (DEPLOY / "study/kustomization.yaml").read_text()
    text = (DEPLOY / "README.md").read_text()
    for name in NAMES:
        (file,) = (DEPLOY / "components" / name).iterdir()
        assert len(file.read_text().splitlines()) <= 15
        assert f"- ../components/{name} #" in listed
        assert f"`{name}`" in text


@pytest.mark.parametrize("good", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize("names", TOGETHER.values(), ids=TOGETHER.keys())
def test_every_reader_passes_all_of_them_together(names: list[str], good: Any) -> None:
    assert refusals(combined(rendered(good), *names)) == []
    if not CRD.is_file():
        pytest.skip("the schema of KubeRay's CRD is not here (../shared/k8s); the other readers have passed it")


@pytest.mark.parametrize("names", TOGETHER.values(), ids=TOGETHER.keys())
def test_the_order_of_components_does_not_matter(names: list[str]) -> None:
    good, mixed = (
        rendered(request(gpus=2)),
        [name for name in names if name != "spot"],
    )  # it and toleration add to a list
    assert combined(good, *mixed) == combined(good, *reversed(mixed))


def test_a_manifest_of_another_version_is_not_patched_at_the_wrong_place() -> None:
    objects = manifest(request())
    head(objects)["template"]["spec"]["containers"][0]["env"].pop(0)
    with pytest.raises(AssertionError, match="containers/0/env/0/name failed: test failed"):
        combined(yaml.dump_all(objects), "runs-claim")


def test_a_study_with_components_is_one_command_after_the_render(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What deploy/study says: the manifest is printed beside it, and `kubectl apply -k` takes both."""
    study = str(REPOSITORY / "search_spaces/digits.yaml")
    code, out, _ = run(capfd, "k8s", "render", study, "--image", "ablate:0.1.0")
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "deploy/study/study.yaml").write_text(out)
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path / "deploy/study")], capture_output=True, text=True)
    assert (code, done.returncode) == (0, 0), done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    assert one(objects, "RayJob", "digits")["spec"] == job(combined(out, "runs-claim"))
    one(built("overlays/local"), "PersistentVolumeClaim", "ablate-runs")


def test_only_the_autoscalers_container_has_a_token_of_the_api_server() -> None:
    objects = combined(rendered(request(nodes=4, arguments=("--autoscale", "4"))), "autoscaler")
    group = worker(objects)
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (1, 1, 4)
    assert job(objects)["entrypoint"].endswith(" --autoscale 4")
    spec, options = head(objects)["template"]["spec"], job(objects)["rayClusterSpec"]["autoscalerOptions"]
    tokens = [each["name"] for each in spec["volumes"] if "projected" in each]
    assert len(tokens) == 1
    for container in (*spec["initContainers"], *spec["containers"]):
        assert tokens[0] not in [mount["name"] for mount in container["volumeMounts"]]
    (mount,) = [mount for mount in options["volumeMounts"] if mount["name"] == tokens[0]]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount", "where Ray reads it"
    added = {"name": "autoscaler", "image": spec["containers"][0]["image"]} | options
    assert added.pop("version") == "v2"
    assert pod_faults(spec | {"containers": [*spec["containers"], added]}) == [], "as KubeRay completes it"


@pytest.mark.parametrize("name", ["overlays/local", "overlays/gpu"])
def test_only_the_head_with_an_autoscaler_reaches_the_api_server(name: str) -> None:
    objects = built(name)
    labels: Plain = head(combined(rendered(request()), "autoscaler"))["template"]["metadata"]["labels"]
    growing, fixed, server = End(tuple(labels.items())), ENDS["head"], ENDS["the internet"]
    for port in (443, 6443):
        assert connects(objects, growing, server, port)
    assert not connects(objects, fixed, server, 6443)
    assert not connects(objects, growing, ENDS["the node's metadata"], 443)


def test_names_are_those_that_deploy_makes() -> None:
    labels = combined(rendered(request()), "queue", "priority")[-1]["metadata"]["labels"]
    one(built("kueue/queue"), "LocalQueue", labels["kueue.x-k8s.io/queue-name"])
    one(built("kueue"), "WorkloadPriorityClass", labels["kueue.x-k8s.io/priority-class"])
