"""What to ask of a cluster before anything is created there: `kubectl get`, and nothing else."""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ablate.errors import Fault, RequestError
from ablate.kubernetes.pods import DRIVER_SECRETS, PLACES
from ablate.kubernetes.quantities import number
from ablate.kubernetes.rayjob import manifest
from ablate.kubernetes.request import ClusterRequest

KUBECTL_SECONDS = 20
DATABASES = ("postgresql", "postgresql+psycopg")
ENDED = ("Complete", "Failed", "ValidationFailed")
PLACEHOLDERS = ("…", "<", "REPLACE", "PASSWORD", "example.org")

Found = dict[str, Any]
Get = Callable[[Sequence[str]], Found | None]


class NotAllowedError(RequestError):
    """Whoever asks may not see this; whether it is there stays open."""


def preflight(request: ClusterRequest, *, get: Get | None = None) -> list[str]:
    """Return what could not be looked at in the cluster of kubectl's present context, one line each.

    Raises RequestError with everything that the cluster lacks for `request`. `get` answers like `kubectl_get`.
    """
    looks = _Looks(get or kubectl_get, request.namespace)
    found = list(_missing(request, looks))
    if found:
        raise RequestError("\n".join(fault.render(f"namespace {request.namespace}") for fault in found))
    return looks.closed


def kubectl_get(arguments: Sequence[str]) -> Found | None:
    """Return what `kubectl get ARGUMENTS` finds, None where there is no such thing.

    Raises NotAllowedError where the cluster forbids the question, RequestError where it does not answer.
    """
    options = ["-o", "json", "--ignore-not-found", f"--request-timeout={KUBECTL_SECONDS - 5}s"]
    try:
        done = subprocess.run(
            ["kubectl", "get", *arguments, *options],
            capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise RequestError("kubectl is not installed: https://kubernetes.io/docs/tasks/tools") from None
    except subprocess.TimeoutExpired:
        raise RequestError(f"kubectl got no answer within {KUBECTL_SECONDS} s: is the cluster up?") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["failed"])[-1]
        if "(Forbidden)" in said:
            raise NotAllowedError(said)
        if "doesn't have a resource type" in said:
            return None
        raise RequestError(f"kubectl get {' '.join(arguments)}: {said}")
    try:
        answer: Found | None = json.loads(done.stdout) if done.stdout.strip() else None
    except ValueError:
        raise RequestError(f"kubectl get {' '.join(arguments)}: the answer is no JSON") from None
    return answer


class _Looks:
    """Asks for one thing after another, and keeps what it may not see."""

    def __init__(self, get: Get, namespace: str) -> None:
        self._get = get
        self._here = ["--namespace", namespace]
        self.closed: list[str] = []

    def at(self, *arguments: str, namespaced: bool = True) -> Found | None:
        """Return what is found, an empty mapping where that may not be seen, None where there is none."""
        try:
            return self._get([*arguments, *(self._here if namespaced else [])])
        except NotAllowedError:
            self.closed.append(f"{' '.join(arguments)}: not looked at, you may not see it")
            return {}


def _missing(request: ClusterRequest, looks: _Looks) -> Iterator[Fault]:
    if looks.at("customresourcedefinition", "rayjobs.ray.io", namespaced=False) is None:
        yield Fault(path="rayjobs.ray.io", value=None, rule="KubeRay is not installed (deploy/README.md, step 1).")
        return
    if looks.at("namespace", request.namespace, namespaced=False) is None:
        yield Fault(path="namespace", value=request.namespace, rule="there is none: kubectl apply -k deploy/overlays/…")
        return
    yield from _secret_faults(request, looks)
    yield from _settings_faults(request, looks)
    wanted = [("serviceaccount", "ablate")]
    wanted += [("persistentvolumeclaim", claim) for claim in (request.data_claim, request.runs_claim) if claim]
    for kind, name in wanted:
        if looks.at(kind, name) is None:
            yield Fault(path=f"{kind} {name}", value=None, rule="is missing (deploy/ makes it).")
    if request.queue and looks.at("localqueues.kueue.x-k8s.io", request.queue) is None:
        rule = "there is none, or no Kueue: the job would wait for ever (deploy/kueue makes one)."
        yield Fault(path="queue", value=request.queue, rule=rule)
    yield from _job_faults(request, looks)
    yield from _over_quota(request, (looks.at("resourcequota") or {}).get("items", []))


def _secret_faults(request: ClusterRequest, looks: _Looks) -> Iterator[Fault]:
    secret = looks.at("secret", request.secret)
    if secret == {}:
        return
    data = (secret or {}).get("data") or {}
    for key in [key for key, optional in DRIVER_SECRETS.values() if not optional]:
        path = f"secret {request.secret}, key {key}"
        if key not in data:
            missing = "there is no such secret" if secret is None else "is missing"
            yield Fault(path=path, value=None, rule=f"{missing}.", hint="deploy/secret.sh makes it.")
        elif fault := _database_fault(str(data[key])):
            yield Fault(path=path, value=None, rule=fault)


def _database_fault(encoded: str) -> str | None:
    """Return what is wrong with a storage URL, without a word of it."""
    try:
        url = urlsplit(base64.b64decode(encoded, validate=True).decode())
        host, _ = url.hostname, url.port
    except (binascii.Error, ValueError):
        return "is no URL: write postgresql+psycopg://USER@HOST/DATABASE."
    if url.scheme.startswith("sqlite"):
        return "is a file on a pod's own disk, which ends with the pod: write postgresql+psycopg://USER@HOST/DATABASE."
    if url.scheme not in DATABASES or not url.path.strip("/"):
        return "is no address of a PostgreSQL database: write postgresql+psycopg://USER@HOST/DATABASE."
    return "still holds a placeholder." if _placeholder(url, host or "") else None


def _placeholder(url: SplitResult, host: str) -> bool:
    return any(word in (url.password or "") or word in host for word in PLACEHOLDERS)


def _settings_faults(request: ClusterRequest, looks: _Looks) -> Iterator[Fault]:
    settings = looks.at("configmap", request.settings)
    if settings == {}:
        return
    data: Mapping[str, str] = (settings or {}).get("data") or {}
    store = data.get("ABLATE_STORE", "")
    path = f"configmap {request.settings}, key ABLATE_STORE"
    if request.runs_claim is None and not store:
        rule = "is missing: checkpoints would end with their node."
        yield Fault(path=path, value=None, rule=rule, hint="Write s3://BUCKET/PREFIX, or give --runs-claim.")
    for key in PLACES:
        if any(word in data.get(key, "") for word in PLACEHOLDERS):
            path = f"configmap {request.settings}, key {key}"
            yield Fault(path=path, value=data[key], rule="still holds a placeholder.")


def _job_faults(request: ClusterRequest, looks: _Looks) -> Iterator[Fault]:
    job = looks.at("rayjobs.ray.io", request.name)
    if job:
        state = (job.get("status") or {}).get("jobDeploymentStatus") or "not started"
        rule = f"is there already ({state}), and `kubectl apply` would start nothing."
        hint = f"To go on with the study: kubectl delete rayjob {request.name} --namespace {request.namespace}"
        if state not in ENDED:
            hint = "It is at work: nothing is to be done."
        yield Fault(path=f"rayjob {request.name}", value=None, rule=rule, hint=hint)


def _over_quota(request: ClusterRequest, quotas: Sequence[Found]) -> Iterator[Fault]:
    wanted = needs(request)
    for quota in quotas:
        status = quota.get("status") or {}
        hard, used = status.get("hard") or quota.get("spec", {}).get("hard") or {}, status.get("used") or {}
        for name, limit in hard.items():
            resource = name.removeprefix("requests.").removeprefix("limits.")  # a study's are the same
            if resource not in wanted:
                continue
            free = number(limit) - number(used.get(name, "0"))
            if wanted[resource] > free:
                quota_name = quota["metadata"]["name"]
                need, left = _shown(resource, wanted[resource]), _shown(resource, max(free, Fraction(0)))
                rule = f"the study needs {need}, the quota {quota_name} leaves {left} of {limit}."
                yield Fault(path=name, value=None, rule=rule, hint="Ask for less, or for a larger quota.")


def _shown(resource: str, amount: Fraction) -> str:
    return f"{float(amount / 2**30):g}Gi" if resource == "memory" else f"{float(amount):g}"


def needs(request: ClusterRequest) -> dict[str, Fraction]:
    """Return what the study's pods request in all: cpu, memory (bytes), nvidia.com/gpu, pods."""
    job = next(each for each in manifest(request) if each["kind"] == "RayJob")["spec"]
    cluster = job["rayClusterSpec"]
    templates = [(1, job["submitterPodTemplate"]), (1, cluster["headGroupSpec"]["template"])]
    templates += [(group["replicas"], group["template"]) for group in cluster["workerGroupSpecs"]]
    total: dict[str, Fraction] = {"pods": Fraction(sum(count for count, _ in templates))}
    for count, template in templates:
        for container in template["spec"]["containers"]:
            for resource, quantity in container["resources"]["requests"].items():
                total[resource] = total.get(resource, Fraction(0)) + count * number(quantity)
    return total
