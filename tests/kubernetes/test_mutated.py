"""A manifest with one fault is refused by the reader that should refuse it, and no rule is without such a manifest."""

from __future__ import annotations

import ast
import copy
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import Fault, RequestError
from ablate.kubernetes import manifest, rendered
from support import cluster_rules, pod_security
from support.cluster_rules import faults
from support.cluster_schemas import CRDS, Plain, core_refusals, crd_refusals, refusals
from support.manifests import container, head, job, request, worker

Mutation = Callable[[list[Plain]], object]


def _pod(objects: list[Plain]) -> Plain:
    found: Plain = head(objects)["template"]["spec"]
    return found


def _volume(objects: list[Plain], volume: Plain) -> None:
    _pod(objects)["volumes"].append(volume)


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
    "submitter-in-sidecar-mode": ("rules", lambda o: _add(o, submissionMode="SidecarMode"), "PodTemplate: is not supp"),
    "submitter-settings-in-sidecar-mode": (
        "rules", lambda o: _add(o, submissionMode="SidecarMode"), "submitterConfig: is not supported in SidecarMode"),
    "selector-in-sidecar-mode": (
        "rules", lambda o: _add(o, submissionMode="SidecarMode", clusterSelector={"ray.io/cluster": "c"}),
        "clusterSelector: is not supported in SidecarMode"),
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
    "no-second-to-come-up": (
        "rules", lambda o: _add(o, preRunningDeadlineSeconds=0), "preRunningDeadlineSeconds = 0: must be at least 1"),
    "no-second-to-run": (
        "rules", lambda o: _add(o, activeDeadlineSeconds=0), "activeDeadlineSeconds = 0: must be at least 1"),
    "kept-for-less-than-nothing": (
        "rules", lambda o: _add(o, ttlSecondsAfterFinished=-1), "ttlSecondsAfterFinished = -1: must be at least 0"),
    "kept-without-shutdown": (
        "rules", lambda o: _add(o, shutdownAfterJobFinishes=False), "ttlSecondsAfterFinished = 60: has no use unless"),
    "suspended-on-a-cluster-of-others": (
        "rules", lambda o: _add(o, suspend=True, clusterSelector={"ray.io/cluster": "c"}), "suspend = True: needs"),
    "deletion-rules-beside-shutdown": (
        "rules", lambda o: _add(o, deletionStrategy={"deletionRules": [{"policy": "DeleteCluster"}]}),
        "deletionRules: must not stand beside shutdownAfterJobFinishes"),
    "deletion-after-success-only": (
        "rules", lambda o: _add(o, deletionStrategy={"onSuccess": {"policy": "DeleteCluster"}}), "both onSuccess and"),
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
    "number-beside-text": ("rules", lambda o: worker(o)["rayStartParams"].update({"num-cpus": 8}), "quote numbers"),
    "labels-in-start-parameters": ("rules", lambda o: worker(o)["rayStartParams"].update(labels="a=b"), "group's lab"),
    "resources-said-twice": ("rules", lambda o: head(o).update(resources={"CPU": "0"}), "must not stand beside"),
    "two-groups-of-one-name": (
        "rules", lambda o: job(o)["rayClusterSpec"]["workerGroupSpecs"].append(copy.deepcopy(worker(o))), "differ"),
    "group-called-head": ("rules", lambda o: worker(o).update(groupName="head"), "Kueue's own name"),
    "group-called-submitter": (
        "rules", lambda o: worker(o).update(groupName="submitter"), "'submitter': is Kueue's own name"),
    "group-without-a-name": ("crd", lambda o: worker(o).pop("groupName"), "'groupName' is a required property"),
    "no-least-replicas": ("rules", lambda o: worker(o).pop("minReplicas"), "minReplicas: must be given"),
    "fewer-replicas-than-least": ("rules", lambda o: worker(o).update(replicas=1), "between minReplicas and maxRepl"),
    "no-most-replicas": ("rules", lambda o: worker(o).pop("maxReplicas"), "maxReplicas: must be given"),
    "replicas-beyond-most": ("rules", lambda o: worker(o).update(replicas=9), "between minReplicas and maxReplicas"),
    "restarts-always": (
        "rules", lambda o: worker(o)["template"]["spec"].update(restartPolicy="Always"), "Policy.*must be Never"),
    "submitter-restarts": (
        "rules", lambda o: job(o)["submitterPodTemplate"]["spec"].update(restartPolicy="OnFailure"), "must be Never"),
    "grace-of-30": (
        "rules", lambda o: _pod(o).update(terminationGracePeriodSeconds=30), "must be under 30"),
    "grace-by-default": (
        "rules", lambda o: _pod(o).pop("terminationGracePeriodSeconds"), "must be under 30"),
    "service-account-token": (
        "rules", lambda o: worker(o)["template"]["spec"].pop("automountServiceAccountToken"), "API server"),
    "perhaps-root": (
        "rules", lambda o: _pod(o)["securityContext"].pop("runAsNonRoot"), "runAsNonRoot"),
    "no-seccomp": (
        "rules", lambda o: _pod(o)["securityContext"].pop("seccompProfile"), "seccompProfile"),
    "host-network": ("rules", lambda o: _pod(o).update(hostNetwork=True), "hostNetwork"),
    "host-processes": ("rules", lambda o: _pod(o).update(hostPID=True), "hostPID"),
    "host-messages": ("rules", lambda o: _pod(o).update(hostIPC=True), "hostIPC"),
    "no-container": (
        "rules", lambda o: job(o)["submitterPodTemplate"]["spec"].update(containers=[]), "at least one container"),
    "unsafe-sysctl": (
        "rules", lambda o: _pod(o)["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
        r"sysctls\[0\] = 'kernel.msgmax': is not allowed"),
    "user-of-selinux": (
        "rules", lambda o: _pod(o)["securityContext"].update(seLinuxOptions={"user": "system_u"}),
        "template.spec.securityContext.seLinuxOptions: is not allowed"),
    "process-of-a-windows-host": (
        "rules", lambda o: _pod(o)["securityContext"].update(windowsOptions={"hostProcess": True}),
        "template.spec.securityContext.windowsOptions: is not allowed"),
    "no-apparmor": (
        "rules", lambda o: _pod(o)["securityContext"].update(appArmorProfile={"type": "Unconfined"}),
        "template.spec.securityContext.appArmorProfile: is not allowed"),
    "no-seccomp-for-the-pod": (
        "rules", lambda o: _pod(o)["securityContext"].update(seccompProfile={"type": "Unconfined"}), "seccompProfile"),
    "host-path": ("rules", lambda o: _volume(o, {"name": "host", "hostPath": {"path": "/"}}), "hostPath"),
    "volume-of-no-kind": ("core", lambda o: _volume(o, {"name": "x", "emptyFolder": {}}), "'emptyFolder' was unexp"),
    "two-volumes-of-one-name": ("crd", lambda o: _volume(o, {"name": "tmp", "emptyDir": {}}), "stands 2 times"),
    "memory-in-gigabytes": (
        "crd", lambda o: container(head(o))["resources"]["limits"].update(memory="8 GB"), "does not match"),
    "secret-in-sight": ("rules", _secret_in_sight, "ABLATE_STORAGE: must come from a Secret"),
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


def test_a_rule_that_the_template_breaks_is_said_of_what_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.kubernetes.template.GRACE_SECONDS", 60)
    found = [fault.render("manifest") for fault in faults(manifest(request()))]
    assert len(found) == 3
    assert all("terminationGracePeriodSeconds = 60: must be under 30" in line for line in found)


def test_an_object_that_kubectl_does_not_take_is_not_rendered() -> None:
    for count, good in ((2_400, True), (2_600, False)):
        large = request(arguments=("--tracker=" + "a" * 90,) * count)
        assert bool(faults(manifest(large))) is not good
        if good:
            assert rendered(large)
            continue
        with pytest.raises(RequestError, match=r"manifest: RayJob/digits = \d+: `kubectl apply` takes an obj"):
            rendered(large)


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


Change = Callable[[Plain], object]


def _context(found: Plain, **fields: Any) -> None:
    found["securityContext"].update(fields)


OF_A_CONTAINER: dict[str, tuple[Change, str]] = {  # name: (what is done to a container, what is said of it)
    "root": (lambda c: _context(c, runAsUser=0), "runAsNonRoot"),
    "perhaps-root": (lambda c: _context(c, runAsNonRoot=False), "runAsNonRoot"),
    "privileged": (lambda c: _context(c, privileged=True), "privileged"),
    "escalation": (lambda c: c["securityContext"].pop("allowPrivilegeEscalation"), "allowPrivilegeEscalation"),
    "capabilities-kept": (lambda c: c["securityContext"].pop("capabilities"), "capabilities"),
    "capability-added": (lambda c: c["securityContext"]["capabilities"].update(add=["SYS_PTRACE"]), "capabilities"),
    "proc-unmasked": (lambda c: _context(c, procMount="Unmasked"), "procMount"),
    "no-seccomp": (lambda c: _context(c, seccompProfile={"type": "Unconfined"}), "seccompProfile"),
    "user-of-selinux": (lambda c: _context(c, seLinuxOptions={"user": "system_u"}), "seLinuxOptions"),
    "role-of-selinux": (lambda c: _context(c, seLinuxOptions={"role": "sysadm_r"}), "seLinuxOptions"),
    "process-of-a-windows-host": (lambda c: _context(c, windowsOptions={"hostProcess": True}), "windowsOptions"),
    "no-apparmor": (lambda c: _context(c, appArmorProfile={"type": "Unconfined"}), "appArmorProfile"),
    "writable-root-file-system": (lambda c: _context(c, readOnlyRootFilesystem=False), "belongs into a volume"),
    "host-port": (lambda c: c.update(ports=[{"containerPort": 1, "hostPort": 1}]), r"ports\[0\].hostPort = 1"),
    "no-limit-of-cpu": (lambda c: c["resources"]["limits"].pop("cpu"), "limits: must name cpu and memory"),
    "no-memory": (lambda c: c["resources"]["requests"].pop("memory"), "requests: must name cpu and memory"),
    "more-gpus-than-requested": (lambda c: c["resources"]["limits"].update({"nvidia.com/gpu": "9"}), "as often as"),
    "password-in-a-harmless-variable": (
        lambda c: c["env"].append({"name": "PLACE", "value": "http://a:b@c"}), "env.PLACE: must come from a Secret"),
    "secret-in-sight": (
        lambda c: c["env"].append({"name": "DB_PASSWORD", "value": "x"}), "env.DB_PASSWORD: must come from a Secret"),
    "password-in-the-command": (lambda c: c.update(command=["a", "s://b:c@d"]), "command: must hold no password"),
    "password-in-the-arguments": (lambda c: c.update(args=["s://d?password=c"]), "args: must hold no password"),
    "mount-of-no-volume": (
        lambda c: c["volumeMounts"].append({"name": "lost", "mountPath": "/x"}), "'lost': is no volume of this pod"),
}  # fmt: skip
CONTAINERS: dict[str, Callable[[list[Plain]], Plain]] = {  # path: the container there
    "rayClusterSpec.headGroupSpec.template.spec.containers[0].": lambda o: container(head(o)),
    "rayClusterSpec.headGroupSpec.template.spec.initContainers[0].": lambda o: _pod(o)["initContainers"][0],
    "rayClusterSpec.headGroupSpec.template.spec.ephemeralContainers[0].": lambda o: _debugger(_pod(o)),
    "rayClusterSpec.workerGroupSpecs[0].template.spec.containers[0].": lambda o: container(worker(o)),
    "submitterPodTemplate.spec.containers[0].": lambda o: job(o)["submitterPodTemplate"]["spec"]["containers"][0],
}


def _debugger(pod: Plain) -> Plain:
    found: Plain = copy.deepcopy(pod["initContainers"][0])
    pod["ephemeralContainers"] = [found]
    return found


@pytest.mark.parametrize("place", CONTAINERS)
@pytest.mark.parametrize(("change", "said"), OF_A_CONTAINER.values(), ids=OF_A_CONTAINER.keys())
def test_a_container_with_one_fault_is_refused_wherever_it_stands(place: str, change: Change, said: str) -> None:
    objects = copy.deepcopy(manifest(request(gpus=2)))
    found = CONTAINERS[place](objects)
    assert faults(objects) == []
    change(found)
    (line,) = [fault.render("") for fault in faults(objects)]
    assert f"RayJob/digits.spec.{place}" in line
    assert re.search(said, line), line


def test_no_rule_is_without_a_manifest_that_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = set()

    def noted(**fields: Any) -> Fault:
        caller = sys._getframe(1)
        reached.add((caller.f_code.co_filename, caller.f_lineno))
        return Fault(**fields)

    for module in (cluster_rules, pod_security):
        monkeypatch.setattr(module, "Fault", noted)
    for layer, mutate, _ in MUTATIONS.values():
        mutate(objects := copy.deepcopy(manifest(request(gpus=2))))
        if layer == "rules":
            faults(objects)
    for change, _ in OF_A_CONTAINER.values():
        change(container(worker(objects := copy.deepcopy(manifest(request(gpus=2))))))
        faults(objects)
    written = {
        (str(module.__file__), node.lineno)
        for module in (cluster_rules, pod_security)
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fault"
    }
    assert written - reached == set(), "rules that nothing here breaks"
    assert len(written) > 40
