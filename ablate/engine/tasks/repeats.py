"""Remarks on samples that a data set holds more than once, in two splits or under two classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a sample is: its split, its class (None for other targets) and the name that a remark gives it."""

    part: str
    label: Hashable
    name: str


def repeats(samples: Iterable[tuple[Hashable, Place]]) -> tuple[str, ...]:
    """Return a sentence on each kind of repetition; samples are equal if their first item is."""
    groups: dict[Hashable, list[Place]] = defaultdict(list)
    for content, place in samples:
        groups[content].append(place)
    several = [group for group in groups.values() if len(group) > 1]
    return (*_split_remarks(several), *_class_remarks(several))


def _split_remarks(groups: Sequence[Sequence[Place]]) -> Iterable[str]:
    for part, other in (("test", "train"), ("validation", "train"), ("test", "validation")):
        pairs = [
            (a, next((b for b in group if b.part == other), None)) for group in groups for a in group if a.part == part
        ]
        found = [(a, b) for a, b in pairs if b is not None]
        if found:
            a, b = found[0]
            yield (
                f"{_count(len(found))} of {part} {'is' if len(found) == 1 else 'are'} in {other} too (such as {a.name}"
                f" and {b.name}), so its numbers look better than they are"
            )


def _class_remarks(groups: Sequence[Sequence[Place]]) -> Iterable[str]:
    torn = [group for group in groups if len({place.label for place in group}) > 1]
    if torn:
        first = torn[0][0]
        other = next(place for place in torn[0] if place.label != first.label)
        has = "has" if len(torn) == 1 else "have"
        yield f"{_count(len(torn))} {has} two classes (such as {first.name} and {other.name})"


def _count(number: int) -> str:
    return "1 sample" if number == 1 else f"{number:,} samples"
