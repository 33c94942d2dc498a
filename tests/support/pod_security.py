"""What PodSecurity *restricted* and this project ask of a pod, which no schema says: exactly these contexts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablate.base.redaction import has_password

SECRET_WORDS = ("password", "secret", "token", "storage", "access_key", "credential", "private_key")
VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
POD = {"runAsNonRoot": True, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER = {
    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
}  # fmt: skip
KEYS = {  # all that a pod of ours has; hostNetwork, hostPID, hostIPC, ephemeralContainers are not among them
    "affinity", "automountServiceAccountToken", "containers", "enableServiceLinks", "initContainers", "nodeSelector",
    "priorityClassName", "restartPolicy", "securityContext", "serviceAccountName", "terminationGracePeriodSeconds",
    "tolerations", "volumes",
}  # fmt: skip

Plain = Mapping[str, Any]


def pod_faults(spec: Plain, claims: Sequence[str] = ()) -> list[str]:
    """Return every rule that a pod's `spec` breaks; `claims` are the volumes that a StatefulSet adds."""
    found = [f"{key}: no pod of ours has it" for key in sorted(set(spec) - KEYS)]
    context = dict(spec.get("securityContext") or {})
    users = [context.pop(key, 0) for key in ("runAsUser", "runAsGroup", "fsGroup")]
    if context != POD or min(users) < 1:
        found.append(f"securityContext: {context}, {users}: must be {POD} and a user")
    volumes = spec.get("volumes") or []
    found += [f"volume {kind}: is not allowed" for each in volumes for kind in sorted(set(each) - VOLUMES - {"name"})]
    if spec.get("automountServiceAccountToken") is not False:
        found.append("automountServiceAccountToken: has a token of the API server")
    names = {*claims, *(each["name"] for each in volumes)}
    for each in [*spec.get("initContainers", []), *spec["containers"]]:
        found += [f"{each['name']}.{line}" for line in _container_faults(each, names)]
    return found


def _container_faults(container: Plain, volumes: set[str]) -> Iterator[str]:
    if (context := container.get("securityContext")) != CONTAINER:
        yield f"securityContext: {context}: must be {CONTAINER}"
    if any("hostPort" in port for port in container.get("ports") or ()):
        yield "ports: hostPort is not allowed"
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for key, amounts in (("requests", requests), ("limits", limits)):
        if not {"cpu", "memory"} <= set(amounts):
            yield f"resources.{key}: must name cpu and memory"
    for name in sorted(name for name in {*requests, *limits} if "/" in name):  # Kubernetes shares no such resource
        if requests.get(name) != limits.get(name):
            yield f"resources.{name}: must be requested as often as it is limited to"
    for variable in container.get("env") or ():
        name, value = variable["name"], variable.get("value")
        if value and (has_password(value) or any(word in name.lower() for word in SECRET_WORDS)):
            yield f"env.{name}: must come from a Secret"
    if any(has_password(word) for key in ("command", "args") for word in container.get(key) or ()):
        yield "command: must hold no password"
    for mount in container.get("volumeMounts") or ():
        if mount["name"] not in volumes:
            yield f"volumeMounts: {mount['name']} is no volume of this pod"
