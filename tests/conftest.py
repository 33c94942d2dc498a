"""Fixtures that several test modules share."""

from __future__ import annotations

from ledgers import storage
from postgres import postgres_server

__all__ = ["postgres_server", "storage"]
