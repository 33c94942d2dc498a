"""Executors: they run the same trials in this process or on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablate.execution.executor import Executor
from ablate.execution.local import LocalExecutor

if TYPE_CHECKING:
    from ablate.execution.ray_tune import RayExecutor

__all__ = ["Executor", "LocalExecutor", "RayExecutor"]


def __getattr__(name: str) -> Any:
    """Import the Ray executor on first use, because importing Ray takes seconds."""
    if name == "RayExecutor":
        from ablate.execution.ray_tune import RayExecutor

        return RayExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
