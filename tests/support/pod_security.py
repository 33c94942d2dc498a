"""Pod Security Standards, profile *restricted*, and what every container of ours says besides: what it may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ablate.base.errors import Fault
from ablate.base.redaction import has_password

SECRET_WORDS = ("password", "secret", "token", "storage", "access_key", "credential", "private_key")
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SECCOMP = ("RuntimeDefault", "Localhost")
SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
RESTRICTED = "is not allowed by PodSecurity restricted."

Plain = Mapping[str, Any]


def pod_faults(place: str, spec: Plain) -> Iterator[Fault]:
    """Yield every rule that a pod's `spec` breaks: PodSecurity's, amounts, and secrets in plain sight."""
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield Fault(path=f"{place}.{key}", value=True, rule=RESTRICTED)
    context = spec.get("securityContext") or {}
    for index, sysctl in enumerate(context.get("sysctls") or ()):
        if sysctl.get("name") not in SYSCTLS:
            yield Fault(path=f"{place}.securityContext.sysctls[{index}]", value=sysctl.get("name"), rule=RESTRICTED)
    yield from _context_faults(f"{place}.securityContext", context)
    for index, volume in enumerate(spec.get("volumes") or ()):
        for kind in sorted(set(volume) - VOLUMES - {"name"}):
            yield Fault(path=f"{place}.volumes[{index}].{kind}", value=None, rule=RESTRICTED)
    if not spec.get("containers"):
        yield Fault(path=f"{place}.containers", value=None, rule="must have at least one container.")
    for key in CONTAINERS:
        for index, container in enumerate(spec.get(key) or ()):
            yield from _container_faults(f"{place}.{key}[{index}]", container, context)
    yield from _mount_faults(place, spec)


def _container_faults(place: str, container: Plain, of_pod: Plain) -> Iterator[Fault]:
    own = container.get("securityContext") or {}
    yield from _context_faults(f"{place}.securityContext", own)
    context = {**of_pod, **own}
    dropped = (own.get("capabilities") or {}).get("drop") or ()
    added = set((own.get("capabilities") or {}).get("add") or ())
    kept = {
        "runAsNonRoot": context.get("runAsNonRoot") is True and context.get("runAsUser", 1) != 0,
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
        "privileged": not own.get("privileged"),
        "procMount": own.get("procMount", "Default") == "Default",
        "capabilities": "ALL" in dropped and added <= {"NET_BIND_SERVICE"},
        "seccompProfile": (context.get("seccompProfile") or {}).get("type") in SECCOMP,
    }
    for key, good in kept.items():
        if not good:
            rule = "breaks PodSecurity restricted."
            yield Fault(path=f"{place}.securityContext.{key}", value=context.get(key), rule=rule)
    if own.get("readOnlyRootFilesystem") is not True:
        rule = "must be true: what is written belongs into a volume."
        yield Fault(path=f"{place}.securityContext.readOnlyRootFilesystem", value=None, rule=rule)
    for index, port in enumerate(container.get("ports") or ()):
        if port.get("hostPort"):
            yield Fault(path=f"{place}.ports[{index}].hostPort", value=port["hostPort"], rule=RESTRICTED)
    yield from _amount_faults(place, container.get("resources") or {})
    yield from _environment_faults(place, container)


def _context_faults(place: str, context: Plain) -> Iterator[Fault]:
    """Yield what neither a pod's nor a container's context may say."""
    for key, kept in (
        ("seLinuxOptions", not {"user", "role"} & set(context.get("seLinuxOptions") or {})),
        ("windowsOptions", not (context.get("windowsOptions") or {}).get("hostProcess")),
        ("appArmorProfile", (context.get("appArmorProfile") or {"type": "RuntimeDefault"}).get("type") in SECCOMP),
    ):
        if not kept:
            yield Fault(path=f"{place}.{key}", value=None, rule=RESTRICTED)


def _amount_faults(place: str, resources: Plain) -> Iterator[Fault]:
    for key in ("requests", "limits"):
        if not {"cpu", "memory"} <= set(resources.get(key) or {}):
            yield Fault(path=f"{place}.resources.{key}", value=None, rule="must name cpu and memory.")
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for name in sorted({*requests, *limits}):
        if "/" in name and requests.get(name) != limits.get(name):  # Kubernetes shares no extended resource
            rule = "must be requested as often as it is limited to."
            values = [requests.get(name), limits.get(name)]
            yield Fault(path=f"{place}.resources.{name}", value=values, rule=rule)


def _environment_faults(place: str, container: Plain) -> Iterator[Fault]:
    for variable in container.get("env") or ():
        name, value = str(variable.get("name", "")), variable.get("value")
        if value and (has_password(str(value)) or any(word in name.lower() for word in SECRET_WORDS)):
            rule = "must come from a Secret (valueFrom.secretKeyRef)."
            yield Fault(path=f"{place}.env.{name}", value=None, rule=rule)
    for key in ("command", "args"):
        if any(has_password(str(word)) for word in container.get(key) or ()):
            yield Fault(path=f"{place}.{key}", value=None, rule="must hold no password: a Secret does.")


def _mount_faults(place: str, spec: Plain) -> Iterator[Fault]:
    """Yield mounts of volumes that are not there, which the API server refuses."""
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    volumes |= {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates") or ()}
    for key in CONTAINERS:
        for index, container in enumerate(spec.get(key) or ()):
            for mount in container.get("volumeMounts") or ():
                if mount.get("name") not in volumes:
                    rule = "is no volume of this pod."
                    yield Fault(path=f"{place}.{key}[{index}].volumeMounts", value=mount.get("name"), rule=rule)
