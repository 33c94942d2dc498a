"""A warning about a study's result: a code that a machine reads and a sentence that a person reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StudyWarning:
    """What limits the trust in a result, before its tables: a code such as `unequal-budget`, and one sentence."""

    code: str
    text: str
