"""Three readers of manifests that know nothing of each other: KubeRay's CRDs, Kubernetes' own schemas, our rules."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from jsonschema.validators import extend

from support.cluster_rules import faults
from support.paths import REPOSITORY

kubernetes_validate = pytest.importorskip("kubernetes_validate")

CRDS = REPOSITORY.parent / "shared" / "k8s"
VERSIONS = ("1.32", "1.37")  # of Kubernetes
RAY_KINDS = {"RayJob": "rayjobs", "RayCluster": "rayclusters"}

Plain = dict[str, Any]


def crd_refusals(found: Mapping[str, Any]) -> list[str]:
    """Return what KubeRay's CRD refuses in a RayJob or RayCluster, each as `place: reason`."""
    return [f"{_place(error)}: {error.message}" for error in _crd(RAY_KINDS[found["kind"]]).iter_errors(found)]


def core_refusals(found: Mapping[str, Any]) -> list[str]:
    """Return what Kubernetes' own schemas refuse in a core object, unknown fields included."""
    refused = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(dict(found), version, strict=True)
        except ValidationError as error:  # kubernetes-validate's own is one of these
            refused.append(f"{_place(error)}: {error.message}")
    return refused


def pods_of(found: Mapping[str, Any]) -> Iterator[Plain]:
    """Yield the pod templates of a RayJob as the pods that they will be, with what the operator adds to a name."""
    spec = found["spec"]
    cluster = spec.get("rayClusterSpec", {})
    templates = [spec.get("submitterPodTemplate"), cluster.get("headGroupSpec", {}).get("template")]
    templates += [group.get("template") for group in cluster.get("workerGroupSpecs", [])]
    for index, template in enumerate(each for each in templates if each):
        metadata = {"name": f"{found['metadata']['name']}-{index}", **template.get("metadata", {})}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def refusals(objects: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return what each of the three readers refuses: `crd`, `core`, `rules`."""
    found: dict[str, list[str]] = {"crd": [], "core": [], "rules": [fault.render("") for fault in faults(objects)]}
    for each in objects:
        if each["kind"] in RAY_KINDS:
            found["crd"] += crd_refusals(each) if CRDS.is_dir() else []
            found["core"] += [refused for pod in pods_of(each) for refused in core_refusals(pod)]
        else:
            found["core"] += core_refusals(each)
    return found


def _place(error: ValidationError) -> str:
    return ".".join(map(str, error.absolute_path))


@lru_cache
def _crd(name: str) -> Any:
    schema = json.loads((CRDS / f"{name}.v1.schema.json").read_text())
    _close(schema)
    checker = FormatChecker()
    checker.checks("int32")(lambda value: not isinstance(value, int) or -(2**31) <= value < 2**31)
    kind = extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, {"x-kubernetes-list-map-keys": _unique_keys}
    )
    return kind(schema, format_checker=checker)


def _close(schema: Any) -> None:
    """Make the schema refuse what the API server would drop in silence, and read `x-kubernetes-int-or-string`."""
    if isinstance(schema, list):
        for each in schema:
            _close(each)
    elif isinstance(schema, dict):
        if schema.get("x-kubernetes-int-or-string"):
            schema.pop("type", None)
            schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        listed = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
        if listed and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for each in list(schema.values()):
            _close(each)


def _unique_keys(_: Any, keys: Sequence[str], found: Any, __: Any) -> Iterator[ValidationError]:
    """A list that is a map by `keys` holds each of them once, as the API server asks."""
    if isinstance(found, list):
        counts = Counter(tuple(each.get(key) for key in keys) for each in found if isinstance(each, dict))
        for key, count in counts.items():
            if count > 1:
                yield ValidationError(f"{key} stands {count} times")


@lru_cache(maxsize=64)
def _read_schema(name: str, version: str) -> Any:
    return _READ(name, version)


_READ = kubernetes_validate.utils.schema_contents
kubernetes_validate.utils.schema_contents = _read_schema  # it reads megabytes anew for every object
