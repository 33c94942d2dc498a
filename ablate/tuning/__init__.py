"""The search: suggestions, early stopping and confirmation, all decided from the ledger (docs/searching.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.core.registry import SAMPLERS, SCHEDULERS, lazy_names
from ablate.tuning.stages.confirmation import FrontMember
from ablate.tuning.state.standing import Standing

if TYPE_CHECKING:
    from ablate.tuning.dataset_search import require_searchable
    from ablate.tuning.sampling.request import SamplerRequest, SamplerTraits
    from ablate.tuning.search import Search
    from ablate.tuning.stopping.schedulers import Scheduler, SchedulerRequest

__all__ = [
    "SAMPLERS",
    "SCHEDULERS",
    "FrontMember",
    "SamplerRequest",
    "SamplerTraits",
    "Scheduler",
    "SchedulerRequest",
    "Search",
    "Standing",
    "require_searchable",
]

__getattr__ = lazy_names(  # they need Optuna, which read-only commands do not load
    __name__,
    {
        "ablate.tuning.sampling.request": ("SamplerRequest", "SamplerTraits"),
        "ablate.tuning.stopping.schedulers": ("Scheduler", "SchedulerRequest"),
        "ablate.tuning.search": ("Search",),
        "ablate.tuning.dataset_search": ("require_searchable",),
    },
)
