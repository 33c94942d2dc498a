"""The tracker that does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.core.trial import TrialConfig


class NoTracker:
    """Does nothing: results are in the ledger, the tables and the report only."""

    def sync(self) -> None:
        """Do nothing."""

    def log_models(self, configs: Sequence[TrialConfig], *, data_dir: Path | None = None) -> None:
        """Do nothing."""

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        """Do nothing."""

    def close(self) -> Sequence[str]:
        """Return no lines: nothing is missing."""
        return ()


def build(_name: str = "none", **_: Any) -> NoTracker:
    """Return the tracker that does nothing, for any study."""
    return NoTracker()
