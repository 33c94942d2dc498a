"""Training: replicates in lockstep, schedules and checkpoints, and `train`, a generator of Reports (docs/training.md).

The names here are imported on first use, so that `ablate.engine.training.train_config` can be imported without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.core.registry import lazy_names

if TYPE_CHECKING:
    from ablate.engine.training.family import FamilySettings
    from ablate.engine.training.modules import predictor
    from ablate.engine.training.one_trial import train
    from ablate.engine.training.replica_group import ReplicaGroup
    from ablate.engine.training.schedule import multipliers
    from ablate.engine.training.train_config import TrainConfig

__all__ = ["FamilySettings", "ReplicaGroup", "TrainConfig", "multipliers", "predictor", "train"]
__getattr__ = lazy_names(
    __name__,
    {
        "ablate.engine.training.family": ("FamilySettings",),
        "ablate.engine.training.train_config": ("TrainConfig",),
        "ablate.engine.training.one_trial": ("train",),
        "ablate.engine.training.modules": ("predictor",),
        "ablate.engine.training.replica_group": ("ReplicaGroup",),
        "ablate.engine.training.schedule": ("multipliers",),
    },
)
