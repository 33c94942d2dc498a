"""The ledger: one database that records every study, written by one driver per study and read from anywhere."""

from __future__ import annotations

from ablate.ledger.ledger import Ledger
from ablate.ledger.records import (
    EventRecord,
    Glance,
    NewEvent,
    NewTrial,
    ReportRecord,
    Snapshot,
    StudyRecord,
    TrialRecord,
    last_metrics,
)
from ablate.ledger.study_writer import StudyWriter

__all__ = [
    "EventRecord",
    "Glance",
    "Ledger",
    "NewEvent",
    "NewTrial",
    "ReportRecord",
    "Snapshot",
    "StudyRecord",
    "StudyWriter",
    "TrialRecord",
    "last_metrics",
]
