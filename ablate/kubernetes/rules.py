"""What a cluster would refuse, or accept and break on later: the operator's rules, the CRDs' CEL rules, PodSecurity.

Sources: KubeRay 1.7, ray-operator/controllers/ray/utils/validation.go and the `x-kubernetes-validations` of its CRDs;
Kubernetes' Pod Security Standards, profile *restricted*; and what a study needs to survive a retry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from ablate.errors import Fault
from ablate.kubernetes.request import DNS_LABEL, NAME_LENGTH

GRACE_LIMIT_SECONDS = 30
TOKEN_SINCE = (2, 52, 0)  # the first Ray with token authentication
MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
MANAGERS = ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue")
SECRET_WORDS = ("password", "secret", "token", "storage", "access_key")

Plain = Mapping[str, Any]


def faults(objects: Sequence[Plain]) -> list[Fault]:
    """Return every rule that `objects` break, each with its place."""
    found = []
    for each in objects:
        place = f"{each.get('kind')}/{each.get('metadata', {}).get('name')}"
        found += list(_of_object(place, each))
    return found


def _of_object(place: str, found: Plain) -> Iterator[Fault]:
    name = str(found["metadata"].get("name", ""))
    if found["kind"] == "RayJob":
        yield from _name(place, name, NAME_LENGTH)
        yield from _of_job(f"{place}.spec", found["spec"])
    elif found["kind"] == "RayCluster":
        yield from _name(place, name, 50)
        yield from _of_cluster(f"{place}.spec", found["spec"])
    elif found["kind"] == "ConfigMap":
        size = sum(len(str(value).encode()) for value in found.get("data", {}).values())
        if size > 2**20:
            yield Fault(path=f"{place}.data", value=size, rule="a ConfigMap holds at most 1 MiB.")
    elif found["kind"] == "Secret" and (found.get("data") or found.get("stringData")):
        yield Fault(path=f"{place}.data", value=None, rule="no secret may stand in a manifest: name one that exists.")


def _name(place: str, name: str, limit: int) -> Iterator[Fault]:
    if len(name) > limit or not DNS_LABEL.fullmatch(name):
        rule = f"must be a DNS-1035 label of at most {limit} characters."
        yield Fault(path=f"{place}.metadata.name", value=name, rule=rule)


def _of_job(place: str, spec: Plain) -> Iterator[Fault]:
    mode = spec.get("submissionMode", "K8sJobMode")
    if mode not in MODES:
        yield Fault(path=f"{place}.submissionMode", value=mode, rule=f"must be one of {', '.join(MODES)}.")
    if mode != "InteractiveMode" and not spec.get("entrypoint"):
        yield Fault(path=f"{place}.entrypoint", value=None, rule="must be the command to run.")
    if spec.get("managedBy", MANAGERS[0]) not in MANAGERS:
        yield Fault(path=f"{place}.managedBy", value=spec["managedBy"], rule=f"must be one of {', '.join(MANAGERS)}.")
    yield from _of_ending(place, spec)
    if mode == "InteractiveMode" and spec.get("backoffLimit", 0) > 0:
        yield Fault(path=f"{place}.backoffLimit", value=spec["backoffLimit"], rule="has no use in InteractiveMode.")
    if mode == "SidecarMode":
        for key in ("submitterPodTemplate", "submitterConfig", "clusterSelector"):
            if key in spec:
                yield Fault(path=f"{place}.{key}", value=None, rule="is not supported in SidecarMode.")
    for key, least in (("backoffLimit", 0), ("ttlSecondsAfterFinished", 0), ("activeDeadlineSeconds", 1)):
        if spec.get(key, least) < least:
            yield Fault(path=f"{place}.{key}", value=spec[key], rule=f"must be at least {least}.")
    try:
        yaml.safe_load(spec.get("runtimeEnvYAML", ""))
    except yaml.YAMLError:
        yield Fault(path=f"{place}.runtimeEnvYAML", value=None, rule="must be YAML.")
    if "submitterPodTemplate" in spec:
        yield from _of_pod(f"{place}.submitterPodTemplate.spec", spec["submitterPodTemplate"]["spec"])
    if "rayClusterSpec" in spec:
        yield from _of_cluster(f"{place}.rayClusterSpec", spec["rayClusterSpec"])
    elif not spec.get("clusterSelector"):
        yield Fault(path=place, value=None, rule="must have one of rayClusterSpec and clusterSelector.")


def _of_ending(place: str, spec: Plain) -> Iterator[Fault]:
    shuts = spec.get("shutdownAfterJobFinishes", False)
    if spec.get("suspend") and (not shuts or spec.get("clusterSelector")):
        rule = "needs shutdownAfterJobFinishes: true and no clusterSelector."
        yield Fault(path=f"{place}.suspend", value=True, rule=rule)
    if spec.get("backoffLimit", 0) and not shuts:
        rule = "must be true: a retry would leave the cluster of the attempt before it, and its GPUs."
        yield Fault(path=f"{place}.shutdownAfterJobFinishes", value=False, rule=rule)
    if not shuts and spec.get("ttlSecondsAfterFinished", 0) > 0:
        rule = "has no use unless shutdownAfterJobFinishes is true."
        yield Fault(path=f"{place}.ttlSecondsAfterFinished", value=spec["ttlSecondsAfterFinished"], rule=rule)
    strategy = spec.get("deletionStrategy")
    if strategy is not None:
        legacy = [key in strategy for key in ("onSuccess", "onFailure")]
        if (any(legacy) and "deletionRules" in strategy) or not (all(legacy) or strategy.get("deletionRules")):
            rule = "must have both onSuccess and onFailure, or deletionRules, not a mixture."
            yield Fault(path=f"{place}.deletionStrategy", value=None, rule=rule)


def _of_cluster(place: str, spec: Plain) -> Iterator[Fault]:
    if spec.get("authOptions", {}).get("mode") == "token":
        given = str(spec.get("rayVersion", ""))
        numbers = given.split(".")
        if not all(number.isdigit() for number in numbers) or tuple(map(int, numbers)) < TOKEN_SINCE:
            rule = f"must be given for token authentication, and be {'.'.join(map(str, TOKEN_SINCE))} or newer."
            yield Fault(path=f"{place}.rayVersion", value=given, rule=rule)
    else:
        rule = "must be {mode: token}: without it, whoever reaches the dashboard runs what he likes."
        yield Fault(path=f"{place}.authOptions", value=spec.get("authOptions"), rule=rule)
    head = spec["headGroupSpec"]
    yield from _of_group(f"{place}.headGroupSpec", head)
    if head.get("rayStartParams", {}).get("num-cpus") != "0":
        rule = "must be '0': a trial on the head can take the driver down with it."
        yield Fault(path=f"{place}.headGroupSpec.rayStartParams.num-cpus", value=None, rule=rule)
    names = [group.get("groupName") for group in spec.get("workerGroupSpecs", [])]
    for index, group in enumerate(spec.get("workerGroupSpecs", [])):
        own = f"{place}.workerGroupSpecs[{index}]"
        if names.count(group.get("groupName")) > 1:
            yield Fault(
                path=f"{own}.groupName", value=group.get("groupName"), rule="must differ from the other groups'."
            )
        if not group.get("minReplicas", 0) <= group.get("replicas", 0) <= group.get("maxReplicas", 2**31 - 1):
            rule = "must lie between minReplicas and maxReplicas."
            yield Fault(path=f"{own}.replicas", value=group.get("replicas"), rule=rule)
        yield from _of_group(own, group)


def _of_group(place: str, group: Plain) -> Iterator[Fault]:
    start = group.get("rayStartParams", {})
    if group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & set(start):
        yield Fault(path=f"{place}.resources", value=None, rule="must not stand beside the same in rayStartParams.")
    if "labels" in start:
        yield Fault(path=f"{place}.rayStartParams.labels", value=None, rule="is not supported: use the group's labels.")
    if any(not isinstance(value, str) for value in start.values()):
        yield Fault(path=f"{place}.rayStartParams", value=dict(start), rule="must be text throughout: quote numbers.")
    yield from _of_pod(f"{place}.template.spec", group["template"]["spec"])


def _of_pod(place: str, spec: Plain) -> Iterator[Fault]:
    if not spec.get("containers"):
        yield Fault(path=f"{place}.containers", value=None, rule="must have at least one container.")
    if spec.get("restartPolicy") != "Never":
        rule = "must be Never: a container that restarts inside a pod is a Ray node that Ray takes for another."
        yield Fault(path=f"{place}.restartPolicy", value=spec.get("restartPolicy"), rule=rule)
    grace = spec.get("terminationGracePeriodSeconds", GRACE_LIMIT_SECONDS)
    if grace >= GRACE_LIMIT_SECONDS:
        rule = f"must be under {GRACE_LIMIT_SECONDS}: that is all a spot node gives."
        yield Fault(path=f"{place}.terminationGracePeriodSeconds", value=grace, rule=rule)
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield Fault(path=f"{place}.{key}", value=True, rule="is not allowed by PodSecurity restricted.")
    allowed = {"name", "configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected", "downwardAPI", "csi",
               "ephemeral"}  # fmt: skip
    for index, volume in enumerate(spec.get("volumes", [])):
        for kind in sorted(set(volume) - allowed):
            yield Fault(
                path=f"{place}.volumes[{index}].{kind}", value=None, rule="is not allowed by PodSecurity restricted."
            )
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(key, [])):
            yield from _of_container(f"{place}.{key}[{index}]", container, spec.get("securityContext", {}))


def _of_container(place: str, container: Plain, of_pod: Plain) -> Iterator[Fault]:
    context = {**of_pod, **container.get("securityContext", {})}
    rules = {
        "runAsNonRoot": context.get("runAsNonRoot") is True and context.get("runAsUser", 1) != 0,
        "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
        "privileged": not context.get("privileged"),
        "capabilities": "ALL" in context.get("capabilities", {}).get("drop", ())
        and set(context.get("capabilities", {}).get("add", ())) <= {"NET_BIND_SERVICE"},
        "seccompProfile": context.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
    }
    for key, kept in rules.items():
        if not kept:
            rule = "breaks PodSecurity restricted."
            yield Fault(path=f"{place}.securityContext.{key}", value=context.get(key), rule=rule)
    resources = container.get("resources", {})
    for key in ("requests", "limits"):
        if not {"cpu", "memory"} <= set(resources.get(key, {})):
            yield Fault(path=f"{place}.resources.{key}", value=None, rule="must name cpu and memory.")
    gpus = [resources.get(key, {}).get("nvidia.com/gpu") for key in ("requests", "limits")]
    if gpus[0] != gpus[1]:
        yield Fault(path=f"{place}.resources", value=gpus, rule="must request as many GPUs as it is limited to.")
    for variable in container.get("env", []):
        if "value" in variable and any(word in variable["name"].lower() for word in SECRET_WORDS):
            rule = "must come from a Secret (valueFrom.secretKeyRef)."
            yield Fault(path=f"{place}.env.{variable['name']}", value=None, rule=rule)
