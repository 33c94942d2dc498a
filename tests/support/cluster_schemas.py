"""Readers of manifests that know nothing of ablate: the schema of KubeRay's CRD, Kubernetes' own, and PodSecurity."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from jsonschema.validators import extend

from support.paths import REPOSITORY
from support.pod_security import pod_faults

kubernetes_validate = pytest.importorskip("kubernetes_validate")

CRD = REPOSITORY.parent / "shared" / "k8s" / "rayjobs.v1.schema.json"
VERSIONS = ("1.32", "1.37")  # of Kubernetes

Plain = dict[str, Any]


def crd_refusals(found: Mapping[str, Any]) -> list[str]:
    """Return what KubeRay's CRD refuses in a RayJob, each as `place: reason`; nothing if the CRD is not here."""
    return [f"{_place(error)}: {error.message}" for error in _crd().iter_errors(found)] if CRD.is_file() else []


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


def refusals(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the readers refuse in a study's manifest."""
    *others, job = objects
    pods = list(pods_of(job))
    found = [*crd_refusals(job), *(line for each in (*others, *pods) for line in core_refusals(each))]
    return found + [line for pod in pods for line in pod_faults(pod["spec"])]


def _place(error: ValidationError) -> str:
    return ".".join(map(str, error.absolute_path))


@lru_cache
def _crd() -> Any:
    schema = json.loads(CRD.read_text())
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
