"""Constraints on the nodes of pods: labels that a node must have, and taints that a pod tolerates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ablate.base.errors import Fault

DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # RFC 1123
PREFIX_LENGTH = 253
LABEL_PART = r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
LABEL_KEY = rf"(?:(?P<prefix>{DNS_NAME.pattern})/)?{LABEL_PART}"
NODE_LABEL = re.compile(rf"(?P<key>{LABEL_KEY})=(?P<value>{LABEL_PART})")
TOLERATION = re.compile(rf"(?P<key>{LABEL_KEY})(=(?P<value>{LABEL_PART}))?(:(?P<effect>[A-Za-z]+))?")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
ARCHITECTURES = ("amd64", "arm64")
ARCHITECTURE = "kubernetes.io/arch"


def node_labels(texts: Sequence[str], arch: str | None) -> dict[str, str]:
    """Return KEY=VALUE texts, and the architecture, as the `nodeSelector` of a pod."""
    labels = dict(text.split("=", 1) for text in texts)
    return labels | ({ARCHITECTURE: arch} if arch else {})


def toleration(text: str) -> dict[str, str]:
    """Return KEY[=VALUE][:EFFECT] as a toleration; without a value or an effect it tolerates any."""
    found = TOLERATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no toleration")
    value, effect = found["value"], found["effect"]
    matches = {"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}
    return {"key": found["key"], **matches, **({"effect": effect} if effect else {})}


def label_faults(option: str, text: str) -> Iterator[Fault]:
    """Yield why `text` is not a node label KEY=VALUE."""
    rule = "must be a node label KEY=VALUE, such as cloud.google.com/gke-spot=true."
    yield from _part_faults(option, text, NODE_LABEL.fullmatch(text), rule)


def scheduling_faults(selectors: Sequence[str], tolerations: Sequence[str], arch: str | None) -> Iterator[Fault]:
    """Yield why a selector, a toleration or the architecture is invalid in a pod."""
    if arch is not None and arch not in ARCHITECTURES:
        yield Fault(path="--arch", value=arch, rule=f"must be {' or '.join(ARCHITECTURES)}.")
    known = {ARCHITECTURE: arch} if arch else {}
    for text in selectors:
        yield from label_faults("--node-selector", text)
        key, _, value = text.partition("=")
        if known.setdefault(key, value) != value:
            rule = f"the label {key} has two values, {known[key]} and {value}, and a node has one."
            yield Fault(path="--node-selector", value=text, rule=rule)
    for text in tolerations:
        found = TOLERATION.fullmatch(text)
        yield from _part_faults("--toleration", text, found, "must be KEY[=VALUE][:EFFECT], such as team=a:NoSchedule.")
        if found and found["effect"] not in (None, *EFFECTS):
            rule = f"an effect is {EFFECTS[0]}, {EFFECTS[1]} or {EFFECTS[2]}."
            yield Fault(path="--toleration", value=text, rule=rule)


def _part_faults(option: str, text: str, found: re.Match[str] | None, rule: str) -> Iterator[Fault]:
    if found is None:
        yield Fault(path=option, value=text, rule=rule)
    elif len(found["prefix"] or "") > PREFIX_LENGTH:
        rule = f"the part before / is a domain of at most {PREFIX_LENGTH} characters."
        yield Fault(path=option, value=text, rule=rule)
