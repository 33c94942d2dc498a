"""Tracking: shows the ledger in MLflow and W&B (docs/tracking.md). The first sync imports MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.base.files import Place
from ablate.core.registry import TRACKERS
from ablate.ledger import StudyWriter
from ablate.tracking.tracker import Patient, Several, Tracker, sync_periodically
from ablate.tracking.ui import StudyPage

__all__ = ["StudyPage", "Tracker", "build_trackers", "sync_periodically"]


def build_trackers(
    names: Sequence[str],
    *,
    home: Path,
    uri: str | None,
    writer: StudyWriter | None,
    store: Place | None = None,
    **context: Any,
) -> Several:
    """Return one tracker that passes every call on to those called `names` (of TRACKERS, or import paths).

    `context` is the study and the ledger. `uri` is the store of MLflow (`sqlite:///FILE`, `postgresql://…`,
    `http://SERVER`), by default one SQLite file and one folder of artifacts beside the study's home. Checkpoints are
    below `store`, by default the study's home. Raises RegistryError for an unknown name.
    """
    given = {"home": home, "uri": uri, "writer": writer, "store": store or home, **context}
    built = [(name, TRACKERS.load(name)(name, **given)) for name in names]
    return Several(
        *(Patient(each, label=getattr(each, "label", name), writer=writer, secret=uri or "") for name, each in built)
    )
