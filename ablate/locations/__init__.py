"""Where a study lives: its folders, its ledger, its checkpoints, and which ledger they belong to."""

from __future__ import annotations

from ablate.locations.locations import RUNS, VARIABLES, Locations

__all__ = ["RUNS", "VARIABLES", "Locations"]
