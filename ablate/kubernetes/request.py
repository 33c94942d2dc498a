"""The request for one study on a Kubernetes cluster, validated before the manifest is written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from ablate.base.errors import Fault, RequestError
from ablate.base.redaction import has_password
from ablate.kubernetes.quantities import number

NAME_LENGTH = 47  # KubeRay extends a RayJob's name for its cluster and pods; a label's value is at most 63 long
ANNOTATION_BYTES = 262_144  # of all annotations of an object; `kubectl apply` keeps the object in one of them
APPLIED_BYTES = 250_000  # of a study file, which leaves room for the rest of its ConfigMap
LEAST_MEMORY = 4 * 2**30  # for torch, Ray and the 2 GiB of shared memory that count into it
MOST_NODES = 10_000
DOCTOR_MINUTES = 10  # how long the doctor of one head's pod repeats its checks
ARCHITECTURE = "kubernetes.io/arch"

_DNS = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"  # RFC 1123
_DNS_NAME = rf"{_DNS}(\.{_DNS})*"
_OF_KUBERNETES = "must be a name of Kubernetes': lower-case letters, digits"
_LABEL = (rf"(?=.{{1,63}}\Z){_DNS}", f"{_OF_KUBERNETES} and '-', at most 63.")
_OBJECT = (rf"(?=.{{1,253}}\Z){_DNS_NAME}", f"{_OF_KUBERNETES}, '-' and '.', at most 253.")
_PART = r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
_IMAGE = (
    rf"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{{1,5}})?/)?{_PART}(/{_PART})*"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?P<digest>@sha256:[a-f0-9]{64})?"
)
_LABEL_PART = r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = rf"((?=[^/]{{1,253}}/){_DNS_NAME}/)?{_LABEL_PART}"
_PREFIX_RULE = "the part before / has at most 253 characters."
_NODE_LABEL = (
    rf"{_LABEL_KEY}={_LABEL_PART}",
    f"must be a node label KEY=VALUE, such as cloud.google.com/gke-spot=true; {_PREFIX_RULE}",
)
_EFFECT = "NoSchedule|PreferNoSchedule|NoExecute"
_TAINT = rf"(?P<key>{_LABEL_KEY})(=(?P<value>{_LABEL_PART}))?(:(?P<effect>{_EFFECT}))?"
_TAINT_RULE = (
    "must be KEY[=VALUE][:EFFECT], such as team=a:NoSchedule; an effect is NoSchedule, PreferNoSchedule or NoExecute;"
    f" {_PREFIX_RULE}"
)
_CPUS = r"(?=.*[1-9])[0-9]{1,5}(\.[0-9]{1,3})?|[1-9][0-9]{0,7}m"
# option, field, form and rule of each text
TEXTS: tuple[tuple[str, str, str, str], ...] = (
    ("--name", "name", rf"(?=.{{1,{NAME_LENGTH}}}\Z)[a-z]([-a-z0-9]*[a-z0-9])?",  # RFC 1035
     f"must be lower-case letters, digits and '-', at most {NAME_LENGTH}, a letter first."),
    ("--namespace", "namespace", *_LABEL), ("--queue", "queue", *_LABEL), ("--secret", "secret", *_OBJECT),
    ("--data-claim", "data_claim", *_OBJECT), ("--runs-claim", "runs_claim", *_OBJECT),
    ("--priority-class", "priority_class", *_LABEL),
    ("--image", "image", _IMAGE, "must be an image, such as registry.example.org/ablate:0.1.0."),
    ("--cpus", "cpus", _CPUS, "must be a number of CPUs, such as 8, 1.5 or 500m."),
    ("--memory", "memory", r"[0-9]{1,9}(\.[0-9]{1,3})?([MGT]i?)", "must be an amount of memory, such as 32Gi."),
    ("--workers", "worker_range", "[0-9]{1,6}:[0-9]{1,6}", "must be MIN:MAX, two whole numbers, such as 1:8."),
    ("--arch", "arch", "amd64|arm64", "must be amd64 or arm64."), ("--spot", "spot", *_NODE_LABEL),
    ("--node-selector", "node_selector", *_NODE_LABEL), ("--toleration", "tolerations", _TAINT, _TAINT_RULE),
)  # fmt: skip
NUMBERS = (  # option, field, least and most
    ("--gpus", "gpus", 0, MOST_NODES), ("--gpus-per-node", "gpus_per_node", 1, 64), ("--nodes", "nodes", 1, MOST_NODES),
    ("--retries", "retries", 0, 1_000), ("--start-minutes", "start_minutes", DOCTOR_MINUTES + 1, 1_440),
)  # fmt: skip

# The submitter's shell splits the entrypoint, `ray job submit` joins the words by Windows rules, and the head's shell
# splits them again: only words that need no quotes arrive unchanged.
PLAIN_WORD = re.compile(r"[A-Za-z0-9@%+=:,./_-]+")

TAKEN = {  # further options of a study's command that it may not have here, because the manifest gives them
    "--address": "KubeRay says where the cluster is",
    "--autoscale": "give --workers MIN:MAX to `ablate k8s render`",
    **dict.fromkeys(("--gpus", "--gpus-per-trial", "--scale", "--dataset"), "give it to `ablate k8s render`"),
    "--device": "--gpus decides it",
    "--executor": "a study on a cluster runs on Ray",
    "--runs-dir": "the pods' volumes are mounted where the command expects them",
    "--data-dir": "give --data-claim to `ablate k8s render`",
    "--grace": "it is fitted to the 30 s that a spot node gives",
    "--metrics-host": "Prometheus scrapes the pod's address",
    "--metrics-port": "the pod's port and the network policy name it",
    "--storage": "its place is the Secret, key storage-url",
    "--store": "its place is the ConfigMap, key ABLATE_STORE",
    "--tracking-uri": "its place is the ConfigMap, key MLFLOW_TRACKING_URI",
    "--takeover": "two clusters of one job would take the study from each other, and a lease ends by itself",
}

Command = Literal["search", "compare"]


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """What is asked of a cluster: image, GPUs and places for a study's state.

    `secret` names a Secret of the namespace: `storage-url` (the ledger) and, if needed, the credentials of the bucket
    and of MLflow; no value of it is written into a manifest. `runs_claim` names a volume that all nodes can write, for
    clusters without a bucket. With a `worker_range` MIN:MAX Ray's autoscaler decides the number of workers. `memory`
    and `cpus` are of one worker node. Each of the `retries` + 1 clusters has `start_minutes` to start.
    """

    image: str
    gpus: int = 0
    gpus_per_node: int = 1
    gpus_per_trial: float = 1.0
    nodes: int | None = None
    worker_range: str | None = None
    cpus: str = "8"
    memory: str = "32Gi"
    namespace: str = "ablate"
    secret: str = "ablate"
    data_claim: str | None = "ablate-data"
    runs_claim: str | None = None
    queue: str | None = None
    priority_class: str | None = None
    node_selector: Sequence[str] = ()
    tolerations: Sequence[str] = ()
    arch: str | None = None
    spot: str | None = None
    retries: int = 5
    start_minutes: int = 15


@dataclass(frozen=True, kw_only=True)
class ClusterRequest(ClusterOptions):
    """A study, its command, and what is asked of a cluster for it. Raises RequestError with every fault at once."""

    name: str
    study_text: str
    command: Command = "search"
    arguments: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Raise RequestError unless every field is valid in a manifest."""
        found = list(self._malformed())
        well_formed = {option for option, *_ in TEXTS} - {fault.path for fault in found}
        found += [*self._conflicts(well_formed), *self._text_faults(), *argument_faults(self.arguments)]
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
    def node_labels(self) -> dict[str, str]:
        """The labels of a worker's node."""
        return dict(text.split("=", 1) for text in self.node_selector) | (
            {ARCHITECTURE: self.arch} if self.arch else {}
        )

    @property
    def taints(self) -> list[dict[str, str]]:
        """The tolerations of a worker: a taint without a value or an effect has any."""
        gpus = ["nvidia.com/gpu:NoSchedule"] if self.gpus else []
        spot = [f"{self.spot}:NoSchedule"] if self.spot else []
        known = []
        for found in filter(None, (re.fullmatch(_TAINT, text) for text in (*gpus, *spot, *self.tolerations))):
            operator = "Exists" if found["value"] is None else "Equal"
            known.append({k: v for k, v in (found.groupdict() | {"operator": operator}).items() if v})
        return known

    def _malformed(self) -> Iterator[Fault]:
        """Yield the texts and numbers that have no meaning by themselves, a name with a proposal."""
        for option, field, form, rule in TEXTS:
            given = getattr(self, field)
            for text in (given,) if isinstance(given, str) else given or ():
                if not re.fullmatch(form, text):
                    near = proposal(text)
                    hint = f"Try --name {near}." if field == "name" else f"Did you mean {near!r}?"
                    named = field == "name" or rule.startswith(_OF_KUBERNETES)
                    yield Fault(path=option, value=text, rule=rule, hint=hint if named else "")
        for option, field, least, most in NUMBERS:
            count = getattr(self, field)
            if count is not None and not least <= count <= most:
                yield Fault(path=option, value=count, rule=f"must be between {least} and {most:,}.")

    def _conflicts(self, well_formed: set[str]) -> Iterator[Fault]:
        """Yield what contradicts another option, or lacks one."""
        gpus, on_node, share = self.gpus, self.gpus_on_node, self.gpus_per_trial
        if self.priority_class is not None and self.queue is None:
            rule = "is a class of Kueue's, which orders the studies of a queue: it needs --queue."
            yield Fault(path="--priority-class", value=self.priority_class, rule=rule)
        if gpus > 0 and on_node > 0 and gpus % on_node:
            rule = f"must be a multiple of --gpus-per-node {self.gpus_per_node}: nodes of a group are equal."
            yield Fault(path="--gpus", value=gpus, rule=rule)
        if gpus and self.nodes is not None:
            rule = "is for studies without GPUs; --gpus says how many nodes."
            yield Fault(path="--nodes", value=self.nodes, rule=rule)
        if not (0.01 <= share <= 1 or (share > 1 and share % 1 == 0)):
            rule = "must be a share from 0.01 to 1, or a whole number."
            yield Fault(path="--gpus-per-trial", value=share, rule=rule)
        elif gpus > 0 and share > max(on_node, 1):
            rule = f"a trial has its GPUs on one node, which has {on_node}."
            yield Fault(path="--gpus-per-trial", value=share, rule=rule)
        if self.worker_range is not None and "--workers" in well_formed:
            yield from self._range_faults()
        image = re.fullmatch(_IMAGE, self.image)
        if image and not image["digest"] and image["tag"] in (None, "latest"):
            rule = "must name a version or a digest: a retry must find the software that wrote the ledger."
            yield Fault(path="--image", value=self.image, rule=rule)
        if "--cpus" in well_formed:
            with suppress(ValueError):  # the command refuses what is not a number
                trial = float(option_value(self.arguments, "--cpus-per-trial") or 0)
                if trial > (node := math.ceil(number(self.cpus))):  # as KubeRay rounds a node's CPUs for Ray
                    rule = f"a trial has its CPUs on one node, which has {node}. Give more by --cpus."
                    yield Fault(path=f"--cpus-per-trial {trial:g}", value=None, rule=rule)
        if "--memory" in well_formed and number(self.memory) < LEAST_MEMORY:
            rule = "must be at least 4Gi: torch and Ray need that, before a trial has any."
            yield Fault(path="--memory", value=self.memory, rule=rule)

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
        known = {ARCHITECTURE: self.arch} if self.arch else {}
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


def option_value(words: Sequence[str], name: str) -> str | None:
    """Return the value of the last option `name` among `words`, or None if there is none."""
    found = None
    for word, following in pairwise((*words, "")):
        option, sign, text = word.partition("=")
        if option == name:
            found = text if sign else following
    return found


def argument_faults(words: Sequence[str]) -> Iterator[Fault]:
    """Yield the faults of `words` as further options; a word with a password is never repeated."""
    for word in words:
        option = word.partition("=")[0]
        if has_password(word):
            rule = "holds a password, which everybody who reads the manifest would see. Put it into the Secret."
            yield Fault(path="an option after --", value=None, rule=rule)
        elif option in TAKEN:
            yield Fault(path="an option after --", value=option, rule=f"is not for this place: {TAKEN[option]}.")
        elif not PLAIN_WORD.fullmatch(word):
            rule = "must be letters, digits and @%+=:,./_- : the command passes through two shells."
            yield Fault(path="an option after --", value=word, rule=rule)
