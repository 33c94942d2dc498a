"""The search: suggestions, early stopping and confirmation, all decided from the ledger (docs/searching.md)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ablate.core.registry import SAMPLERS, SCHEDULERS
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

_LATE = {
    "SamplerRequest": "request",
    "Scheduler": "schedulers",
    "SchedulerRequest": "schedulers",
    "Search": "search",
    "require_searchable": "dataset_search",
}


def __getattr__(name: str) -> Any:
    """Import modules that need Optuna on first use, so that read-only commands do not load it."""
    if name in _LATE:
        return getattr(import_module(f"ablate.tuning.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
