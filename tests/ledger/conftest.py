"""A ledger on SQLite or PostgreSQL, with a clock that tests set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ablate.ledger import Ledger
from support.ledgers import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(storage: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(storage, clock=clock, monotonic=clock) as opened:
        yield opened
