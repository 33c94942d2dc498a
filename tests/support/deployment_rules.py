"""All that can be wrong with what deploy/ makes, as a list of lines: the oracle of its tests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ablate.base.redaction import has_password
from support.cluster_schemas import core_refusals
from support.deployed import FOREIGN, WORKLOADS, End, Plain, connects, containers, pod
from support.manifests import METRICS_PORT
from support.pod_security import pod_faults

CLUSTER_WIDE = ("Namespace", "PriorityClass", "ResourceFlavor", "ClusterQueue", "WorkloadPriorityClass")


def refused(objects: Sequence[Plain]) -> list[str]:
    """Return all that is wrong with what is deployed: schemas, rules, and what only a deployment can get wrong."""
    found = []
    for each in objects:
        place = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] in FOREIGN:
            if each["apiVersion"] != FOREIGN[each["kind"]]:
                found.append(f"{place}: is of {each['apiVersion']}")
        else:
            found += [f"{place}: {line}" for line in core_refusals(each)]
        if each["kind"] == "Secret":
            found.append(f"{place}: secrets are made by deploy/secret.sh")
        if each["kind"] not in CLUSTER_WIDE and each["metadata"].get("namespace") != "ablate":
            found.append(f"{place}: is in no namespace")
        if each["kind"] == "Service" and each["spec"].get("type", "ClusterIP") != "ClusterIP":
            found.append(f"{place}: is open to the world")
        if each["kind"] == "ConfigMap":
            words = each.get("data", {}).items()
            found += [f"{place}: {key}: holds a password" for key, text in words if has_password(text)]
        if each["kind"] in WORKLOADS:
            claims = [claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", [])]
            found += [f"{place}: {line}" for line in pod_faults(each["spec"]["template"]["spec"], claims)]
            images = [container["image"] for container in containers([each])]
            found += [
                f"{place}: {image} has no version" for image in images if not re.search(r":(?!latest$)[^/]+$", image)
            ]
    if any(each["kind"] == "Namespace" for each in objects):
        found += [f"{a} may speak to {b}" for a, b, port in FORBIDDEN if connects(objects, ENDS[a], ENDS[b], port)]
    return found


ENDS = {
    "head": pod(component="head"),
    "worker": pod(component="worker"),
    "submitter": pod(component="submitter"),
    "data": pod(component="data"),
    "mlflow": pod(app="mlflow"),
    "postgres": pod(app="postgres"),
    "a pod of ours": pod(app="anything"),
    "a pod elsewhere": pod("default", app="anything"),
    "a pod elsewhere that calls itself head": pod("default", component="head"),
    "the operator": pod("kuberay-system", part="kuberay-operator"),
    "one that calls itself operator": pod("default", part="kuberay-operator"),
    "Prometheus": pod("monitoring", app="prometheus"),
    "the internet": End(address="93.184.216.34"),
    "the node's metadata": End(address="169.254.169.254"),
}
FORBIDDEN = [
    ("a pod elsewhere", "head", 8265), ("a pod elsewhere", "head", 6379), ("a pod elsewhere", "mlflow", 5000),
    ("a pod elsewhere", "postgres", 5432), ("a pod elsewhere that calls itself head", "mlflow", 5000),
    ("a pod elsewhere that calls itself head", "worker", 10001), ("one that calls itself operator", "head", 8265),
    ("the operator", "head", 6379), ("the operator", "worker", 8265), ("the internet", "head", 8265),
    ("the internet", "mlflow", 5000), ("Prometheus", "mlflow", 5000), ("Prometheus", "head", 8265),
    ("a pod elsewhere", "a pod of ours", 80), ("a pod of ours", "the internet", 443),
    ("a pod of ours", "head", 8265), ("a pod of ours", "postgres", 5432), ("worker", "mlflow", 5000),
    ("worker", "postgres", 5432), ("submitter", "postgres", 5432), ("submitter", "the internet", 443),
    ("postgres", "the internet", 443), ("worker", "the internet", 5432), ("head", "the internet", 22),
    ("head", "the node's metadata", 80), ("worker", "the node's metadata", 443), ("mlflow", "the node's metadata", 443),
]  # fmt: skip
NEEDED = [
    ("head", "worker", 10002), ("worker", "head", 6379), ("worker", "worker", 31234), ("submitter", "head", 8265),
    ("head", "mlflow", 5000), ("the operator", "head", 8265), ("Prometheus", "head", METRICS_PORT),
    ("Prometheus", "worker", 8080),
]  # fmt: skip
NEEDED_OF = {
    "overlays/local": [("head", "postgres", 5432), ("mlflow", "postgres", 5432)],
    "overlays/gpu": [("head", "the internet", 5432), ("head", "the internet", 443), ("worker", "the internet", 443),
                     ("mlflow", "the internet", 5432), ("mlflow", "the internet", 443)],
}  # fmt: skip
