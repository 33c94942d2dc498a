"""The further options of a study's command that a manifest may contain: all can read it, and two shells split it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ablate.base.errors import Fault
from ablate.base.redaction import has_password

# The submitter's shell splits the entrypoint, `ray job submit` joins the words by Windows rules, and the head's shell
# splits them again: only words that need no quotes arrive unchanged.
PLAIN_WORD = re.compile(r"[A-Za-z0-9@%+=:,./_-]+")

TAKEN = {
    "--address": "KubeRay says where the cluster is",
    "--autoscale": "give --workers MIN:MAX to `ablate k8s render`",
    "--gpus": "give it to `ablate k8s render`",
    "--gpus-per-trial": "give it to `ablate k8s render`",
    "--scale": "give it to `ablate k8s render`",
    "--dataset": "give it to `ablate k8s render`",
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
