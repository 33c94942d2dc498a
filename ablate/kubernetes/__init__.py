"""A study on Kubernetes: one manifest for KubeRay, the rules it keeps, and what to ask of a cluster first."""

from __future__ import annotations

from ablate.kubernetes.arguments import holds_password
from ablate.kubernetes.preflight import preflight
from ablate.kubernetes.rayjob import entrypoint, manifest, rendered
from ablate.kubernetes.request import ClusterRequest, Command, proposal
from ablate.kubernetes.rules import faults

__all__ = [
    "ClusterRequest",
    "Command",
    "entrypoint",
    "faults",
    "holds_password",
    "manifest",
    "preflight",
    "proposal",
    "rendered",
]
