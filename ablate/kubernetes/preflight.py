"""What to ask of a cluster before anything is created there: `kubectl get`, and nothing else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from ablate.errors import Fault, RequestError
from ablate.kubernetes.pods import DRIVER_SECRETS
from ablate.kubernetes.rayjob import manifest
from ablate.kubernetes.request import ClusterRequest

KUBECTL_SECONDS = 20
DECIMAL = {"": Fraction(1), "m": Fraction(1, 1000), "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9)}
SUFFIXES = DECIMAL | {"T": Fraction(10**12)} | {f"{x}i": Fraction(1024**n) for n, x in enumerate("KMGT", start=1)}

Get = Callable[[Sequence[str]], dict[str, Any] | None]


def preflight(request: ClusterRequest, *, get: Get | None = None) -> None:
    """Raise RequestError with everything that the cluster of the present kubectl context lacks for `request`.

    `get` runs `kubectl get ARGUMENTS -o json` and returns its answer, None where there is no such thing.
    """
    found = list(_missing(request, get or kubectl_get))
    if found:
        raise RequestError("\n".join(fault.render(f"namespace {request.namespace}") for fault in found))


def kubectl_get(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return what `kubectl get ARGUMENTS` finds, or None; raise RequestError where the cluster does not answer."""
    command = ["kubectl", "get", *arguments, "-o", "json", "--ignore-not-found"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False)
    except FileNotFoundError:
        raise RequestError("kubectl is not installed: https://kubernetes.io/docs/tasks/tools") from None
    except subprocess.TimeoutExpired:
        raise RequestError(f"kubectl got no answer within {KUBECTL_SECONDS} s: is the cluster up?") from None
    if done.returncode:
        raise RequestError(f"kubectl get {' '.join(arguments)}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    answer: dict[str, Any] | None = json.loads(done.stdout) if done.stdout.strip() else None
    return answer


def _missing(request: ClusterRequest, get: Get) -> Iterator[Fault]:
    here = ["--namespace", request.namespace]
    if get(["customresourcedefinition", "rayjobs.ray.io"]) is None:
        yield Fault(path="rayjobs.ray.io", value=None, rule="KubeRay is not installed (deploy/README.md, step 1).")
    if get(["namespace", request.namespace]) is None:
        yield Fault(path="namespace", value=request.namespace, rule="there is none: kubectl apply -k deploy/overlays/…")
        return
    secret = get(["secret", request.secret, *here])
    needed = [key for key, optional in DRIVER_SECRETS.values() if not optional]
    keys = set((secret or {}).get("data", {}))
    for key in needed:
        if key not in keys:
            hint = (
                f"Make it: kubectl create secret generic {request.secret} --from-literal={key}=postgresql+psycopg://…"
            )
            yield Fault(path=f"secret {request.secret}, key {key}", value=None, rule="is missing.", hint=hint)
    wanted = [("serviceaccount", "ablate")]
    if request.data_claim:
        wanted.append(("persistentvolumeclaim", request.data_claim))
    for kind, name in wanted:
        if get([kind, name, *here]) is None:
            yield Fault(path=f"{kind} {name}", value=None, rule="is missing (deploy/base makes it).")
    yield from _over_quota(request, (get(["resourcequota", *here]) or {}).get("items", []))


def _over_quota(request: ClusterRequest, quotas: Sequence[dict[str, Any]]) -> Iterator[Fault]:
    wanted = needs(request)
    for quota in quotas:
        hard, used = quota.get("status", {}).get("hard", {}), quota.get("status", {}).get("used", {})
        for name, limit in hard.items():
            resource = name.removeprefix("requests.")
            if name.startswith("limits.") or resource not in wanted:
                continue
            free = number(limit) - number(used.get(name, "0"))
            if wanted[resource] > free:
                quota_name = quota["metadata"]["name"]
                rule = f"needs {float(wanted[resource]):g}, the quota {quota_name} leaves {float(free):g} of {limit}."
                yield Fault(path=resource, value=None, rule=rule, hint="Ask for less, or for a larger quota.")


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


def number(quantity: str) -> Fraction:
    """Return a quantity of Kubernetes' (`500m`, `32Gi`) as a number."""
    digits = quantity.rstrip("".join(set("".join(SUFFIXES))))
    return Fraction(digits) * SUFFIXES[quantity[len(digits) :]]
