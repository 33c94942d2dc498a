"""What the whole suite shares: fixtures of servers, the long form of the fault tests, and who runs beside whom."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.ledgers import storage
from support.postgres import postgres_server
from support.s3 import s3_server, s3_store

__all__ = ["postgres_server", "s3_server", "s3_store", "storage"]

TESTS = Path(__file__).parent
SERVERS = {"postgres_server", "s3_server", "s3_store"}
RAY = {"execution", "faults"}  # rooms whose tests start Ray


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --faults."""
    parser.addoption("--faults", action="store_true", help="run the fault tests in their long form (make faults)")


def pytest_configure(config: pytest.Config) -> None:
    """Handle SIGINT even where a shell started this as a background job, which ignores it: Ctrl-C is tested."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a server, leave out long forms, and give each file to one process of `-n`.

    The tests that start Ray come first and share one process, so that no two of them run at a time.
    """
    skip = pytest.mark.skip(reason="long form: make faults")
    for item in items:
        room = item.path.relative_to(TESTS).parts[0]
        if not config.getoption("--faults") and item.get_closest_marker("faults"):
            item.add_marker(skip)
        if (
            room == "faults"
            or item.get_closest_marker("slow")
            or SERVERS & set(getattr(item, "fixturenames", ()))
            or "postgresql" in item.name
        ):
            item.add_marker("services")
        item.add_marker(pytest.mark.xdist_group("ray" if room in RAY else str(item.path)))
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] not in RAY)
