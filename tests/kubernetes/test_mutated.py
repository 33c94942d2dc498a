"""A manifest with one fault is refused by the reader that should refuse it: a schema, or the rules for pods."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from ablate.base.errors import RequestError
from ablate.kubernetes import manifest, rendered
from support.cluster_schemas import CRD, Plain, refusals
from support.manifests import container, head, job, request, worker

Mutation = Callable[[list[Plain]], object]


def _pod(objects: list[Plain]) -> Plain:
    found: Plain = head(objects)["template"]["spec"]
    return found


def _volume(objects: list[Plain], volume: Plain) -> None:
    _pod(objects)["volumes"].append(volume)


def _add(objects: list[Plain], **fields: Any) -> None:
    job(objects).update(fields)


OF_THE_CRD: dict[str, tuple[Mutation, str]] = {  # name: (what is done, what is said)
    "unknown-authentication": (
        lambda o: job(o)["rayClusterSpec"].update(authOptions={"mode": "password"}), "'password' is not one of"),
    "retries-beyond-int32": (lambda o: _add(o, backoffLimit=2**31), "not a 'int32'"),
    "retries-as-text": (lambda o: _add(o, backoffLimit="20"), "backoffLimit: '20' is not of type 'integer'"),
    "no-time-to-come-up": (lambda o: _add(o, preRunningDeadlineSeconds=0), "less than the minimum of 1"),
    "unknown-deletion-policy": (
        lambda o: _add(o, deletionStrategy={"onSuccess": {"policy": "Keep"}}), "'Keep' is not one of"),
    "unknown-field": (lambda o: _add(o, entrypointNumCPUs=1), "'entrypointNumCPUs' was unexpected"),
    "number-in-start-parameters": (lambda o: head(o)["rayStartParams"].update({"num-cpus": 0}), "0 is not of"),
    "group-without-a-name": (lambda o: worker(o).pop("groupName"), "'groupName' is a required property"),
    "two-volumes-of-one-name": (lambda o: _volume(o, {"name": "tmp", "emptyDir": {}}), "stands 2 times"),
    "memory-in-gigabytes": (
        lambda o: container(head(o))["resources"]["limits"].update(memory="8 GB"), "does not match"),
    "variable-twice": (
        lambda o: container(head(o))["env"].append({"name": "HOME", "value": "/"}), "'HOME'.*stands 2 times"),
}  # fmt: skip
OF_KUBERNETES: dict[str, tuple[Mutation, str]] = {
    "unknown-field-of-a-container": (
        lambda o: container(worker(o)).update(imagePolicy="Always"), "'imagePolicy' was unexpected"),
    "volume-of-no-kind": (lambda o: _volume(o, {"name": "x", "emptyFolder": {}}), "'emptyFolder' was unexp"),
    "config-map-of-a-number": (lambda o: o[0]["data"].update(seed=7), "data.seed: 7 is not of type"),
    "budget-without-a-selector": (lambda o: o[1]["spec"].update(selector=["head"]), "is not of type"),
}  # fmt: skip
OF_A_POD: dict[str, tuple[Mutation, str]] = {
    "service-account-token": (
        lambda o: worker(o)["template"]["spec"].pop("automountServiceAccountToken"), "has a token of the API server"),
    "perhaps-root": (lambda o: _pod(o)["securityContext"].pop("runAsNonRoot"), "securityContext"),
    "root": (lambda o: _pod(o)["securityContext"].update(runAsUser=0), "and a user"),
    "unsafe-sysctl": (
        lambda o: _pod(o)["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}]), "msgmax"),
    "host-network": (lambda o: _pod(o).update(hostNetwork=True), "hostNetwork: no pod of ours has it"),
    "host-processes": (lambda o: _pod(o).update(hostPID=True), "hostPID: no pod of ours has it"),
    "debugger": (lambda o: _pod(o).update(ephemeralContainers=[]), "ephemeralContainers: no pod of ours has it"),
    "host-path": (lambda o: _volume(o, {"name": "host", "hostPath": {"path": "/"}}), "volume hostPath"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mutate", "said", "crd"),
    [
        pytest.param(*row, known is OF_THE_CRD, id=name)
        for known in (OF_THE_CRD, OF_KUBERNETES, OF_A_POD)
        for name, row in known.items()
    ],
)
def test_a_manifest_with_one_fault_is_refused(mutate: Mutation, said: str, crd: bool) -> None:
    if crd and not CRD.is_file():
        pytest.skip("the schema of KubeRay's CRD is not here (../shared/k8s)")
    objects = copy.deepcopy(manifest(request(gpus=2)))
    assert refusals(objects) == []
    mutate(objects)
    assert any(re.search(said, line) for line in refusals(objects)), refusals(objects)


def _context(found: Plain, **fields: Any) -> None:
    found["securityContext"].update(fields)


OF_A_CONTAINER: dict[str, tuple[Callable[[Plain], object], str]] = {  # name: (what is done, what is said)
    "root": (lambda c: _context(c, runAsUser=0), "'runAsUser': 0"),
    "privileged": (lambda c: _context(c, privileged=True), "'privileged': True"),
    "escalation": (lambda c: c["securityContext"].pop("allowPrivilegeEscalation"), "securityContext"),
    "capability-added": (lambda c: c["securityContext"]["capabilities"].update(add=["SYS_PTRACE"]), "SYS_PTRACE"),
    "writable-root-file-system": (lambda c: _context(c, readOnlyRootFilesystem=False), "securityContext"),
    "host-port": (lambda c: c.update(ports=[{"containerPort": 1, "hostPort": 1}]), "hostPort"),
    "no-limit-of-cpu": (lambda c: c["resources"]["limits"].pop("cpu"), "limits: must name cpu and memory"),
    "no-memory": (lambda c: c["resources"]["requests"].pop("memory"), "requests: must name cpu and memory"),
    "more-gpus-than-requested": (lambda c: c["resources"]["limits"].update({"nvidia.com/gpu": "9"}), "as often as"),
    "password-in-a-harmless-variable": (
        lambda c: c["env"].append({"name": "PLACE", "value": "http://a:b@c"}), "env.PLACE: must come from a Secret"),
    "secret-in-sight": (
        lambda c: c["env"].append({"name": "DB_PASSWORD", "value": "x"}), "env.DB_PASSWORD: must come from a Secret"),
    "password-in-the-command": (lambda c: c.update(command=["a", "s://b:c@d"]), "command: must hold no password"),
    "password-in-the-arguments": (lambda c: c.update(args=["s://d?password=c"]), "must hold no password"),
    "mount-of-no-volume": (
        lambda c: c["volumeMounts"].append({"name": "lost", "mountPath": "/x"}), "lost is no volume of this pod"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), OF_A_CONTAINER.values(), ids=OF_A_CONTAINER.keys())
def test_a_container_with_one_fault_is_refused(change: Callable[[Plain], object], said: str) -> None:
    objects = copy.deepcopy(manifest(request(gpus=2)))
    change(container(head(objects)))
    (line,) = [line for line in refusals(objects) if line.startswith("ray-head.")]
    assert said in line


def test_an_object_that_kubectl_does_not_take_is_not_rendered() -> None:
    assert rendered(request(arguments=("--tracker=" + "a" * 90,) * 2_400))
    with pytest.raises(RequestError, match=r"manifest: RayJob/digits = \d+: `kubectl apply` takes an obj"):
        rendered(request(arguments=("--tracker=" + "a" * 90,) * 2_600))
