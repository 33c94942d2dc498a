"""Checks of a cluster before anything is created there; the checks change nothing."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from urllib.parse import urlsplit

from ablate.base.errors import Fault, RequestError
from ablate.kubernetes.kubectl import Found, NotAllowedError, kubectl_get, kubectl_refusals
from ablate.kubernetes.quantities import number
from ablate.kubernetes.request import ClusterRequest
from ablate.kubernetes.template import DRIVER_SECRETS, PLACES, SETTINGS, manifest, rendered

JOBS = "rayjobs.ray.io"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
LATER = ("rayclusters.ray.io", "jobs.batch")  # objects that KubeRay makes of a RayJob
ADVICE = {  # what to do, by a part of what the API server says
    "no matches for kind": "KubeRay is not installed (deploy/README.md, step 1).",
    'User "': "Ask for the Role ablate-user (deploy/base/access.yaml).",
    'namespaces "': "Type: kubectl apply -k deploy/overlays/…",
    "exceeded quota": "Ask for less, or for a larger quota.",
}
DATABASES = ("postgresql", "postgresql+psycopg")
ENDED = ("Complete", "Failed", "ValidationFailed")
PLACEHOLDERS = ("…", "<", "REPLACE", "PASSWORD", "example.org")

Get = Callable[[Sequence[str]], Found | None]
Refusals = Callable[[str], list[str]]


class BlindError(RequestError):
    """No object of the namespace is visible, so that its state is unknown."""

    exit_code = 3


def preflight(request: ClusterRequest, *, get: Get | None = None, refusals: Refusals = kubectl_refusals) -> list[str]:
    """Return what could not be checked in the cluster of kubectl's current context, one line each.

    Raises RequestError with everything that the cluster lacks for `request`, BlindError if nothing of the namespace is
    visible. `get` answers like `kubectl_get`, `refusals` like `kubectl_refusals`.
    """
    looks = _Looks(get or kubectl_get, request.namespace)
    place = f"namespace {request.namespace}"
    found = [fault.render(place) for fault in _missing(request, looks, refusals)]
    if looks.visible == {False}:
        blind = f"nothing of {place} could be looked at: ask for the rights of its Role ablate-user."
        raise BlindError("\n".join([*looks.closed, *found, blind]))
    if found:
        raise RequestError("\n".join(found))
    return [*looks.closed, *_node_notes(request, looks)]


class _Looks:
    """Queries one object after another, and records what is not visible."""

    def __init__(self, get: Get, namespace: str) -> None:
        self._get = get
        self._here = ["--namespace", namespace]
        self.closed: list[str] = []
        self.visible: set[bool] = set()  # whether an object of the namespace was visible, of all that were queried

    def at(self, *arguments: str, namespaced: bool = True) -> Found | None:
        """Return the object, an empty mapping if it is not visible, or None if it does not exist."""
        found: Found | None = {}
        try:
            found = self._get([*arguments, *(self._here if namespaced else [])])
            seen = True
        except NotAllowedError:
            self.closed.append(f"{' '.join(arguments)}: not looked at, you may not see it")
            seen = False
        if namespaced:
            self.visible.add(seen)
        return found


def _missing(request: ClusterRequest, looks: _Looks, refusals: Refusals) -> Iterator[Fault]:
    refused = refusals(rendered(request))
    for line in refused:
        hint = next((advice for part, advice in ADVICE.items() if part in line), "")
        yield Fault(path="kubectl apply --dry-run=server", value=None, rule=f"{line}.", hint=hint)
    if any(re.search(r"no matches for kind|namespaces .* not found", line) for line in refused):
        return
    yield from _secret_faults(request, looks)
    yield from _settings_faults(request, looks)
    if looks.at("serviceaccount", "ablate") is None:
        yield Fault(path="serviceaccount ablate", value=None, rule="is missing (deploy/ makes it).")
    for claim in filter(None, (request.data_claim, request.runs_claim)):
        yield from _claim_faults(claim, looks)
    queue, urgency = request.queue, request.priority_class
    if queue and looks.at("localqueues.kueue.x-k8s.io", queue) is None:
        rule = "there is none, or no Kueue: the job would wait for ever (deploy/kueue makes one)."
        yield Fault(path="queue", value=queue, rule=rule)
    if urgency and looks.at("workloadpriorityclasses.kueue.x-k8s.io", urgency, namespaced=False) is None:
        rule = "there is none, or no Kueue (deploy/kueue makes ablate-urgent)."
        yield Fault(path="priority class", value=urgency, rule=rule)
    if job := looks.at(JOBS, request.name):
        state = (job.get("status") or {}).get("jobDeploymentStatus") or "not started"
        rule = f"is there already ({state}), and `kubectl apply` would start nothing."
        delete = f"To continue the study: kubectl delete rayjob {request.name} --namespace {request.namespace}"
        hint = delete if state in ENDED else "It is at work: nothing is to be done."
        yield Fault(path=f"rayjob {request.name}", value=None, rule=rule, hint=hint)
    yield from _over_quota(request, (looks.at("resourcequota") or {}).get("items", []))


def _secret_faults(request: ClusterRequest, looks: _Looks) -> Iterator[Fault]:
    secret = looks.at("secret", request.secret)
    if secret == {}:
        return
    data = (secret or {}).get("data") or {}
    key = DRIVER_SECRETS["ABLATE_STORAGE"][0]
    path = f"secret {request.secret}, key {key}"
    if key not in data:
        missing = "there is no such secret." if secret is None else "is missing."
        yield Fault(path=path, value=None, rule=missing, hint="deploy/secret.sh makes it.")
    elif fault := _database_fault(str(data[key])):
        yield Fault(path=path, value=None, rule=fault)


def _database_fault(encoded: str) -> str | None:
    """Return what is wrong with a storage URL, without quoting it."""
    write = "write postgresql+psycopg://USER@HOST/DATABASE."
    try:
        url = urlsplit(base64.b64decode(encoded, validate=True).decode())
        host, _ = url.hostname, url.port
    except (binascii.Error, ValueError):
        return f"is no URL: {write}"
    if url.scheme.startswith("sqlite"):
        return f"is a file on a pod's own disk, which ends with the pod: {write}"
    if url.scheme not in DATABASES or not url.path.strip("/"):
        return f"is no address of a PostgreSQL database: {write}"
    held = any(word in (url.password or "") or word in (host or "") for word in PLACEHOLDERS)
    return "still holds a placeholder." if held else None


def _settings_faults(request: ClusterRequest, looks: _Looks) -> Iterator[Fault]:
    settings = looks.at("configmap", SETTINGS)
    if settings == {}:
        return
    data: Mapping[str, str] = (settings or {}).get("data") or {}
    store = data.get("ABLATE_STORE", "")
    path = f"configmap {SETTINGS}, key ABLATE_STORE"
    if request.runs_claim is None and not store:
        rule = "is missing: checkpoints would end with their node."
        yield Fault(path=path, value=None, rule=rule, hint="Write s3://BUCKET/PREFIX, or give --runs-claim.")
    for key in PLACES:
        if any(word in data.get(key, "") for word in PLACEHOLDERS):
            path = f"configmap {SETTINGS}, key {key}"
            yield Fault(path=path, value=data[key], rule="still holds a placeholder.")


def _claim_faults(claim: str, looks: _Looks) -> Iterator[Fault]:
    """Yield why a claim is missing or can never be bound: no such storage class, or no default one."""
    path, found = f"persistentvolumeclaim {claim}", looks.at("persistentvolumeclaim", claim)
    if found is None:
        yield Fault(path=path, value=None, rule="is missing (deploy/ makes it).")
    elif found and (found.get("status") or {}).get("phase") != "Bound":
        name = (found.get("spec") or {}).get("storageClassName")
        if name and looks.at("storageclass", name, namespaced=False) is None:
            yield Fault(path=path, value=None, rule=f"names the storage class {name!r}, and there is none.")
        elif name is None and (classes := looks.at("storageclass", namespaced=False)) != {}:
            notes = [(each.get("metadata") or {}).get("annotations") or {} for each in (classes or {}).get("items", [])]
            if not any(each.get(DEFAULT_CLASS) == "true" for each in notes):
                rule = "is not bound and names no storage class, and the cluster has no default one."
                yield Fault(path=path, value=None, rule=rule, hint="Name one in the overlay (storageClassName).")


def _node_notes(request: ClusterRequest, looks: _Looks) -> Iterator[str]:
    """Yield a remark if no existing node can hold a worker: an autoscaler may still add one."""
    nodes = looks.at("nodes", namespaced=False)
    if nodes == {}:
        yield looks.closed[-1]
        return
    wanted, asked = request.node_labels.items(), request.worker_resources
    for node in (nodes or {}).get("items", []):
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        enough = all(number(allocatable.get(name, "0")) >= number(amount) for name, amount in asked.items())
        if enough and wanted <= ((node.get("metadata") or {}).get("labels") or {}).items():
            return
    room = ", ".join(f"{amount} {name}" for name, amount in asked.items())
    room += "".join(f", {key}={value}" for key, value in wanted)
    yield f"no node that is here now holds a worker ({room}): the study waits until one joins"


def _over_quota(request: ClusterRequest, quotas: Sequence[Found]) -> Iterator[Fault]:
    wanted = needs(request)
    wanted |= {f"count/{name}": Fraction(1) for name in LATER} | {"count/pods": wanted["pods"]}
    for quota in quotas:
        status = quota.get("status") or {}
        hard, used = status.get("hard") or quota.get("spec", {}).get("hard") or {}, status.get("used") or {}
        for name, limit in hard.items():
            resource = name.removeprefix("requests.").removeprefix("limits.")  # a study's requests and limits are equal
            if resource not in wanted:
                continue
            free = number(limit) - number(used.get(name, "0"))
            if wanted[resource] > free:
                quota_name = quota["metadata"]["name"]
                size, unit = (2**30, "Gi") if resource == "memory" else (1, "")
                need, left = (f"{float(each / size):g}{unit}" for each in (wanted[resource], max(free, Fraction(0))))
                rule = f"the study needs {need}, the quota {quota_name} leaves {left} of {limit}."
                yield Fault(path=name, value=None, rule=rule, hint="Ask for less, or for a larger quota.")


def needs(request: ClusterRequest) -> dict[str, Fraction]:
    """Return what the study's pods request at the start: cpu, memory (bytes), nvidia.com/gpu, pods."""
    job = manifest(request)[-1]["spec"]
    cluster = job["rayClusterSpec"]
    templates = [(1, job["submitterPodTemplate"]), (1, cluster["headGroupSpec"]["template"])]
    templates += [(group["replicas"], group["template"]) for group in cluster["workerGroupSpecs"]]
    total: dict[str, Fraction] = {"pods": Fraction(sum(count for count, _ in templates))}
    held = [(count, each["resources"]) for count, template in templates for each in template["spec"]["containers"]]
    if "autoscalerOptions" in cluster:  # of the container that KubeRay adds to the head's pod
        held.append((1, cluster["autoscalerOptions"]["resources"]))
    for count, resources in held:
        for resource, quantity in resources["requests"].items():
            total[resource] = total.get(resource, Fraction(0)) + count * number(quantity)
    return total
