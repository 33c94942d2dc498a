"""Fixtures that several test modules share, and the option that asks for the fault tests' long form."""

from __future__ import annotations

import signal

import pytest

from support.ledgers import storage
from support.postgres import postgres_server
from support.s3 import s3_server, s3_store

__all__ = ["postgres_server", "s3_server", "s3_store", "storage"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --faults."""
    parser.addoption("--faults", action="store_true", help="run the fault tests in their long form (make faults)")


def pytest_configure() -> None:
    """Hear SIGINT, which a shell lets its background jobs ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `faults` unless --faults is given."""
    if not config.getoption("--faults"):
        skip = pytest.mark.skip(reason="long form: make faults")
        for item in items:
            if item.get_closest_marker("faults"):
                item.add_marker(skip)
