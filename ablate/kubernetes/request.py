"""What is asked of a Kubernetes cluster for one study, validated before a line of it is written."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ablate.errors import Fault, RequestError

NAME_LENGTH = 47  # KubeRay adds to a RayJob's name for its cluster and pods, and a label's value ends at 63
STUDY_BYTES = 1_000_000  # a ConfigMap holds 1 MiB
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035
IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]*[a-z0-9](:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[a-f0-9]{64})?")
SPOT = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?=[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")
QUANTITY = re.compile(r"[1-9][0-9]*(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?")

Command = Literal["search", "compare"]


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """One study on a cluster: what runs, in which image, on how many GPUs, and where its state lives.

    `secret` names a Secret of the namespace: `storage-url` (the ledger), and, where they are needed, the credentials of
    the bucket and of MLflow; nothing of it is ever written into a manifest. `memory` and `cpus` are of one worker node.
    Raises RequestError with every fault at once.
    """

    name: str
    study_text: str
    image: str
    gpus: int
    gpus_per_node: int = 1
    gpus_per_trial: float = 1.0
    nodes: int | None = None
    cpus: str = "8"
    memory: str = "32Gi"
    command: Command = "search"
    namespace: str = "ablate"
    secret: str = "ablate"
    settings: str = "ablate"
    data_claim: str | None = "ablate-data"
    queue: str | None = None
    spot: str | None = None
    retries: int = 20
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise RequestError unless every field can stand in a manifest."""
        found = list(self._faults())
        if found:
            raise RequestError("\n".join(fault.render("ablate k8s") for fault in found))

    @property
    def workers(self) -> int:
        """Worker nodes: as many as hold the GPUs, or as many as were asked for without any."""
        if self.gpus:
            return math.ceil(self.gpus / self.gpus_per_node)
        return self.nodes or 1

    @property
    def gpus_on_node(self) -> int:
        """GPUs of one worker node, no more than are asked for in all."""
        return min(self.gpus, self.gpus_per_node)

    @property
    def spot_label(self) -> dict[str, Any] | None:
        """The label of spot nodes as `key` and `values`, None where there are none."""
        if self.spot is None:
            return None
        key, _, value = self.spot.partition("=")
        return {"key": key, "values": [value]}

    def _faults(self) -> Iterator[Fault]:
        label = f"a DNS label: lower-case letters, digits and '-', at most {NAME_LENGTH}, a letter first"
        for path, value in (("--name", self.name), ("--namespace", self.namespace), ("--secret", self.secret)):
            if len(value) > NAME_LENGTH or not DNS_LABEL.fullmatch(value):
                yield Fault(path=path, value=value, rule=f"must be {label}.", hint=f"Try {proposal(value)!r}.")
        if not IMAGE.fullmatch(self.image):
            yield Fault(path="--image", value=self.image, rule="must be an image, such as registry/ablate:0.1.0.")
        elif not self.image.rpartition("/")[2].count(":") or self.image.endswith(":latest"):
            rule = "must name a version or a digest: a retry must find the software that wrote the ledger."
            yield Fault(path="--image", value=self.image, rule=rule)
        if self.gpus % self.gpus_on_node if self.gpus else False:
            rule = f"must be a multiple of --gpus-per-node {self.gpus_per_node}: nodes of a group are equal."
            yield Fault(path="--gpus", value=self.gpus, rule=rule)
        for path, value in (("--cpus", self.cpus), ("--memory", self.memory)):
            if not QUANTITY.fullmatch(value):
                yield Fault(path=path, value=value, rule="must be a quantity of Kubernetes', such as 8, 500m or 32Gi.")
        for path, number, least in (
            ("--gpus", self.gpus, 0), ("--gpus-per-node", self.gpus_per_node, 1),
            ("--nodes", self.nodes or 1, 1), ("--retries", self.retries, 0),
        ):  # fmt: skip
            if number < least:
                yield Fault(path=path, value=number, rule=f"must be at least {least}.")
        if self.gpus and self.nodes is not None:
            yield Fault(
                path="--nodes", value=self.nodes, rule="is for studies without GPUs; --gpus says how many nodes."
            )
        if self.spot is not None and not SPOT.fullmatch(self.spot):
            rule = "must be a node label KEY=VALUE, such as cloud.google.com/gke-spot=true."
            yield Fault(path="--spot", value=self.spot, rule=rule)
        if len(self.study_text.encode()) > STUDY_BYTES:
            yield Fault(path="FILE", value=None, rule=f"a study file on Kubernetes has at most {STUDY_BYTES:,} bytes.")


def proposal(name: str) -> str:
    """Return a DNS label near `name`."""
    near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    near = near if near[:1].isalpha() else f"study-{near}".rstrip("-")
    return near[:NAME_LENGTH].rstrip("-")
