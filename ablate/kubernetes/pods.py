"""The pods of a study: head, worker and submitter, each as PodSecurity *restricted* requires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.kubernetes.arguments import option_value
from ablate.kubernetes.autoscaling import POD_LABEL, autoscaler_options, token_volume
from ablate.kubernetes.request import DOCTOR_MINUTES, ClusterRequest
from ablate.kubernetes.scheduling import node_labels, toleration

USER = 1000
GRACE_SECONDS = 28  # spot nodes give 30
PAUSE_SECONDS = 20  # the part of GRACE_SECONDS in which running trials pause
RUNS, DATA, STUDY, SCRATCH = "/runs", "/data", "/study", "/tmp"
METRICS_PORT = 9464
METRICS_HOST = "0.0.0.0"  # Prometheus scrapes the pod's address; the network policy keeps others out
SHARED_MEMORY, OBJECT_STORE_BYTES = "2Gi", 1_000_000_000  # data do not pass through Ray's object store
START = {"object-store-memory": str(OBJECT_STORE_BYTES)}  # the default is 30% of the pod, more than /dev/shm holds
NO_ABLATE = "ablate: this image has no ablate. Build it from deploy/Dockerfile and name it with --image."
BUCKET_SECRETS = {  # variable: (key, optional)
    "AWS_ACCESS_KEY_ID": ("aws-access-key-id", True),
    "AWS_SECRET_ACCESS_KEY": ("aws-secret-access-key", True),
}
DRIVER_SECRETS = BUCKET_SECRETS | {
    "ABLATE_STORAGE": ("storage-url", False),
    "MLFLOW_TRACKING_USERNAME": ("mlflow-username", True),
    "MLFLOW_TRACKING_PASSWORD": ("mlflow-password", True),
}
PLACES = ("ABLATE_STORE", "MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL_S3", "AWS_REGION")  # keys of the ConfigMap
DRIVER = "bin/[a]blate (search|compare)"  # a pattern that matches the driver and not the shell that searches for it
# Ends the driver and waits for it. Ray gives its jobs only 3 s, and trials do not pause if the driver is killed. Ray
# ends at the SIGTERM that follows. `ray stop` would end the GCS first; `ray start --block` would then wait for a kill.
STOP = (
    f"pkill -TERM -f '{DRIVER}'; end=$(($(date +%s) + {PAUSE_SECONDS}));"
    f" while pgrep -f '{DRIVER}' >/dev/null && [ $(date +%s) -lt $end ]; do sleep 1; done"
)
STAY = {  # an autoscaler that consolidates its nodes does not remove this one
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}

Plain = dict[str, Any]


def head(request: ClusterRequest) -> Plain:
    """Return the template of the head's pod, which runs the driver and no trial."""
    container = _container(request, "ray-head", requests={"cpu": "2", "memory": "8Gi"}, secrets=DRIVER_SECRETS)
    container["ports"] = [
        {"name": "gcs-server", "containerPort": 6379},
        {"name": "dashboard", "containerPort": 8265},
        {"name": "client", "containerPort": 10001},
        {"name": "ablate-metrics", "containerPort": METRICS_PORT},
    ]
    container["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", STOP]}}}
    spec = _pod(request, container, study=True)
    spec["initContainers"] = [_doctor(request, container["volumeMounts"])]
    if request.spot_label:
        terms = [{"matchExpressions": [request.spot_label | {"operator": "NotIn"}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    labels_of_pod = labels(request, "head")
    if request.worker_range is not None:
        spec["volumes"].append(token_volume())
        labels_of_pod |= POD_LABEL
    return {"metadata": {"labels": labels_of_pod, "annotations": STAY}, "spec": spec}


def autoscaler() -> Plain:
    """Return the options of the container that KubeRay adds to the head's pod for Ray's autoscaler."""
    return autoscaler_options(_container_context(), {"name": "tmp", "mountPath": SCRATCH})


def worker(request: ClusterRequest) -> Plain:
    """Return the template of a worker's pod, which runs trials, on its GPUs if there are any."""
    requests = {"cpu": request.cpus, "memory": request.memory}
    container = _container(request, "ray-worker", requests=requests, secrets=BUCKET_SECRETS, gpus=request.gpus_on_node)
    spec = _pod(request, container, study=False)
    tolerations = []
    if request.gpus:
        tolerations.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    if request.spot_label:
        key, (value,) = request.spot_label["key"], request.spot_label["values"]
        tolerations.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
        wanted = {"weight": 100, "preference": {"matchExpressions": [request.spot_label | {"operator": "In"}]}}
        spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wanted]}}
    tolerations += map(toleration, request.tolerations)
    if tolerations:
        spec["tolerations"] = tolerations
    if labels_of_node := node_labels(request.node_selector, request.arch):
        spec["nodeSelector"] = labels_of_node
    return {"metadata": {"labels": labels(request, "worker")}, "spec": spec}


def submitter(request: ClusterRequest) -> Plain:
    """Return the template of the pod that submits the entrypoint to the head; it needs no secret and no data."""
    container = _container(request, "ray-job-submitter", requests={"cpu": "500m", "memory": "1Gi"}, secrets={})
    container["env"] = [entry for entry in container["env"] if entry["name"] in ("HOME", "RAY_USAGE_STATS_ENABLED")]
    spec = _pod(request, container, study=False)
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] == "tmp"]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] == "tmp"]
    return {"metadata": {"labels": labels(request, "submitter")}, "spec": spec}


def labels(request: ClusterRequest, component: str) -> dict[str, str]:
    """Return the labels of a pod; KubeRay selects by `app.kubernetes.io/…`, so these labels are reserved for it."""
    return {"ablate.dev/study": request.name, "ablate.dev/component": component}


def _pod(request: ClusterRequest, container: Plain, *, study: bool) -> Plain:
    runs: Plain = {"name": "runs", "emptyDir": {}}
    if request.runs_claim:
        runs = {"name": "runs", "persistentVolumeClaim": {"claimName": request.runs_claim}}
    volumes: list[Plain] = [{"name": "tmp", "emptyDir": {}}, runs]
    mounts: list[Plain] = [{"name": "tmp", "mountPath": SCRATCH}, {"name": "runs", "mountPath": RUNS}]
    volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}})
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if study:
        volumes.append({"name": "study", "configMap": {"name": f"{request.name}-study"}})
        mounts.append({"name": "study", "mountPath": STUDY, "readOnly": True})
    if request.data_claim:
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": request.data_claim, "readOnly": True}})
        mounts.append({"name": "data", "mountPath": DATA, "readOnly": True})
    container["volumeMounts"] = mounts
    return {
        "restartPolicy": "Never",
        "serviceAccountName": "ablate",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"nodeSelector": node_labels((), request.arch)} if request.arch else {}),
        "containers": [container],
        "volumes": volumes,
    }


def _container(
    request: ClusterRequest,
    name: str,
    *,
    requests: dict[str, str],
    secrets: Mapping[str, tuple[str, bool]],
    gpus: int = 0,
) -> Plain:
    held = {**requests, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "name": name,
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        "env": _environment(request, secrets),
        "resources": {"requests": held, "limits": dict(held)},
        "securityContext": _container_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # `kubectl describe` shows the end of a pod's log
    }


def _container_context() -> Plain:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _doctor(request: ClusterRequest, mounts: list[Plain]) -> Plain:
    container = _container(request, "doctor", requests={"cpu": "500m", "memory": "2Gi"}, secrets=DRIVER_SECRETS)
    look = f"exec ablate doctor {STUDY}/study.yaml --runs-dir {RUNS} --wait {DOCTOR_MINUTES}m"
    tracker = option_value(request.arguments, "--tracker")
    look += f" --tracker {tracker}" if tracker else ""
    # KubeRay replaces a head whose doctor ends, so this one keeps running for inspection until it is deleted.
    stay = f"trap 'exit 143' TERM; sleep {DOCTOR_MINUTES * 60} & wait $!; exit 2"
    check = f"command -v ablate >/dev/null || {{ echo '{NO_ABLATE}'; {stay}; }}; {look}"
    container["command"] = ["/bin/sh", "-c", check]
    container["volumeMounts"] = [mount for mount in mounts if mount["name"] != "shm"]
    return container


def _environment(request: ClusterRequest, secrets: Mapping[str, tuple[str, bool]]) -> list[Plain]:
    """Return the environment: secrets by reference, locations from the namespace's ConfigMap, and paths of files."""
    entries: list[Plain] = []
    for variable, (key, optional) in secrets.items():
        reference: Plain = {"name": request.secret, "key": key}
        entries.append(
            {"name": variable, "valueFrom": {"secretKeyRef": reference | ({"optional": True} if optional else {})}}
        )
    for variable in PLACES:
        if variable == "ABLATE_STORE" and request.runs_claim:
            continue  # checkpoints are on the claim
        reference = {"name": request.settings, "key": variable, "optional": variable != "ABLATE_STORE"}
        entries.append({"name": variable, "valueFrom": {"configMapKeyRef": reference}})
    entries += [
        {"name": "HOME", "value": SCRATCH},
        {"name": "OMP_NUM_THREADS", "value": "1"},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "0"},  # the default of 30 s is more than a pod has
        {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
    ]
    if request.data_claim:
        entries.append({"name": "ABLATE_DATA", "value": DATA})
    return entries
