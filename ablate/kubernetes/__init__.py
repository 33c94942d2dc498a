"""A study on Kubernetes: one manifest for KubeRay, and the checks of a cluster before it is applied."""

from __future__ import annotations

from ablate.kubernetes.preflight import BlindError, preflight
from ablate.kubernetes.request import ClusterRequest, Command, proposal
from ablate.kubernetes.template import entrypoint, manifest, rendered

__all__ = [
    "BlindError",
    "ClusterRequest",
    "Command",
    "entrypoint",
    "manifest",
    "preflight",
    "proposal",
    "rendered",
]
