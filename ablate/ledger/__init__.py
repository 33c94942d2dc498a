"""The record of what happened: one database, written by one driver per study, read from anywhere."""

from __future__ import annotations

from ablate.ledger.hold import Hold
from ablate.ledger.ledger import Ledger
from ablate.ledger.records import NewTrial, NoteRecord, ReportRecord, Snapshot, StudyRecord, TrialRecord

__all__ = ["Hold", "Ledger", "NewTrial", "NoteRecord", "ReportRecord", "Snapshot", "StudyRecord", "TrialRecord"]
