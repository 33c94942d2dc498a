"""`ablate`: distributed hyperparameter search and ablation for small networks.

import ablate
study = ablate.search(train, name="mine", space={"lr": ablate.real(1e-4, 1e-1, log=True)}, epochs=20,
                      objectives=["max val_accuracy", "min params"], trials=50, confirm=5)
study.front()
"""

# Nothing is imported here: `python -m ablate` runs this file while the current folder is still searched for modules.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.api import StudyHandle, campaign, choice, compare, load_study, real, search, whole

__version__ = "0.1.0"
__all__ = ["StudyHandle", "campaign", "choice", "compare", "load_study", "real", "search", "whole"]


def __getattr__(name: str) -> object:
    """Import the Python interface when it is first used, so that a command does not wait for it."""
    if name in __all__:
        from ablate import api

        return getattr(api, name)
    raise AttributeError(f"module 'ablate' has no attribute {name!r}")
