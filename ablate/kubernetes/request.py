"""The request for one study on a Kubernetes cluster, validated before the manifest is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ablate.base.errors import Fault, RequestError
from ablate.base.redaction import has_password

NAME_LENGTH = 47  # KubeRay extends a RayJob's name for its cluster and pods; a label's value is at most 63 long
_IMAGE = r"(?a)([\w.-]+(:\d+)?/)?[a-z0-9._/-]+(:(?!latest\Z)\w[\w.-]*|(:\w[\w.-]*)?@sha256:[a-f0-9]{64})"
_LABEL = "must be lower-case letters, digits and '-', at most"
FORMS = (  # field, form and rule of each text
    ("name", rf"(?=.{{1,{NAME_LENGTH}}}\Z)[a-z](?:[-a-z0-9]*[a-z0-9])?", f"{_LABEL} {NAME_LENGTH}, a letter first."),
    ("namespace", r"(?=.{1,63}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?", f"{_LABEL} 63."),
    (
        "image",
        _IMAGE,
        "must name a version or a digest, as registry.example.org/ablate:0.1.0: a retry needs the same.",
    ),
    ("memory", "(?:[4-9]|[1-9][0-9]{1,6})Gi", "must be at least 4Gi, in whole Gi: torch and Ray need that."),
)
# The submitter's shell splits the entrypoint, `ray job submit` joins the words by Windows rules, and the head's shell
# splits them again: only words that need no quotes arrive unchanged.
PLAIN_WORD = re.compile(r"[A-Za-z0-9@%+=:,./_-]+")
TAKEN = {  # further options of a study's command that it may not have here, because the manifest gives them
    "--address": "KubeRay says where the cluster is",
    **dict.fromkeys(("--gpus", "--gpus-per-trial", "--scale", "--dataset"), "give it to `ablate k8s render`"),
    "--device": "--gpus decides it",
    "--executor": "a study on a cluster runs on Ray",
    **dict.fromkeys(("--runs-dir", "--data-dir"), "the pods' volumes are mounted where the command expects them"),
    "--grace": "it is fitted to the 30 s that a spot node gives",
    **dict.fromkeys(("--metrics-host", "--metrics-port"), "the pod's port and the network policy name it"),
    "--storage": "its place is the Secret, key storage-url",
    "--store": "its place is the ConfigMap, key ABLATE_STORE",
    "--tracking-uri": "its place is the ConfigMap, key MLFLOW_TRACKING_URI",
    "--takeover": "two clusters of one job would take the study from each other, and a lease ends by itself",
}


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """What is asked of a cluster; `cpus` and `memory` are of one worker node."""

    image: str
    gpus: int = 0
    gpus_per_node: int = 1
    gpus_per_trial: float = 1.0
    nodes: int | None = None
    cpus: int = 8
    memory: str = "32Gi"
    namespace: str = "ablate"


@dataclass(frozen=True, kw_only=True)
class ClusterRequest(ClusterOptions):
    """A study, its command, and what is asked of a cluster for it. Raises RequestError with every fault at once."""

    name: str
    study_text: str
    command: Literal["search", "compare"] = "search"
    arguments: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Raise RequestError unless every field is valid in a manifest."""
        if found := list(self._faults()):
            raise RequestError("\n".join(fault.render("ablate k8s") for fault in found))

    @property
    def workers(self) -> int:
        """The number of worker nodes: enough for the GPUs, or the requested number without any."""
        return self.gpus // self.gpus_on_node if self.gpus else self.nodes or 1

    @property
    def gpus_on_node(self) -> int:
        """GPUs of one worker node, at most the requested total."""
        return min(self.gpus, self.gpus_per_node)

    def _faults(self) -> Iterator[Fault]:
        for field, form, rule in FORMS:
            if not re.fullmatch(form, text := getattr(self, field)):
                hint = f"Try --{field} {proposal(text)}." if field.startswith("name") else ""
                yield Fault(path=f"--{field}", value=text, rule=rule, hint=hint)
        gpus, on_node, share = self.gpus, self.gpus_on_node, self.gpus_per_trial
        most, cpus = max(on_node, 1), 0.0
        with suppress(ValueError):  # the command refuses what is not a number
            cpus = float(option_value(self.arguments, "--cpus-per-trial") or 0)
        checks = (
            ("--gpus", gpus, gpus and gpus % on_node,
             f"must be a multiple of --gpus-per-node {self.gpus_per_node}: nodes of a group are equal."),
            ("--nodes", self.nodes, gpus and self.nodes, "is for studies without GPUs; --gpus says how many nodes."),
            ("--gpus-per-trial", share, not (0.01 <= share <= 1 or (share <= most and share % 1 == 0)),
             f"must be a share from 0.01 to 1, or a whole number up to the {most} of one node."),
            ("--cpus-per-trial", cpus, cpus > self.cpus, f"a node has {self.cpus}. Give more by --cpus."),
            ("FILE", None, has_password(self.study_text), "holds a password, which a ConfigMap shows to everybody."),
        )  # fmt: skip
        yield from (Fault(path=path, value=value, rule=rule) for path, value, is_wrong, rule in checks if is_wrong)
        for word in self.arguments:
            option, path = word.partition("=")[0], "an option after --"
            if has_password(word):  # and is not repeated
                rule = "holds a password, which everybody who reads the manifest would see. Put it into the Secret."
                yield Fault(path=path, value=None, rule=rule)
            elif option in TAKEN:
                yield Fault(path=path, value=option, rule=f"is not for this place: {TAKEN[option]}.")
            elif not PLAIN_WORD.fullmatch(word):
                rule = "must be letters, digits and @%+=:,./_- : the command passes through two shells."
                yield Fault(path=path, value=word, rule=rule)


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
