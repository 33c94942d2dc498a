"""A deployment with one fault is refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from support.deployed import (
    Plain,
    built,
    one,
)
from support.deployment_rules import refused

Mutation = Callable[[list[Plain]], object]


def spec(objects: list[Plain], kind: str = "Deployment", name: str = "mlflow") -> Plain:
    """Return the spec of a workload's pods."""
    found: Plain = one(objects, kind, name)["spec"]["template"]["spec"]
    return found


def first(objects: list[Plain], kind: str = "Deployment", name: str = "mlflow") -> Plain:
    """Return a workload's first container."""
    found: Plain = spec(objects, kind, name)["containers"][0]
    return found


def policy(objects: list[Plain], name: str) -> Plain:
    """Return the spec of a NetworkPolicy."""
    found: Plain = one(objects, "NetworkPolicy", name)["spec"]
    return found


def without(objects: list[Plain], kind: str, name: str) -> None:
    """Remove an object."""
    objects.remove(one(objects, kind, name))


SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "ablate"}}
MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "root": (lambda o: spec(o)["securityContext"].update(runAsUser=0), "and a user"),
    "root-database": (lambda o: spec(o, "StatefulSet", "postgres").pop("securityContext"), "securityContext: {}, "),
    "privileged": (lambda o: first(o)["securityContext"].update(privileged=True), "privileged"),
    "writable-root": (lambda o: first(o)["securityContext"].pop("readOnlyRootFilesystem"), "readOnlyRootFilesystem"),
    "no-limits": (lambda o: first(o)["resources"].pop("limits"), "limits: must name cpu and memory"),
    "no-requests": (lambda o: first(o, "StatefulSet", "postgres").pop("resources"), "requests: must name cpu"),
    "host-path": (lambda o: spec(o)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}), "hostPath"),
    "host-network": (lambda o: spec(o).update(hostNetwork=True), "hostNetwork"),
    "mount-of-no-volume": (lambda o: spec(o)["volumes"].pop(), "is no volume of this pod"),
    "secret-object": (lambda o: o.append(SECRET), "made by deploy/secret.sh"),
    "password-in-sight": (
        lambda o: first(o)["env"].append({"name": "MLFLOW_AUTH_ADMIN_PASSWORD", "value": "x"}), "from a Secret"),
    "password-in-a-url": (
        lambda o: first(o)["args"].append("--backend-store-uri=postgresql://a:b@c/d"), "hold no password"),
    "password-in-settings": (
        lambda o: one(o, "ConfigMap", "ablate")["data"].update(ABLATE_STORAGE="postgresql://a:b@c/d"), "holds a pass"),
    "image-latest": (lambda o: first(o).update(image="ablate:latest"), "ablate:latest has no version"),
    "image-without-version": (lambda o: first(o).update(image="registry:5000/ablate"), "has no version"),
    "open-service": (lambda o: one(o, "Service", "mlflow")["spec"].update(type="NodePort"), "open to the world"),
    "token": (lambda o: spec(o).pop("automountServiceAccountToken"), "has a token of the API server"),
    "no-namespace": (lambda o: one(o, "Service", "mlflow")["metadata"].pop("namespace"), "is in no namespace"),
    "unknown-field": (lambda o: first(o).update(readiness={}), "'readiness' was unexpected"),
    "unknown-field-of-a-policy": (lambda o: policy(o, "mlflow").update(policyType=["Ingress"]), "'policyType' was"),
    "replicas-as-text": (lambda o: one(o, "Deployment", "mlflow")["spec"].update(replicas="1"), "is not of type"),
    "probe-without-a-port": (lambda o: first(o)["readinessProbe"]["httpGet"].pop("port"), "'port' is a required"),
    "no-denial": (lambda o: without(o, "NetworkPolicy", "deny-all"), "elsewhere may speak to a pod of ours"),
    "denial-of-one-direction": (lambda o: policy(o, "deny-all")["policyTypes"].remove("Ingress"), "to a pod of ours"),
    "mlflow-open-to-all-namespaces": (
        lambda o: policy(o, "mlflow")["ingress"][0]["from"][0].update(namespaceSelector={}), "elsewhere may speak"),
    "operator-from-anywhere": (
        lambda o: policy(o, "operator-to-head")["ingress"][0]["from"][0].update(namespaceSelector={}),
        "one that calls itself operator may speak to head"),
    "operator-on-every-port": (
        lambda o: policy(o, "operator-to-head")["ingress"][0].pop("ports"), "the operator may speak to head"),
    "metrics-on-every-port": (lambda o: policy(o, "metrics")["ingress"][0].pop("ports"), "Prometheus may speak"),
    "database-open-to-trials": (
        lambda o: policy(o, "ray").update(egress=[{}]) or policy(o, "postgres").update(ingress=[{}]),
        "worker may speak to postgres"),
    "ray-open-to-all-namespaces": (
        lambda o: policy(o, "ray").update(ingress=[{"from": [{"namespaceSelector": {}}]}]), "elsewhere may speak"),
}  # fmt: skip


@pytest.mark.parametrize(("mutate", "said"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_deployment_with_one_fault_is_refused(mutate: Mutation, said: str) -> None:
    objects = built("overlays/local")
    mutate(objects)
    assert any(re.search(said, line) for line in refused(objects)), refused(objects)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"cidr": "0.0.0.0/0"}, "mlflow may speak to the node's metadata"),
        ({"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}, "mlflow may speak to the node's metadata"),
    ],
)
def test_a_way_to_the_nodes_credentials_is_refused(block: Plain, said: str) -> None:
    objects = built("overlays/gpu")
    policy(objects, "mlflow-bucket-and-database")["egress"][0]["to"][0]["ipBlock"] = block
    assert said in refused(objects)


def test_another_version_of_kueue_is_noticed() -> None:
    objects = built("kueue/queue")
    objects[0]["apiVersion"] = "kueue.x-k8s.io/v1alpha1"
    assert any("is of kueue.x-k8s.io/v1alpha1" in line for line in refused(objects))
