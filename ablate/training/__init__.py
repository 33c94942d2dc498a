"""Training: the row engine, its schedules and checkpoints, and `train`, a generator of Reports (docs/training.md)."""

from __future__ import annotations

from ablate.training.loop import train
from ablate.training.modules import predictor
from ablate.training.rows import ReplicaGroup
from ablate.training.schedule import multipliers

__all__ = ["ReplicaGroup", "multipliers", "predictor", "train"]
