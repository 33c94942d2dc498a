"""Fault tests: a short form in `make test`, all of it in `make faults` (`pytest tests/faults --faults`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.faults.reference import Reference, run_uninterrupted

FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def long(pytestconfig: pytest.Config) -> bool:
    """Whether the long form was asked for: as many faults as are promised, not a few of them."""
    return bool(pytestconfig.getoption("--faults"))


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """A place for figures that the README quotes; they are printed at the end."""
    return pytestconfig.stash.setdefault(FIGURES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was measured."""
    if figures := config.stash.get(FIGURES, []):
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(figures))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The small study on one trial at a time, without any fault."""
    return run_uninterrupted(tmp_path_factory.mktemp("uninterrupted"))
