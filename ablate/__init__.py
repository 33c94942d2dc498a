"""`ablate`: distributed hyperparameter search and ablation for small networks.

import ablate
study = ablate.search(train, name="mine", space={"lr": ablate.real(1e-4, 1e-1, log=True)}, epochs=20,
                      objectives=["max val_accuracy", "min params"], trials=50, confirm=5)
study.front()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablate.api import StudyHandle, choice, compare, load_study, real, search, whole

__version__ = "0.1.0"
__all__ = ["StudyHandle", "choice", "compare", "load_study", "real", "search", "whole"]


def __getattr__(name: str) -> Any:
    """Import the Python interface when it is first used, so that a command does not wait for it."""
    if name in __all__:
        return getattr(import_module("ablate.api"), name)
    raise AttributeError(f"module 'ablate' has no attribute {name!r}")
