"""Workers that Ray's autoscaler adds and removes: their number, and the settings of its container in the head's pod."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ablate.base.errors import Fault

RANGE = re.compile(r"([0-9]{1,6}):([0-9]{1,6})")
MOST_NODES = 10_000
IDLE_SECONDS = 60
TOKEN_VOLUME, TOKEN_PATH = "api-server", "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_SECONDS = 3600  # the kubelet replaces the token before it expires
POD_LABEL = {"ablate.dev/autoscaler": "ray"}  # the network policy lets these pods reach the API server

Plain = dict[str, Any]


def worker_range(text: str) -> tuple[int, int]:
    """Return MIN:MAX as two numbers; raise ValueError if `text` has another form."""
    found = RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not MIN:MAX")
    return int(found[1]), int(found[2])


def range_faults(text: str, *, gpus: int, gpus_on_node: int, nodes: int | None, queue: str | None) -> Iterator[Fault]:
    """Yield why a study cannot have MIN:MAX workers; a study starts on a worker, so MIN is at least 1."""
    if not RANGE.fullmatch(text):
        yield Fault(path="--workers", value=text, rule="must be MIN:MAX, two whole numbers, such as 1:8.")
        return
    least, most = worker_range(text)
    if not 1 <= least <= most <= MOST_NODES:
        rule = f"MIN must be at least 1, MAX at least MIN and at most {MOST_NODES:,}."
        yield Fault(path="--workers", value=text, rule=rule)
    elif gpus > 0 and gpus_on_node > 0 and most * gpus_on_node != gpus:
        rule = f"--gpus {gpus} are on {-(-gpus // gpus_on_node)} nodes of {gpus_on_node}: MAX must be that number."
        yield Fault(path="--workers", value=text, rule=rule)
    if nodes is not None:
        yield Fault(path="--nodes", value=nodes, rule="is a fixed number of workers: give it or --workers, not both.")
    if queue is not None:
        rule = "Kueue admits a fixed number of workers and refuses Ray's autoscaler: give it or --workers, not both."
        yield Fault(path="--queue", value=queue, rule=rule)


def autoscaler_options(security: Plain, scratch: Plain) -> Plain:
    """Return the options that KubeRay passes to the autoscaler's container in the head's pod.

    `security` is the containers' context, `scratch` the mount that they may write. No other container of a study has a
    token for the API server, because the head runs code that a study names.
    """
    held = {"cpu": "500m", "memory": "1Gi"}
    return {
        "version": "v2",
        "idleTimeoutSeconds": IDLE_SECONDS,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "HOME", "value": scratch["mountPath"]}, {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}],
        "resources": {"requests": held, "limits": dict(held)},
        "securityContext": security,
        "volumeMounts": [scratch, {"name": TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True}],
    }


def token_volume() -> Plain:
    """Return the volume with a token for the API server, its certificate and the namespace."""
    sources: list[Plain] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
            }
        },
    ]
    return {"name": TOKEN_VOLUME, "projected": {"sources": sources}}
