"""Training: the row engine, its schedules and checkpoints, and `train`, a generator of Reports (docs/training.md).

The names here are imported on first use, so that `ablate.training.settings` can be imported without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.registry import lazy_names

if TYPE_CHECKING:
    from ablate.training.family import FamilySettings
    from ablate.training.loop import train
    from ablate.training.modules import predictor
    from ablate.training.rows import ReplicaGroup
    from ablate.training.schedule import multipliers
    from ablate.training.settings import TrainConfig

__all__ = ["FamilySettings", "ReplicaGroup", "TrainConfig", "multipliers", "predictor", "train"]
__getattr__ = lazy_names(
    __name__,
    {
        "ablate.training.family": ("FamilySettings",),
        "ablate.training.settings": ("TrainConfig",),
        "ablate.training.loop": ("train",),
        "ablate.training.modules": ("predictor",),
        "ablate.training.rows": ("ReplicaGroup",),
        "ablate.training.schedule": ("multipliers",),
    },
)
