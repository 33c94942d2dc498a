"""An oracle for rendered manifests: what a cluster refuses, or accepts and fails on later.

Sources: KubeRay 1.7, ray-operator/controllers/ray/utils/validation.go and the `x-kubernetes-validations` of its CRDs;
Kueue's rules for RayJobs; Kubernetes' Pod Security Standards (pod_security.py); what a study needs to survive a retry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from ablate.base.errors import Fault
from ablate.base.redaction import has_password
from ablate.kubernetes.request import ANNOTATION_BYTES, DNS_LABEL, NAME_LENGTH, applied_bytes
from support.pod_security import pod_faults

GRACE_LIMIT_SECONDS = 30
KEPT_LIMIT_SECONDS = 600
TOKEN_SINCE = (2, 52, 0)  # the first Ray with token authentication
MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
MANAGERS = ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue")
QUEUE = "kueue.x-k8s.io/queue-name"
RESERVED_GROUPS = ("head", "submitter")  # Kueue's names for the two other sets of pods
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")

Plain = Mapping[str, Any]


def faults(objects: Sequence[Plain]) -> list[Fault]:
    """Return every rule that `objects` break, each with its place."""
    found = []
    for each in objects:
        place = f"{each.get('kind')}/{(each.get('metadata') or {}).get('name')}"
        if (size := applied_bytes(each)) >= ANNOTATION_BYTES:
            rule = f"`kubectl apply` takes an object of less than {ANNOTATION_BYTES:,} bytes."
            found.append(Fault(path=place, value=size, rule=rule))
        found += list(_of_object(place, each))
    return found


def _of_object(place: str, found: Plain) -> Iterator[Fault]:
    kind, name, spec = found.get("kind"), str((found.get("metadata") or {}).get("name", "")), found.get("spec") or {}
    if kind == "RayJob":
        yield from _name(place, name, NAME_LENGTH)
        yield from _of_job(f"{place}.spec", spec, queue=((found["metadata"].get("labels") or {}).get(QUEUE)))
    elif kind == "RayCluster":
        yield from _name(place, name, 50)
        yield from _of_cluster(f"{place}.spec", spec)
    elif kind == "Pod":
        yield from pod_faults(f"{place}.spec", spec)
    elif kind in WORKLOADS:
        pod = dict((spec.get("template") or {}).get("spec") or {})
        pod["volumeClaimTemplates"] = spec.get("volumeClaimTemplates") or []
        yield from pod_faults(f"{place}.spec.template.spec", pod)
    elif kind == "ConfigMap":
        data = found.get("data") or {}
        size = sum(len(str(value).encode()) for value in data.values())
        if size > 2**20:
            yield Fault(path=f"{place}.data", value=size, rule="a ConfigMap holds at most 1 MiB.")
        for key, value in data.items():
            if has_password(str(value)):
                yield Fault(path=f"{place}.data.{key}", value=None, rule="holds a password: its place is a Secret.")
    elif kind == "Secret" and (found.get("data") or found.get("stringData")):
        yield Fault(path=f"{place}.data", value=None, rule="no secret may stand in a manifest: name one that exists.")


def _name(place: str, name: str, limit: int) -> Iterator[Fault]:
    if len(name) > limit or not DNS_LABEL.fullmatch(name):
        rule = f"must be a DNS-1035 label of at most {limit} characters."
        yield Fault(path=f"{place}.metadata.name", value=name, rule=rule)


def _of_job(place: str, spec: Plain, *, queue: str | None) -> Iterator[Fault]:
    mode = spec.get("submissionMode", "K8sJobMode")
    if mode not in MODES:
        yield Fault(path=f"{place}.submissionMode", value=mode, rule=f"must be one of {', '.join(MODES)}.")
    if mode != "InteractiveMode" and not spec.get("entrypoint"):
        yield Fault(path=f"{place}.entrypoint", value=None, rule="must be the command to run.")
    if has_password(str(spec.get("entrypoint", ""))):
        yield Fault(path=f"{place}.entrypoint", value=None, rule="must hold no password: a Secret does.")
    if spec.get("managedBy", MANAGERS[0]) not in MANAGERS:
        yield Fault(path=f"{place}.managedBy", value=spec["managedBy"], rule=f"must be one of {', '.join(MANAGERS)}.")
    for key, least in (("backoffLimit", 0), ("ttlSecondsAfterFinished", 0), ("activeDeadlineSeconds", 1),
                       ("preRunningDeadlineSeconds", 1)):  # fmt: skip
        if _whole(spec, key, least) < least:
            yield Fault(path=f"{place}.{key}", value=spec[key], rule=f"must be at least {least}.")
    yield from _of_mode(place, spec, mode)
    yield from _of_ending(place, spec, queue)
    try:
        yaml.safe_load(spec.get("runtimeEnvYAML", ""))
    except yaml.YAMLError:
        yield Fault(path=f"{place}.runtimeEnvYAML", value=None, rule="must be YAML.")
    if "submitterPodTemplate" in spec:
        yield from _of_pod(f"{place}.submitterPodTemplate", spec["submitterPodTemplate"])
    if "rayClusterSpec" in spec:
        yield from _of_cluster(f"{place}.rayClusterSpec", spec["rayClusterSpec"])
    elif not spec.get("clusterSelector"):
        yield Fault(path=place, value=None, rule="must have one of rayClusterSpec and clusterSelector.")


def _of_mode(place: str, spec: Plain, mode: str) -> Iterator[Fault]:
    retries = _whole(spec, "backoffLimit")
    if mode == "InteractiveMode" and retries > 0:
        yield Fault(path=f"{place}.backoffLimit", value=retries, rule="has no use in InteractiveMode.")
    if spec.get("clusterSelector") and retries > 0:
        yield Fault(path=f"{place}.backoffLimit", value=retries, rule="needs a cluster of its own, no clusterSelector.")
    if mode == "SidecarMode":
        for key in ("submitterPodTemplate", "submitterConfig", "clusterSelector"):
            if key in spec:
                yield Fault(path=f"{place}.{key}", value=None, rule="is not supported in SidecarMode.")


def _of_ending(place: str, spec: Plain, queue: str | None) -> Iterator[Fault]:
    shuts = spec.get("shutdownAfterJobFinishes", False)
    kept = _whole(spec, "ttlSecondsAfterFinished")
    if spec.get("suspend") and (not shuts or spec.get("clusterSelector")):
        rule = "needs shutdownAfterJobFinishes: true and no clusterSelector."
        yield Fault(path=f"{place}.suspend", value=True, rule=rule)
    if queue and not spec.get("suspend"):
        rule = "must be true for a queue: else the job starts before it is admitted."
        yield Fault(path=f"{place}.suspend", value=spec.get("suspend"), rule=rule)
    if _whole(spec, "backoffLimit") and not shuts:
        rule = "must be true: a retry would leave the cluster of the attempt before it, and its GPUs."
        yield Fault(path=f"{place}.shutdownAfterJobFinishes", value=False, rule=rule)
    if not shuts and kept > 0:
        rule = "has no use unless shutdownAfterJobFinishes is true."
        yield Fault(path=f"{place}.ttlSecondsAfterFinished", value=kept, rule=rule)
    if kept > KEPT_LIMIT_SECONDS:
        rule = f"must be at most {KEPT_LIMIT_SECONDS}: so long the cluster keeps its GPUs after the end."
        yield Fault(path=f"{place}.ttlSecondsAfterFinished", value=kept, rule=rule)
    strategy = spec.get("deletionStrategy")
    if strategy is not None:
        legacy = [key in strategy for key in ("onSuccess", "onFailure")]
        if (any(legacy) and "deletionRules" in strategy) or not (all(legacy) or strategy.get("deletionRules")):
            rule = "must have both onSuccess and onFailure, or deletionRules, not a mixture."
            yield Fault(path=f"{place}.deletionStrategy", value=None, rule=rule)
        if strategy.get("deletionRules") and shuts:
            rule = "must not stand beside shutdownAfterJobFinishes."
            yield Fault(path=f"{place}.deletionStrategy.deletionRules", value=None, rule=rule)


def _of_cluster(place: str, spec: Plain) -> Iterator[Fault]:
    yield from _of_authentication(place, spec)
    head = spec.get("headGroupSpec") or {}
    yield from _of_group(f"{place}.headGroupSpec", head)
    if (head.get("rayStartParams") or {}).get("num-cpus") != "0":
        rule = "must be '0': a trial on the head can take the driver down with it."
        yield Fault(path=f"{place}.headGroupSpec.rayStartParams.num-cpus", value=None, rule=rule)
    groups = spec.get("workerGroupSpecs") or []
    names = [group.get("groupName") for group in groups]
    for index, group in enumerate(groups):
        own, name = f"{place}.workerGroupSpecs[{index}]", group.get("groupName")
        if names.count(name) > 1:
            yield Fault(path=f"{own}.groupName", value=name, rule="must differ from the other groups'.")
        if name in RESERVED_GROUPS:
            yield Fault(path=f"{own}.groupName", value=name, rule="is Kueue's own name for other pods.")
        yield from _of_replicas(own, group)
        yield from _of_group(own, group)


def _of_authentication(place: str, spec: Plain) -> Iterator[Fault]:
    if (spec.get("authOptions") or {}).get("mode") != "token":
        rule = "must be {mode: token}: without it, whoever reaches the dashboard runs what he likes."
        yield Fault(path=f"{place}.authOptions", value=spec.get("authOptions"), rule=rule)
        return
    given = str(spec.get("rayVersion", ""))
    numbers = given.split(".")
    if not all(number.isdigit() for number in numbers) or tuple(map(int, numbers)) < TOKEN_SINCE:
        rule = f"must be given for token authentication, and be {'.'.join(map(str, TOKEN_SINCE))} or newer."
        yield Fault(path=f"{place}.rayVersion", value=given, rule=rule)


def _of_replicas(place: str, group: Plain) -> Iterator[Fault]:
    least, most = group.get("minReplicas"), group.get("maxReplicas")
    if least is None or most is None:
        rule = "must be given: without an autoscaler the operator asks for both."
        yield Fault(path=f"{place}.{'minReplicas' if least is None else 'maxReplicas'}", value=None, rule=rule)
    elif not 0 <= _whole(group, "minReplicas") <= _whole(group, "replicas") <= _whole(group, "maxReplicas"):
        rule = "must lie between minReplicas and maxReplicas, and these be no less than 0."
        yield Fault(path=f"{place}.replicas", value=group.get("replicas"), rule=rule)


def _of_group(place: str, group: Plain) -> Iterator[Fault]:
    start = group.get("rayStartParams") or {}
    if group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & set(start):
        yield Fault(path=f"{place}.resources", value=None, rule="must not stand beside the same in rayStartParams.")
    if "labels" in start:
        yield Fault(path=f"{place}.rayStartParams.labels", value=None, rule="is not supported: use the group's labels.")
    if any(not isinstance(value, str) for value in start.values()):
        yield Fault(path=f"{place}.rayStartParams", value=dict(start), rule="must be text throughout: quote numbers.")
    yield from _of_pod(f"{place}.template", group.get("template") or {})


def _of_pod(place: str, template: Plain) -> Iterator[Fault]:
    """Yield what a pod of a study breaks: besides PodSecurity, how it ends."""
    spec = template.get("spec") or {}
    yield from pod_faults(f"{place}.spec", spec)
    if spec.get("restartPolicy") != "Never":
        rule = "must be Never: a container that restarts inside a pod is a Ray node that Ray takes for another."
        yield Fault(path=f"{place}.spec.restartPolicy", value=spec.get("restartPolicy"), rule=rule)
    grace = _whole(spec, "terminationGracePeriodSeconds", GRACE_LIMIT_SECONDS)
    if grace >= GRACE_LIMIT_SECONDS:
        rule = f"must be under {GRACE_LIMIT_SECONDS}: that is all a spot node gives."
        yield Fault(path=f"{place}.spec.terminationGracePeriodSeconds", value=grace, rule=rule)
    if spec.get("automountServiceAccountToken") is not False:
        rule = "must be false: no trial needs to speak to the API server."
        yield Fault(path=f"{place}.spec.automountServiceAccountToken", value=None, rule=rule)


def _whole(found: Plain, key: str, default: int = 0) -> int:
    """Return a number, or `default` where there is none: that it is a number is the schemas' to say."""
    value = found.get(key, default)
    return value if isinstance(value, int) else default
