"""The request for one study on a Kubernetes cluster, validated before the manifest is written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ablate.base.errors import Fault, RequestError
from ablate.base.redaction import has_password
from ablate.kubernetes.arguments import argument_faults, cpus_of_trial
from ablate.kubernetes.quantities import number

NAME_LENGTH = 47  # KubeRay extends a RayJob's name for its cluster and pods; a label's value is at most 63 long
LABEL_LENGTH = 63
OBJECT_LENGTH = 253
ANNOTATION_BYTES = 262_144  # of all annotations of an object; `kubectl apply` keeps the object in one of them
APPLIED_BYTES = 250_000  # of a study file, which leaves room for the rest of its ConfigMap
LEAST_MEMORY = 4 * 2**30  # for torch, Ray and the 2 GiB of shared memory that count into it
MOST_NODES, MOST_RETRIES, MOST_START_MINUTES = 10_000, 1_000, 1_440
DOCTOR_MINUTES = 10  # how long the doctor of one head's pod repeats its checks
ARCHITECTURE = "kubernetes.io/arch"
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # RFC 1123
HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?"
PART = r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
IMAGE = re.compile(
    rf"({HOST}/)?{PART}(/{PART})*(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?(?P<digest>@sha256:[a-f0-9]{{64}})?"
)
CPUS = re.compile(r"(?=.*[1-9])[0-9]{1,5}(\.[0-9]{1,3})?|[1-9][0-9]{0,7}m")
MEMORY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?([MGT]i?)")
RANGE = re.compile(r"([0-9]{1,6}):([0-9]{1,6})")
LABEL_PART = r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
LABEL_KEY = rf"((?=[^/]{{1,253}}/){DNS_NAME.pattern}/)?{LABEL_PART}"
LABEL = re.compile(rf"{LABEL_KEY}={LABEL_PART}")
PREFIX_RULE = "the part before / has at most 253 characters."
LABEL_RULE = f"must be a node label KEY=VALUE, such as cloud.google.com/gke-spot=true; {PREFIX_RULE}"
EFFECT = "NoSchedule|PreferNoSchedule|NoExecute"
TAINT = re.compile(rf"(?P<key>{LABEL_KEY})(=(?P<value>{LABEL_PART}))?(:(?P<effect>{EFFECT}))?")
TAINT_RULE = (
    "must be KEY[=VALUE][:EFFECT], such as team=a:NoSchedule; an effect is NoSchedule, PreferNoSchedule or NoExecute;"
    f" {PREFIX_RULE}"
)

Command = Literal["search", "compare"]


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """One study on a cluster: its command, image, GPUs and the location of its state.

    `secret` names a Secret of the namespace: `storage-url` (the ledger) and, if needed, the credentials of the bucket
    and of MLflow; no value of it is written into a manifest. `settings` names the ConfigMap with the locations of the
    store and of MLflow. `runs_claim` names a volume that all nodes can write, for clusters without a bucket. With a
    `worker_range` MIN:MAX Ray's autoscaler decides the number of workers. `memory` and `cpus` are of one worker node.
    Each of the `retries` + 1 clusters has `start_minutes` to start. Raises RequestError with every fault at once.
    """

    name: str
    study_text: str
    image: str
    gpus: int
    gpus_per_node: int = 1
    gpus_per_trial: float = 1.0
    nodes: int | None = None
    worker_range: str | None = None
    cpus: str = "8"
    memory: str = "32Gi"
    command: Command = "search"
    namespace: str = "ablate"
    secret: str = "ablate"
    settings: str = "ablate"
    data_claim: str | None = "ablate-data"
    runs_claim: str | None = None
    queue: str | None = None
    priority_class: str | None = None
    node_selector: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()
    arch: str | None = None
    spot: str | None = None
    retries: int = 5
    start_minutes: int = 15
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise RequestError unless every field is valid in a manifest."""
        found = [*self._name_faults(), *self._number_faults(), *self._text_faults(), *argument_faults(self.arguments)]
        if found:
            raise RequestError("\n".join(fault.render("ablate k8s") for fault in found))

    @property
    def workers(self) -> int:
        """The maximum number of worker nodes: enough for the GPUs, or the requested number without any."""
        if self.worker_range is not None:
            return int(self.worker_range.partition(":")[2])
        return math.ceil(self.gpus / self.gpus_per_node) if self.gpus else self.nodes or 1

    @property
    def least_workers(self) -> int:
        """The number of worker nodes at the start of the study; less than `workers` with an autoscaler only."""
        return self.workers if self.worker_range is None else int(self.worker_range.partition(":")[0])

    @property
    def gpus_on_node(self) -> int:
        """GPUs of one worker node, at most the requested total."""
        return min(self.gpus, self.gpus_per_node)

    @property
    def worker_resources(self) -> dict[str, str]:
        """What the container of one worker requests, as Kubernetes' quantities."""
        gpus = {"nvidia.com/gpu": str(self.gpus_on_node)} if self.gpus else {}
        return {"cpu": self.cpus, "memory": self.memory, **gpus}

    @property
    def spot_label(self) -> tuple[str, str]:
        """Key and value of the label of spot nodes."""
        key, _, value = (self.spot or "").partition("=")
        return key, value

    @property
    def arch_label(self) -> dict[str, str]:
        """The label of all nodes of a study."""
        return {ARCHITECTURE: self.arch} if self.arch else {}

    @property
    def node_labels(self) -> dict[str, str]:
        """The labels of a worker's node."""
        return dict(text.split("=", 1) for text in self.node_selector) | self.arch_label

    @property
    def taints(self) -> list[dict[str, str]]:
        """The tolerations of a worker: a taint without a value or an effect has any."""
        key, value = self.spot_label
        known = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}] if self.gpus else []
        known += [{"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}] if self.spot else []
        for found in filter(None, map(TAINT.fullmatch, self.tolerations)):
            operator = "Exists" if found["value"] is None else "Equal"
            known.append({k: v for k, v in (found.groupdict() | {"operator": operator}).items() if v})
        return known

    def _name_faults(self) -> Iterator[Fault]:
        """Yield the names that are invalid in Kubernetes, with a proposal."""
        if len(self.name) > NAME_LENGTH or not DNS_LABEL.fullmatch(self.name):
            rule = f"must be lower-case letters, digits and '-', at most {NAME_LENGTH}, a letter first."
            yield Fault(path="--name", value=self.name, rule=rule, hint=f"Try --name {proposal(self.name)}.")
        for path, value, length in (
            ("--namespace", self.namespace, LABEL_LENGTH), ("--queue", self.queue, LABEL_LENGTH),
            ("--secret", self.secret, OBJECT_LENGTH), ("ConfigMap", self.settings, OBJECT_LENGTH),
            ("--data-claim", self.data_claim, OBJECT_LENGTH), ("--runs-claim", self.runs_claim, OBJECT_LENGTH),
            ("--priority-class", self.priority_class, LABEL_LENGTH),
        ):  # fmt: skip
            if value is None:
                continue
            dotted = length == OBJECT_LENGTH
            if len(value) > length or not DNS_NAME.fullmatch(value) or ("." in value and not dotted):
                signs = "digits, '-' and '.'" if dotted else "digits and '-'"
                rule = f"must be a name of Kubernetes': lower-case letters, {signs}, at most {length}."
                yield Fault(path=path, value=value, rule=rule, hint=f"Did you mean {proposal(value)!r}?")
        if self.priority_class is not None and self.queue is None:
            rule = "is a class of Kueue's, which orders the studies of a queue: it needs --queue."
            yield Fault(path="--priority-class", value=self.priority_class, rule=rule)

    def _number_faults(self) -> Iterator[Fault]:
        for path, count, least, most in (
            ("--gpus", self.gpus, 0, MOST_NODES), ("--gpus-per-node", self.gpus_per_node, 1, 64),
            ("--nodes", self.nodes or 1, 1, MOST_NODES), ("--retries", self.retries, 0, MOST_RETRIES),
            ("--start-minutes", self.start_minutes, DOCTOR_MINUTES + 1, MOST_START_MINUTES),
        ):  # fmt: skip
            if not least <= count <= most:
                yield Fault(path=path, value=count, rule=f"must be between {least} and {most:,}.")
        if self.gpus > 0 and self.gpus_per_node > 0 and self.gpus % self.gpus_on_node:
            rule = f"must be a multiple of --gpus-per-node {self.gpus_per_node}: nodes of a group are equal."
            yield Fault(path="--gpus", value=self.gpus, rule=rule)
        if self.gpus and self.nodes is not None:
            rule = "is for studies without GPUs; --gpus says how many nodes."
            yield Fault(path="--nodes", value=self.nodes, rule=rule)
        if self.worker_range is not None and RANGE.fullmatch(self.worker_range):
            yield from self._range_faults()
        share = self.gpus_per_trial
        if not (0.01 <= share <= 1 or (share > 1 and share % 1 == 0)):
            rule = "must be a share from 0.01 to 1, or a whole number."
            yield Fault(path="--gpus-per-trial", value=share, rule=rule)
        elif self.gpus > 0 and share > max(self.gpus_on_node, 1):
            rule = f"a trial has its GPUs on one node, which has {self.gpus_on_node}."
            yield Fault(path="--gpus-per-trial", value=share, rule=rule)

    def _range_faults(self) -> Iterator[Fault]:
        """Yield why a study cannot have MIN:MAX workers; a study starts on a worker, so MIN is at least 1."""
        if not 1 <= self.least_workers <= self.workers <= MOST_NODES:
            rule = f"MIN must be at least 1, MAX at least MIN and at most {MOST_NODES:,}."
            yield Fault(path="--workers", value=self.worker_range, rule=rule)
        elif self.gpus > 0 and self.gpus_on_node > 0 and self.workers * self.gpus_on_node != self.gpus:
            nodes = -(-self.gpus // self.gpus_on_node)
            rule = f"--gpus {self.gpus} are on {nodes} nodes of {self.gpus_on_node}: MAX must be that number."
            yield Fault(path="--workers", value=self.worker_range, rule=rule)
        if self.nodes is not None:
            rule = "is a fixed number of workers: give it or --workers, not both."
            yield Fault(path="--nodes", value=self.nodes, rule=rule)
        if self.queue is not None:
            rule = "Kueue admits a fixed number of workers and no autoscaler: give it or --workers, not both."
            yield Fault(path="--queue", value=self.queue, rule=rule)

    def _text_faults(self) -> Iterator[Fault]:
        faulty = set()
        for path, text, form, rule in (
            ("--image", self.image, IMAGE, "must be an image, such as registry.example.org/ablate:0.1.0."),
            ("--cpus", self.cpus, CPUS, "must be a number of CPUs, such as 8, 1.5 or 500m."),
            ("--memory", self.memory, MEMORY, "must be an amount of memory, such as 32Gi."),
            ("--workers", self.worker_range, RANGE, "must be MIN:MAX, two whole numbers, such as 1:8."),
            ("--arch", self.arch, re.compile("amd64|arm64"), "must be amd64 or arm64."),
            ("--spot", self.spot, LABEL, LABEL_RULE),
            *(("--node-selector", text, LABEL, LABEL_RULE) for text in self.node_selector),
            *(("--toleration", text, TAINT, TAINT_RULE) for text in self.tolerations),
        ):
            if text is not None and not form.fullmatch(text):
                faulty.add(path)
                yield Fault(path=path, value=text, rule=rule)
        image = IMAGE.fullmatch(self.image)
        if image and not image["digest"] and image["tag"] in (None, "latest"):
            rule = "must name a version or a digest: a retry must find the software that wrote the ledger."
            yield Fault(path="--image", value=self.image, rule=rule)
        trial = cpus_of_trial(self.arguments)  # KubeRay rounds a node's CPUs up for Ray
        if "--cpus" not in faulty and trial is not None and trial > (node := math.ceil(number(self.cpus))):
            rule = f"a trial has its CPUs on one node, which has {node}. Give more by --cpus."
            yield Fault(path=f"--cpus-per-trial {trial:g}", value=None, rule=rule)
        if "--memory" not in faulty and number(self.memory) < LEAST_MEMORY:
            rule = "must be at least 4Gi: torch and Ray need that, before a trial has any."
            yield Fault(path="--memory", value=self.memory, rule=rule)
        known = dict(self.arch_label)
        for text in self.node_selector:
            key, _, value = text.partition("=")
            if known.setdefault(key, value) != value:
                rule = f"the label {key} has two values, {known[key]} and {value}, and a node has one."
                yield Fault(path="--node-selector", value=text, rule=rule)
        if (size := applied_bytes(self.study_text)) > APPLIED_BYTES:
            rule = f"takes {size:,} bytes as JSON, and `kubectl apply` takes at most {APPLIED_BYTES:,} bytes of it."
            yield Fault(path="FILE", value=None, rule=rule)
        if has_password(self.study_text):
            yield Fault(path="FILE", value=None, rule="holds a password, which a ConfigMap shows to everybody.")


def applied_bytes(found: Any) -> int:
    """Return the size in bytes of `found` as JSON in `kubectl apply`'s annotation: Go's, which escapes <, > and &."""
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode(errors="replace")) + 5 * sum(map(text.count, "<>&\u2028\u2029"))


def proposal(name: str) -> str:
    """Return a DNS label near `name`."""
    near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    near = near if near[:1].isalpha() else f"study-{near}".rstrip("-")
    return near[:NAME_LENGTH].rstrip("-")
