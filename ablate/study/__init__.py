"""The description of a study: validated and frozen, from its file to its search space (no torch, no ray)."""

from __future__ import annotations

from ablate.study.design import COMPLETE, PLACEBO, TWIN
from ablate.study.file import difference, load_study, parse_study, read_study
from ablate.study.study import VARIANT, Study

__all__ = [
    "COMPLETE",
    "PLACEBO",
    "TWIN",
    "VARIANT",
    "Study",
    "difference",
    "load_study",
    "parse_study",
    "read_study",
]
