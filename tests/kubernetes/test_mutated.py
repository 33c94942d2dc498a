"""A manifest with one fault is refused by the reader that should refuse it: a schema, or the rules for pods."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from ablate.base.errors import RequestError
from ablate.kubernetes.template import manifest, rendered
from support.cluster_schemas import CRD, Plain, refusals
from support.manifests import container, head, job, request, worker

Mutation = Callable[[list[Plain]], object]


def _volume(objects: list[Plain], volume: Plain) -> None:
    head(objects)["template"]["spec"]["volumes"].append(volume)


# One fault for each reader: KubeRay's CRD, its lists that are maps, Kubernetes' schemas, and the rules for pods.
FAULTS: dict[str, tuple[Mutation, str, bool]] = {  # name: (what is done, what is said, whether the CRD says it)
    "unknown-authentication": (
        lambda o: job(o)["rayClusterSpec"].update(authOptions={"mode": "password"}), "'password' is not one of", True),
    "retries-beyond-int32": (lambda o: job(o).update(backoffLimit=2**31), "not a 'int32'", True),
    "two-volumes-of-one-name": (lambda o: _volume(o, {"name": "tmp", "emptyDir": {}}), "stands 2 times", True),
    "unknown-field": (lambda o: container(worker(o)).update(imagePolicy="Always"), "'imagePolicy' was unex", False),
    "host-path": (lambda o: _volume(o, {"name": "host", "hostPath": {"path": "/"}}), "volume hostPath", False),
    "root": (lambda o: container(head(o))["securityContext"].update(runAsUser=0), "'runAsUser': 0", False),
    "password-in-the-arguments": (
        lambda o: container(head(o)).update(args=["s://d?password=c"]), "must hold no password", False),
}  # fmt: skip


@pytest.mark.parametrize(("mutate", "said", "crd"), FAULTS.values(), ids=FAULTS.keys())
def test_a_manifest_with_one_fault_is_refused(mutate: Mutation, said: str, crd: bool) -> None:
    if crd and not CRD.is_file():
        pytest.skip("the schema of KubeRay's CRD is not here (../shared/k8s)")
    objects = copy.deepcopy(manifest(request(gpus=2)))
    assert refusals(objects) == []
    mutate(objects)
    assert any(re.search(said, line) for line in refusals(objects)), refusals(objects)


@pytest.mark.parametrize(
    ("changes", "kind", "size"),
    [
        ({"arguments": ("--tracker=" + "a" * 90,) * 2_500}, "RayJob/digits", "2[56]"),
        ({"study_text": "#" * 249_900}, "ConfigMap/digits-study", "250"),
        ({"study_text": "#\n" * 84_000}, "ConfigMap/digits-study", "252"),
        ({"study_text": "#" + "<" * 45_000}, "ConfigMap/digits-study", "270"),
    ],
    ids=["arguments", "study", "short-lines", "signs-that-json-escapes"],
)
def test_an_object_that_kubectl_does_not_take_is_not_rendered(changes: dict[str, Any], kind: str, size: str) -> None:
    with pytest.raises(RequestError, match=rf"ablate k8s: {kind}: takes {size}.*at most 250,000 bytes"):
        rendered(request(**changes))
    assert rendered(request(study_text="#" * 249_000))
