"""How often a trial is tried again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How often a trial may stop at the same epoch before it is recorded as FAIL."""

    attempts: int = 3  # attempts that ended with an error which a retry may avoid
    resumptions: int = 10  # by drivers that ended before a further report
    together: int = 2  # such resumptions after which the trial trains alone: it may be what ends its process


PATIENCE = Patience()
