"""A study on Kubernetes: one manifest for KubeRay, the rules it keeps, and what to ask of a cluster first."""

from __future__ import annotations

from ablate.kubernetes.preflight import BlindError, preflight
from ablate.kubernetes.rayjob import entrypoint, manifest, rendered
from ablate.kubernetes.request import ClusterRequest, Command, proposal
from ablate.kubernetes.rules import faults

__all__ = [
    "BlindError",
    "ClusterRequest",
    "Command",
    "entrypoint",
    "faults",
    "manifest",
    "preflight",
    "proposal",
    "rendered",
]
