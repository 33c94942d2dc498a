"""Where a study lives: its folders, its ledger, its checkpoints, and which ledger they belong to."""

from __future__ import annotations

from ablate.locations.locations import METRICS_HOST, RUNS, VARIABLES, Settings

__all__ = ["METRICS_HOST", "RUNS", "VARIABLES", "Settings"]
