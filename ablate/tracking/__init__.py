"""Tracking: shows the ledger in MLflow, TensorBoard and W&B (docs/tracking.md). The first sync imports MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.base.files import Place
from ablate.core.registry import TRACKERS
from ablate.tracking.address import default_uri
from ablate.tracking.sqlite_store import require_mlflow
from ablate.tracking.store import reachable
from ablate.tracking.tracker import Several, Tracker, sync_periodically
from ablate.tracking.ui import StudyPage, UiCommand, serve, ui_command

if TYPE_CHECKING:
    from ablate.ledger import Ledger, StudyWriter
    from ablate.study import Study

__all__ = [
    "TRACKERS",
    "StudyPage",
    "Tracker",
    "UiCommand",
    "build",
    "build_trackers",
    "default_uri",
    "reachable",
    "require_mlflow",
    "serve",
    "sync_periodically",
    "ui_command",
]


def build(
    name: str,
    *,
    uri: str | None,
    study: Study,
    ledger: Ledger,
    writer: StudyWriter | None,
    home: Path,
    store: Place | None = None,
) -> Tracker:
    """Return the tracker called `name` (of TRACKERS, or an import path); raise RegistryError if there is none.

    `uri` is the store (`sqlite:///FILE`, `postgresql://…`, `http://SERVER`). None selects the default: one SQLite file
    and one folder of artifacts beside the study's home. Checkpoints are below `store`, by default the study's home.
    """
    tracker: Tracker = TRACKERS.load(name)(
        name, uri=uri, study=study, ledger=ledger, writer=writer, home=home, store=home if store is None else store
    )
    return tracker


def build_trackers(names: Sequence[str], **context: Any) -> Tracker:
    """Return one tracker that passes every call on to those called `names`; `context` is that of `build`."""
    return Several(*(build(name, **context) for name in names))
