"""The manifest of a study: its file, its RayJob, and the disruption budget that protects the head."""

from __future__ import annotations

import shlex
from importlib.metadata import version
from typing import Any

import yaml

from ablate.base.errors import Fault, RequestError
from ablate.kubernetes import pods
from ablate.kubernetes.request import ANNOTATION_BYTES, ClusterRequest, applied_bytes

KEPT_SECONDS = 60  # the cluster keeps its GPUs this long after the end, so that the last logs can be fetched
NOT_TEXT = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "~"))


def rendered(request: ClusterRequest) -> str:
    """Return the manifest as YAML for `kubectl apply -f -`; raise RequestError if it is too large for that."""
    objects = manifest(request)
    for each in objects:
        if (size := applied_bytes(each)) >= ANNOTATION_BYTES:
            rule = f"`kubectl apply` takes an object of less than {ANNOTATION_BYTES:,} bytes."
            place = f"{each['kind']}/{each['metadata']['name']}"
            raise RequestError(Fault(path=place, value=size, rule=rule).render("manifest"))
    return yaml.dump_all(objects, Dumper=_Blocks, sort_keys=False, width=4096)


def manifest(request: ClusterRequest) -> list[dict[str, Any]]:
    """Return the study's ConfigMap, the head's PodDisruptionBudget and the RayJob, as plain values."""
    return [_config_map(request), _disruption_budget(request), _ray_job(request)]


def entrypoint(request: ClusterRequest) -> str:
    """Return the command that the head runs; it creates or resumes the study, so that a retry continues it."""
    words = ["ablate", request.command, f"{pods.STUDY}/study.yaml", "--address", "auto", "--gpus", str(request.gpus)]
    if request.gpus:
        words += ["--gpus-per-trial", f"{request.gpus_per_trial:g}"]
    else:
        words += ["--device", "cpu"]
    if request.worker_range is not None:
        words += ["--autoscale", str(request.workers)]
    words += ["--runs-dir", pods.RUNS, "--grace", str(pods.PAUSE_SECONDS - 2)]
    words += ["--metrics-port", str(pods.METRICS_PORT), "--metrics-host", pods.METRICS_HOST, *request.arguments]
    return shlex.join(words)


def _config_map(request: ClusterRequest) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(request, f"{request.name}-study", "study"),
        "data": {"study.yaml": request.study_text},
    }


def _disruption_budget(request: ClusterRequest) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(request, f"{request.name}-head", "head"),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": pods.labels(request, "head")}},
    }


def _ray_job(request: ClusterRequest) -> dict[str, Any]:
    metadata = _metadata(request, request.name, "study")
    if request.queue:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = request.queue
    if request.priority_class:
        metadata["labels"]["kueue.x-k8s.io/priority-class"] = request.priority_class
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "entrypoint": entrypoint(request),
            "submissionMode": "K8sJobMode",
            # Each retry is a new cluster, on which the study continues. KubeRay also retries a cluster that starts too
            # late. Without a trial, nodes are held for at most (backoffLimit + 1) * preRunningDeadlineSeconds.
            "backoffLimit": request.retries,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "preRunningDeadlineSeconds": 60 * request.start_minutes,
            **({"suspend": True} if request.queue else {}),
            "submitterConfig": {"backoffLimit": 2},
            "submitterPodTemplate": pods.submitter(request),
            "rayClusterSpec": {
                "rayVersion": version("ray"),
                "authOptions": {"mode": "token"},
                **_autoscaling(request),
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0", **pods.START},
                    "template": pods.head(request),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": request.least_workers,
                        "minReplicas": request.least_workers,
                        "maxReplicas": request.workers,
                        "rayStartParams": dict(pods.START),
                        "template": pods.worker(request),
                    }
                ],
            },
        },
    }


def _autoscaling(request: ClusterRequest) -> dict[str, Any]:
    if request.worker_range is None:
        return {}
    return {"enableInTreeAutoscaling": True, "autoscalerOptions": pods.autoscaler()}


def _metadata(request: ClusterRequest, name: str, component: str) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/name": "ablate",
        "app.kubernetes.io/instance": request.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "ablate",
    }
    return {"name": name, "namespace": request.namespace, "labels": labels}


class _Blocks(yaml.SafeDumper):
    """Writes text of several lines as a block, and repeats equal values instead of using aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Disable aliases."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quote any text that a YAML reader takes for a number or a boolean: Kubernetes' own takes `y` and `1e3`."""
    plain = text[:1].isalpha() or text[:1] == "/"
    style = "|" if "\n" in text else None if plain and text.lower() not in NOT_TEXT else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Blocks.add_representer(str, _text)
