"""The description of a study: validated and frozen, from its file to its search space (no torch, no ray)."""

from __future__ import annotations

from ablate.study.design import COMPLETE, PLACEBO, TWIN
from ablate.study.file import difference, load_study, parse_study, read_study
from ablate.study.sections import MOST_TRIALS
from ablate.study.study import VARIANT, Study

__all__ = [
    "COMPLETE",
    "MOST_TRIALS",
    "PLACEBO",
    "TWIN",
    "VARIANT",
    "Study",
    "difference",
    "load_study",
    "parse_study",
    "read_study",
]
