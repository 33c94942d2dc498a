"""The search: suggestions, early stopping and confirmation, all decided from the ledger (docs/searching.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.core.registry import SAMPLERS, SCHEDULERS, lazy_names
from ablate.tuning.confirmation import FrontMember
from ablate.tuning.resumption_log import Resumption
from ablate.tuning.standing import Standing

if TYPE_CHECKING:
    from ablate.tuning.dataset_search import require_searchable
    from ablate.tuning.request import SamplerRequest
    from ablate.tuning.schedulers import Scheduler, SchedulerRequest
    from ablate.tuning.search import Search

__all__ = [
    "SAMPLERS",
    "SCHEDULERS",
    "FrontMember",
    "Resumption",
    "SamplerRequest",
    "Scheduler",
    "SchedulerRequest",
    "Search",
    "Standing",
    "require_searchable",
]

__getattr__ = lazy_names(  # they need Optuna, which read-only commands do not load
    __name__,
    {
        "ablate.tuning.request": ("SamplerRequest",),
        "ablate.tuning.schedulers": ("Scheduler", "SchedulerRequest"),
        "ablate.tuning.search": ("Search",),
        "ablate.tuning.dataset_search": ("require_searchable",),
    },
)
