"""A warning about a study's result: a code that a machine reads and a sentence that a person reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StudyWarning:
    """What limits the trust in a result, before its tables: a code such as `unequal-budget`, and one sentence."""

    code: str
    text: str


def equal_seeds(which: str) -> StudyWarning:
    """Return the warning of trials, in words, that have equal numbers in all their seeds."""
    text = (
        f"{which}: all seeds have the same numbers, so there is one run and no spread. Does the code use its seed? A"
        " command gets it by {seed} or ABLATE_SEED, a function by run.seed. Where training has no chance in it, let"
        " the seed choose the split of the data."
    )
    return StudyWarning(code="equal-seeds", text=text)
