"""On which nodes the pods of a study may run, and before which other studies: validated, and rendered."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.kubernetes.template import manifest
from support.cluster_schemas import Plain, refusals
from support.commands import TINY
from support.manifests import head, job, request, worker
from support.rendered import render

CHOICES = {
    "priority_class": "ablate-urgent", "queue": "ablate", "arch": "arm64", "gpus": 2,
    "node_selector": ("cloud.google.com/gke-accelerator=nvidia-l4", "pool=a"),
    "tolerations": ("team=vision:NoExecute", "dedicated", "batch=yes"),
}  # fmt: skip


def pod(group: Plain) -> Plain:
    """Return the spec of a group's pods."""
    found: Plain = group["template"]["spec"]
    return found


def test_priority_nodes_and_tolerations_stand_where_they_are_read() -> None:
    objects = manifest(request(**CHOICES))
    assert refusals(objects) == []
    assert objects[-1]["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "ablate-urgent"
    assert pod(worker(objects))["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-l4", "pool": "a", "kubernetes.io/arch": "arm64",
    }  # fmt: skip
    assert pod(worker(objects))["tolerations"][-3:] == [
        {"key": "team", "operator": "Equal", "value": "vision", "effect": "NoExecute"},
        {"key": "dedicated", "operator": "Exists"},
        {"key": "batch", "operator": "Equal", "value": "yes"},
    ]
    for other in (pod(head(objects)), job(objects)["submitterPodTemplate"]["spec"]):
        assert other["nodeSelector"] == {"kubernetes.io/arch": "arm64"}, "the image is of one architecture"
        assert "tolerations" not in other, "the head keeps off the nodes of workers"


def test_without_a_choice_nothing_is_rendered_of_it() -> None:
    text = repr(manifest(request()))
    assert not [word for word in ("nodeSelector", "tolerations", "priority-class") if word in text]


def test_the_command_renders_them(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = render(
        capfd, tmp_path, TINY, "--queue", "ablate", "--priority-class", "ablate-urgent", "--arch", "amd64",
        "--node-selector", "pool=a", "--toleration", "team=vision:NoSchedule", "--toleration", "dedicated",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "kueue.x-k8s.io/priority-class: ablate-urgent" in out
    for word in ("kubernetes.io/arch: amd64", "pool: a", "key: dedicated", "value: vision"):
        assert word in out


@pytest.mark.parametrize("option", [("--name", ""), ("--spot", f"{'a' * 254}/b=true"), ("--arch", "x86")])
def test_a_value_that_no_cluster_takes_is_refused_and_nothing_is_printed(
    option: tuple[str, str], tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = render(capfd, tmp_path, TINY, *option)
    assert (code, out) == (2, "")
    assert option[0] in err
