"""The search: suggestions, early stopping and confirmation, all decided from the ledger (docs/search.md)."""

from __future__ import annotations

from ablate.registry import SAMPLERS, SCHEDULERS
from ablate.search.confirmation import FrontMember
from ablate.search.request import SamplerRequest
from ablate.search.returns import Return
from ablate.search.schedulers import Scheduler, SchedulerRequest
from ablate.search.search import Search

__all__ = [
    "SAMPLERS",
    "SCHEDULERS",
    "FrontMember",
    "Return",
    "SamplerRequest",
    "Scheduler",
    "SchedulerRequest",
    "Search",
]
