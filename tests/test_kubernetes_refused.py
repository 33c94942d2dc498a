"""A bad request is one clear line; a manifest with one fault is refused by the reader that should refuse it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from cluster_schemas import CRDS, Plain, core_refusals, crd_refusals, needs_crds, refusals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manifests import HARMLESS, PASSWORDS, SEARCH, container, head, job, request, worker
from typer.main import get_command

from ablate import cli
from ablate.errors import RequestError
from ablate.kubernetes import ClusterRequest, faults, holds_password, manifest, rendered
from ablate.kubernetes.arguments import TAKEN
from ablate.kubernetes.request import proposal


@pytest.mark.parametrize("word", PASSWORDS)
def test_a_password_among_further_options_is_refused_and_not_repeated(word: str) -> None:
    with pytest.raises(RequestError, match="holds a password") as refused:
        request(arguments=("--storage", word))
    assert "tr0ub4dor" not in str(refused.value)
    with pytest.raises(RequestError, match="FILE: holds a password") as refused:
        request(study_text=f"{SEARCH}\n# {word}\n")
    assert "tr0ub4dor" not in str(refused.value)


@pytest.mark.parametrize("word", HARMLESS)
def test_an_address_without_a_password_is_none(word: str) -> None:
    assert not holds_password(word)
    assert request(study_text=f"{SEARCH}\n# {word}\n")


@pytest.mark.parametrize("option", TAKEN)
def test_an_option_that_the_manifest_gives_itself_is_refused(option: str) -> None:
    for words in ((option,), (option, "4"), (f"{option}=4",)):
        with pytest.raises(RequestError, match=f"{option}'.*is not for this place"):
            request(arguments=words)


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("search", {"--cpus-per-trial", "--tracker", "--extend", "--deterministic"}),
        ("compare", {"--cpus-per-trial", "--tracker", "--extend", "--scale", "--dataset"}),
    ],
)
def test_every_option_is_known_to_be_free_or_taken(name: str, free: set[str]) -> None:
    command = get_command(cli.app).commands[name]  # type: ignore[attr-defined]
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    assert options - free == set(TAKEN)
    assert free <= options


@pytest.mark.parametrize("word", ["a b", "a;b", "$HOME", "s3://b?x=1&y=2", "it's", "a\nb", "", "`id`", "*"])
def test_a_word_that_two_shells_would_change_is_refused(word: str) -> None:
    with pytest.raises(RequestError, match="two shells"):
        request(arguments=("--tracker", word))


FAULTY = {
    "name-not-a-label": ({"name": "My_Study"}, r"--name = 'My_Study'.*Try --name my-study\."),
    "name-of-48": ({"name": "a" * 48}, rf"at most 47.*Try --name {'a' * 47}\."),
    "name-with-a-digit-first": ({"name": "2nd"}, r"Try --name study-2nd\."),
    "name-without-a-letter": ({"name": "___"}, r"Try --name study\."),
    "image-without-version": ({"image": "registry/ablate"}, "must name a version or a digest"),
    "image-latest": ({"image": "registry/ablate:latest"}, "must name a version or a digest"),
    "image-with-a-port-only": ({"image": "registry:5000/ablate"}, "must name a version or a digest"),
    "image-in-capitals": ({"image": "registry/Ablate:1"}, "must be an image"),
    "image-with-a-space": ({"image": "ablate :1"}, "must be an image"),
    "namespace": ({"namespace": "Ablate"}, r"--namespace = 'Ablate'.*Did you mean 'ablate'"),
    "namespace-with-a-dot": ({"namespace": "a.b"}, "--namespace = 'a.b'"),
    "secret": ({"secret": "my_secret"}, "Did you mean 'my-secret'"),
    "data-claim": ({"data_claim": "Data"}, "--data-claim"),
    "runs-claim": ({"runs_claim": "-"}, "--runs-claim"),
    "queue": ({"queue": "q q"}, "--queue"),
    "spot-without-a-value": ({"spot": "gke-spot"}, "KEY=VALUE"),
    "spot-with-a-long-key": ({"spot": f"{'a' * 64}=true"}, "KEY=VALUE"),
    "gpus-below-0": ({"gpus": -1}, "--gpus = -1: must be between 0"),
    "gpus-not-a-multiple": ({"gpus": 6, "gpus_per_node": 4}, "multiple of --gpus-per-node 4"),
    "gpus-per-node-0": ({"gpus": 4, "gpus_per_node": 0}, "--gpus-per-node = 0"),
    "share-of-one-and-a-half": ({"gpus": 4, "gpus_per_trial": 1.5}, "a share from 0.01 to 1, or a whole number"),
    "share-nan": ({"gpus": 4, "gpus_per_trial": float("nan")}, "a share from 0.01 to 1"),
    "trial-over-two-nodes": ({"gpus": 4, "gpus_per_trial": 2.0}, "a trial has its GPUs on one node, which has 1"),
    "nodes-beside-gpus": ({"gpus": 4, "nodes": 2}, "--nodes = 2"),
    "nodes-0": ({"nodes": -1}, "--nodes = -1: must be between 1"),
    "cpus": ({"cpus": "many"}, "--cpus = 'many'"),
    "no-cpus": ({"cpus": "0"}, "--cpus = '0'"),
    "memory-without-a-unit": ({"memory": "32"}, "--memory = '32': must be an amount"),
    "memory-too-small": ({"memory": "512Mi"}, "at least 4Gi"),
    "retries": ({"retries": -1}, "--retries = -1"),
    "study-too-large": ({"study_text": "#" * 1_000_001}, "at most 1,000,000 bytes"),
}


@pytest.mark.parametrize(("changes", "line"), FAULTY.values(), ids=FAULTY.keys())
def test_a_bad_request_is_one_clear_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(RequestError, match=line) as refused:
        request(**changes)
    assert len(str(refused.value).splitlines()) == 1


def test_all_faults_of_a_request_are_said_at_once() -> None:
    with pytest.raises(RequestError, match="--name") as refused:
        request(name="N", image="x y", cpus="-", gpus=-2, arguments=("--gpus",))
    assert len(str(refused.value).splitlines()) == 5


Mutation = Callable[[list[Plain]], object]


def _security(objects: list[Plain]) -> Plain:
    found: Plain = container(worker(objects))["securityContext"]
    return found


def _volume(objects: list[Plain], volume: Plain) -> None:
    head(objects)["template"]["spec"]["volumes"].append(volume)


def _secret_in_sight(objects: list[Plain]) -> None:
    entries = container(head(objects))["env"]
    entries[:] = [entry for entry in entries if entry["name"] != "ABLATE_STORAGE"]
    entries.append({"name": "ABLATE_STORAGE", "value": "postgresql+psycopg://db/ablate"})


def _add(objects: list[Plain], **fields: Any) -> None:
    job(objects).update(fields)


MUTATIONS: dict[str, tuple[str, Mutation, str]] = {  # name: (who refuses it, what is done, what is said)
    "no-ray-version": ("rules", lambda o: job(o)["rayClusterSpec"].pop("rayVersion"), r"rayVersion.*2\.52\.0"),
    "old-ray-version": ("rules", lambda o: job(o)["rayClusterSpec"].update(rayVersion="2.51.2"), "2.52.0 or newer"),
    "nightly-ray": ("rules", lambda o: job(o)["rayClusterSpec"].update(rayVersion="nightly"), "2.52.0 or newer"),
    "no-authentication": ("rules", lambda o: job(o)["rayClusterSpec"].pop("authOptions"), "mode: token"),
    "unknown-authentication": (
        "crd", lambda o: job(o)["rayClusterSpec"].update(authOptions={"mode": "password"}), "'password' is not one of"),
    "unknown-mode": ("rules", lambda o: _add(o, submissionMode="K8SJobMode"), "submissionMode.*K8sJobMode, HTTPMode"),
    "retries-in-interactive-mode": ("rules", lambda o: _add(o, submissionMode="InteractiveMode"), "InteractiveMode"),
    "submitter-in-sidecar-mode": ("rules", lambda o: _add(o, submissionMode="SidecarMode"), "not supported in Sidecar"),
    "no-entrypoint": ("rules", lambda o: job(o).pop("entrypoint"), "must be the command to run"),
    "password-in-the-entrypoint": ("rules", lambda o: _add(o, entrypoint="ablate --storage a://b:c@d/e"), "password"),
    "retries-below-0": ("rules", lambda o: _add(o, backoffLimit=-1), "backoffLimit = -1: must be at least 0"),
    "retries-beyond-int32": ("crd", lambda o: _add(o, backoffLimit=2**31), "not a 'int32'"),
    "retries-as-text": ("crd", lambda o: _add(o, backoffLimit="20"), "backoffLimit: '20' is not of type 'integer'"),
    "retries-without-shutdown": ("rules", lambda o: _add(o, shutdownAfterJobFinishes=False), "and its GPUs"),
    "suspended-without-shutdown": (
        "rules", lambda o: _add(o, suspend=True, shutdownAfterJobFinishes=False), "suspend = True: needs"),
    "queue-without-suspend": (
        "rules", lambda o: o[-1]["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "q"}), "before it is adm"),
    "selector-and-retries": ("rules", lambda o: _add(o, clusterSelector={"ray.io/cluster": "c"}), "no clusterSelector"),
    "gpus-kept-for-an-hour": ("rules", lambda o: _add(o, ttlSecondsAfterFinished=3600), "keeps its GPUs"),
    "no-time-to-come-up": ("crd", lambda o: _add(o, preRunningDeadlineSeconds=0), "less than the minimum of 1"),
    "deletion-strategies-mixed": (
        "rules", lambda o: _add(o, deletionStrategy={"onSuccess": {"policy": "DeleteCluster"}, "deletionRules": []}),
        "not a mixture"),
    "unknown-deletion-policy": (
        "crd", lambda o: _add(o, deletionStrategy={"onSuccess": {"policy": "Keep"}}), "'Keep' is not one of"),
    "managed-by-nobody": ("rules", lambda o: _add(o, managedBy="example.org/mine"), "managedBy.*must be one of"),
    "runtime-environment-no-yaml": ("rules", lambda o: _add(o, runtimeEnvYAML="a: [b"), "must be YAML"),
    "no-cluster": ("rules", lambda o: job(o).pop("rayClusterSpec"), "one of rayClusterSpec and clusterSelector"),
    "unknown-field": ("crd", lambda o: _add(o, entrypointNumCPUs=1), "'entrypointNumCPUs' was unexpected"),
    "unknown-field-of-a-container": (
        "core", lambda o: container(worker(o)).update(imagePolicy="Always"), "'imagePolicy' was unexpected"),
    "head-with-cpus": ("rules", lambda o: head(o).update(rayStartParams={"num-cpus": "2"}), "num-cpus: must be '0'"),
    "head-with-all-cpus": ("rules", lambda o: head(o)["rayStartParams"].pop("num-cpus"), "num-cpus: must be '0'"),
    "number-in-start-parameters": ("crd", lambda o: head(o)["rayStartParams"].update({"num-cpus": 0}), "0 is not of"),
    "labels-in-start-parameters": ("rules", lambda o: worker(o)["rayStartParams"].update(labels="a=b"), "group's lab"),
    "resources-said-twice": ("rules", lambda o: head(o).update(resources={"CPU": "0"}), "must not stand beside"),
    "two-groups-of-one-name": (
        "rules", lambda o: job(o)["rayClusterSpec"]["workerGroupSpecs"].append(copy.deepcopy(worker(o))), "differ"),
    "group-called-head": ("rules", lambda o: worker(o).update(groupName="head"), "Kueue's own name"),
    "group-without-a-name": ("crd", lambda o: worker(o).pop("groupName"), "'groupName' is a required property"),
    "no-most-replicas": ("rules", lambda o: worker(o).pop("maxReplicas"), "maxReplicas: must be given"),
    "replicas-beyond-most": ("rules", lambda o: worker(o).update(replicas=9), "between minReplicas and maxReplicas"),
    "restarts-always": (
        "rules", lambda o: worker(o)["template"]["spec"].update(restartPolicy="Always"), "Policy.*must be Never"),
    "submitter-restarts": (
        "rules", lambda o: job(o)["submitterPodTemplate"]["spec"].update(restartPolicy="OnFailure"), "must be Never"),
    "grace-of-30": (
        "rules", lambda o: head(o)["template"]["spec"].update(terminationGracePeriodSeconds=30), "must be under 30"),
    "grace-by-default": (
        "rules", lambda o: head(o)["template"]["spec"].pop("terminationGracePeriodSeconds"), "must be under 30"),
    "service-account-token": (
        "rules", lambda o: worker(o)["template"]["spec"].pop("automountServiceAccountToken"), "API server"),
    "root": ("rules", lambda o: _security(o).update(runAsUser=0), r"workerGroupSpecs\[0\].*runAsNonRoot"),
    "perhaps-root": (
        "rules", lambda o: head(o)["template"]["spec"]["securityContext"].pop("runAsNonRoot"), "runAsNonRoot"),
    "privileged": ("rules", lambda o: _security(o).update(privileged=True), "privileged"),
    "escalation": ("rules", lambda o: _security(o).pop("allowPrivilegeEscalation"), "allowPrivilegeEscalation"),
    "capabilities-kept": ("rules", lambda o: _security(o).pop("capabilities"), "capabilities"),
    "capability-added": ("rules", lambda o: _security(o)["capabilities"].update(add=["SYS_PTRACE"]), "capabilities"),
    "no-seccomp": (
        "rules", lambda o: head(o)["template"]["spec"]["securityContext"].pop("seccompProfile"), "seccompProfile"),
    "writable-root-file-system": ("rules", lambda o: _security(o).update(readOnlyRootFilesystem=False), "volume"),
    "host-network": ("rules", lambda o: head(o)["template"]["spec"].update(hostNetwork=True), "hostNetwork"),
    "host-path": ("rules", lambda o: _volume(o, {"name": "host", "hostPath": {"path": "/"}}), "hostPath"),
    "host-port": ("rules", lambda o: container(head(o))["ports"][0].update(hostPort=6379), "hostPort"),
    "volume-of-no-kind": ("core", lambda o: _volume(o, {"name": "x", "emptyFolder": {}}), "'emptyFolder' was unexp"),
    "mount-of-no-volume": (
        "rules", lambda o: head(o)["template"]["spec"]["volumes"].pop(0), "'tmp': is no volume of this pod"),
    "two-volumes-of-one-name": ("crd", lambda o: _volume(o, {"name": "tmp", "emptyDir": {}}), "stands 2 times"),
    "no-limits": ("rules", lambda o: container(worker(o))["resources"].pop("limits"), "limits: must name cpu and mem"),
    "no-memory": (
        "rules", lambda o: container(head(o))["resources"]["requests"].pop("memory"), "requests: must name cpu"),
    "memory-in-gigabytes": (
        "crd", lambda o: container(head(o))["resources"]["limits"].update(memory="8 GB"), "does not match"),
    "more-gpus-than-requested": (
        "rules", lambda o: container(worker(o))["resources"]["requests"].pop("nvidia.com/gpu"), "as often as"),
    "secret-in-sight": ("rules", _secret_in_sight, "ABLATE_STORAGE: must come from a Secret"),
    "password-in-a-harmless-variable": (
        "rules", lambda o: container(head(o))["env"].append({"name": "PLACE", "value": "http://a:b@c"}), "from a Sec"),
    "variable-twice": (
        "crd", lambda o: container(head(o))["env"].append({"name": "HOME", "value": "/"}), "'HOME'.*stands 2 times"),
    "secret-object": (
        "rules", lambda o: o.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
                                     "data": {"key": "c2VjcmV0"}}), "no secret may stand in a manifest"),
    "password-in-the-study": (
        "rules", lambda o: o[0]["data"].update({"study.yaml": "s: postgres://a:b@c/d"}), "its place is a Secret"),
    "study-beyond-a-config-map": ("rules", lambda o: o[0]["data"].update(more="x" * 2**20), "at most 1 MiB"),
    "config-map-of-a-number": ("core", lambda o: o[0]["data"].update(seed=7), "data.seed: 7 is not of type"),
    "name-of-48": ("rules", lambda o: o[-1]["metadata"].update(name="a" * 48), "at most 47 characters"),
    "name-no-label": ("rules", lambda o: o[-1]["metadata"].update(name="a.b"), "DNS-1035 label"),
    "budget-without-a-selector": ("core", lambda o: o[1]["spec"].update(selector=["head"]), "is not of type"),
}  # fmt: skip


@pytest.mark.parametrize(("layer", "mutate", "said"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_manifest_with_one_fault_is_refused(layer: str, mutate: Mutation, said: str) -> None:
    if layer == "crd" and not CRDS.is_dir():
        pytest.skip("KubeRay's CRD schemas are not here (../shared/k8s)")
    objects = copy.deepcopy(manifest(request(gpus=2)))
    assert refusals(objects) == {"crd": [], "core": [], "rules": []}
    mutate(objects)
    assert any(re.search(said, line) for line in refusals(objects)[layer]), refusals(objects)


@needs_crds
def test_rendering_fails_where_a_rule_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.kubernetes.pods.GRACE_SECONDS", 60)
    with pytest.raises(RequestError, match="terminationGracePeriodSeconds = 60: must be under 30"):
        rendered(request())


def test_the_rules_hold_for_a_cluster_without_a_job() -> None:
    found = manifest(request(gpus=1))[-1]
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "c"}}
    cluster["spec"] = found["spec"]["rayClusterSpec"]
    assert faults([cluster]) == []
    if CRDS.is_dir():
        assert crd_refusals(cluster) == []
    cluster["metadata"] = {"name": "c" * 51}
    assert [fault.path for fault in faults([cluster])] == [f"RayCluster/{'c' * 51}.metadata.name"]


def test_rules_say_what_is_missing_of_an_empty_object() -> None:
    assert faults([{"kind": "RayJob", "metadata": {"name": "a"}, "spec": {}}])
    assert faults([{"kind": "RayCluster", "metadata": {"name": "a"}}])
    assert core_refusals({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {}})


NAMES = st.one_of(st.from_regex(r"[a-z][a-z0-9-]{0,50}", fullmatch=True), st.text(max_size=12))
GOOD_WORDS = st.sampled_from(["--tracker=none", "--deterministic", "--extend", "--cpus-per-trial=2"])
FIELDS = {
    "name": NAMES,
    "study_text": st.one_of(st.just(SEARCH), st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]))),
    "image": st.sampled_from(["r/ablate:1", "ablate", "r:5/a:latest", "A:1", "r/a@sha256:" + "a" * 64, "a:1 ", ""]),
    "gpus": st.integers(-2, 40),
    "gpus_per_node": st.integers(-1, 9),
    "gpus_per_trial": st.one_of(st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.floats()),
    "nodes": st.none() | st.integers(-1, 5),
    "cpus": st.sampled_from(["8", "500m", "1.5", "0", "", "8Gi", "1e3", "-1"]),
    "memory": st.sampled_from(["32Gi", "16G", "64", "1Mi", "", "0Gi", "1.5Ti"]),
    "namespace": NAMES,
    "secret": NAMES,
    "data_claim": st.none() | NAMES,
    "runs_claim": st.none() | NAMES,
    "queue": st.none() | NAMES,
    "spot": st.none() | st.sampled_from(["a/b=c", "a=", "=b", "a.b/c-d=true", "A/b=c", "k=v=w"]),
    "retries": st.integers(-1, 1001),
    "arguments": st.lists(GOOD_WORDS | st.text(max_size=5), max_size=2).map(tuple),
}
PLAIN: dict[str, Any] = {"name": "a", "study_text": SEARCH, "image": "r/ablate:1", "gpus": 0}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_request_is_refused_line_by_line_or_renders_what_every_reader_passes(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=8))
    fields = PLAIN | {name: data.draw(FIELDS[name], label=name) for name in chosen}
    try:
        found = ClusterRequest(**fields)
    except RequestError as error:
        lines = str(error).splitlines()
        assert lines
        assert all(re.match("ablate k8s: .+: .+", line) for line in lines)
        assert len(set(lines)) <= sum(map(len, (chosen, fields.get("arguments", ())))) + 1
        return
    assert refusals(manifest(found)) == {"crd": [], "core": [], "rules": []}
    assert list(yaml.safe_load_all(rendered(found))) == manifest(found)


@given(st.text())
def test_a_proposed_name_is_one(name: str) -> None:
    assert request(name=proposal(name)).name == proposal(name)
