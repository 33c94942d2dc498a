"""The tracker that tracks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.trial import TrialConfig


class NoTracker:
    """Does nothing: the ledger, the tables and the report are all there is."""

    def sync(self) -> None:
        """Do nothing."""

    def log_models(self, configs: Sequence[TrialConfig], *, data_dir: Path | None = None) -> None:
        """Do nothing."""

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        """Do nothing."""

    def close(self) -> Sequence[str]:
        """Return that nothing is missing."""
        return ()


def build(_name: str = "none", **_: Any) -> NoTracker:
    """Return the tracker that tracks nothing, whatever the study."""
    return NoTracker()
