"""Fault tests: a short form in `make test`, all of it in `make faults` (`pytest tests/faults --faults`)."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def long(pytestconfig: pytest.Config) -> bool:
    """Whether the long form was asked for: as many faults as are promised, not a few of them."""
    return bool(pytestconfig.getoption("--faults"))
