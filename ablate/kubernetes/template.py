"""The manifest of a study: manifest.yaml with the fields of one request, as objects and as YAML."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from ablate.base.errors import Fault, RequestError
from ablate.kubernetes.request import ClusterRequest, option_value

APPLIED_BYTES = 250_000  # `kubectl apply` keeps an object in its annotations, which hold 262,144 bytes
# What a block cannot hold: other line breaks, signs that do not print, a tab before all else (for Kubernetes' reader).
_NO_BLOCK = re.compile("\\A[ \n]*\t|[^\t\n -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def rendered(request: ClusterRequest) -> str:
    """Return the manifest as YAML for `kubectl apply -f -`; raise RequestError if it is too large for that."""
    objects = manifest(request)
    for each in objects:
        text = json.dumps(each, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode(errors="replace")) + 5 * sum(map(text.count, "<>&\u2028\u2029"))  # Go escapes these
        if size > APPLIED_BYTES:
            rule = f"takes {size:,} bytes as JSON, and `kubectl apply` takes at most {APPLIED_BYTES:,} bytes."
            place = f"{each['kind']}/{each['metadata']['name']}"
            raise RequestError(Fault(path=place, value=None, rule=rule).render("ablate k8s"))
    options: dict[str, Any] = {"sort_keys": False, "default_flow_style": None, "width": 4096, "allow_unicode": True}
    return str(yaml.dump_all(objects, Dumper=_Blocks, **options))


def manifest(request: ClusterRequest) -> list[dict[str, Any]]:
    """Return the study's ConfigMap, the head's PodDisruptionBudget and the RayJob, as plain values."""
    loaded = yaml.safe_load_all(Path(__file__).with_name("manifest.yaml").read_text())
    objects: list[dict[str, Any]] = json.loads(json.dumps(list(loaded)))  # an alias becomes a copy
    study, budget, job = objects
    for metadata in (each["metadata"] for each in objects):
        metadata |= {"name": request.name + metadata["name"].removeprefix("study"), "namespace": request.namespace}
        metadata["labels"]["app.kubernetes.io/instance"] = request.name
    study["data"]["study.yaml"] = request.study_text
    budget["spec"]["selector"]["matchLabels"]["ablate.dev/study"] = request.name
    cluster = job["spec"]["rayClusterSpec"]
    cluster["rayVersion"] = version("ray")
    head, (group,) = cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"]
    group |= {"replicas": request.workers, "maxReplicas": request.workers}
    for pod in (job["spec"]["submitterPodTemplate"], head, worker := group["template"]):
        pod["metadata"]["labels"]["ablate.dev/study"] = request.name
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            container["image"] = request.image
    head["spec"]["volumes"][-1]["configMap"]["name"] = study["metadata"]["name"]
    if tracker := option_value(request.arguments, "--tracker"):
        head["spec"]["initContainers"][0]["command"][-1] += f" --tracker {tracker}"
    amounts, share = {"cpu": str(request.cpus), "memory": request.memory}, "--device cpu"
    if request.gpus:
        amounts["nvidia.com/gpu"], share = str(request.gpus_on_node), f"--gpus-per-trial {request.gpus_per_trial:g}"
        taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        worker["spec"]["tolerations"].append(taint)
    worker["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": dict(amounts)}
    command = job["spec"]["entrypoint"].replace("search", request.command, 1)
    job["spec"]["entrypoint"] = " ".join([command, f"--gpus {request.gpus} {share}", *request.arguments])
    return objects


class _Blocks(yaml.SafeDumper):
    """Writes text of several lines as a block, with the tabs and the spaces at the end of a line that it has."""

    def analyze_scalar(self, scalar: str) -> Any:
        """Allow a block for what it can hold."""
        found = super().analyze_scalar(scalar)
        found.allow_block = not _NO_BLOCK.search(scalar)
        return found


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quote any text that a YAML reader takes for a number or a boolean: Kubernetes' own takes `y` and `1e3`."""
    plain = re.match("[A-Za-z/]", text) and text.lower() not in ("y", "n")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None if plain else '"')


_Blocks.add_representer(str, _text)
