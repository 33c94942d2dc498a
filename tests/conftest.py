"""What the whole suite shares: fixtures of servers, the long form of the fault tests, and who runs beside whom."""

from __future__ import annotations

import gc
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ledgers import storage
from support.postgres import postgres_server
from support.s3 import s3_server, s3_store
from support.warm import user_processes

__all__ = ["postgres_server", "s3_server", "s3_store", "storage"]

TESTS = Path(__file__).parent
LONG = {  # files that take more than five seconds
    "cli/test_cluster", "cli/test_new_from", "cli/test_parts", "cli/test_process", "cli/test_variants",
    "cli/test_verdict", "deploy/test_components", "driver/test_hostile_requests", "driver/test_requests",
    "functions/border/test_state",
    "functions/test_seed", "functions/test_trial",
    "functions/test_command", "functions/test_command_continues", "functions/test_command_process",
    "functions/test_sizing", "kubernetes/test_preflight",
    "results/comparison/test_verdicts", "results/front/test_answer", "results/importance/test_importance",
    "results/importance/test_wording", "results/report/test_figure_files", "results/statistics/test_calibration",
    "studies/test_export", "studies/test_live", "study/test_options", "tuning/sampling/test_bounded_history",
    "tuning/sampling/test_front_sampler", "tuning/sampling/test_samplers", "tuning/stages/test_candidate_runs",
    "tuning/stages/test_row_tuning_frozen", "tuning/stages/test_stage_commits", "tuning/test_user_requests",
}  # fmt: skip
SERVERS = {"postgres_server", "s3_server", "s3_store"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --faults."""
    parser.addoption("--faults", action="store_true", help="run the fault tests in their long form (make faults)")


def pytest_configure(config: pytest.Config) -> None:
    """Handle SIGINT even where a shell started this as a background job, which ignores it: Ctrl-C is tested."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that take long, leave out long forms, and begin with the files that have most of the former."""
    skip = pytest.mark.skip(reason="long form: make faults")
    weights: Counter[Path] = Counter()
    for item in items:
        is_left_out = item.get_closest_marker("faults") and not config.getoption("--faults")
        if is_left_out:
            item.add_marker(skip)
        if (
            item.path.is_relative_to(TESTS / "faults")
            or str(item.path.relative_to(TESTS).with_suffix("")) in LONG
            or item.get_closest_marker("slow")
            or SERVERS & set(getattr(item, "fixturenames", ()))
            or "postgresql" in item.name
        ):
            item.add_marker("services")
        if item.get_closest_marker("services") and not is_left_out:
            weights[item.path] += 1
    items.sort(key=lambda item: -weights[item.path])


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    """Processes of users' code are forked from one that has imported torch."""
    with user_processes():
        yield


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what is imported by now out of every later garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let them be collected at the end, where some libraries count what is left."""
    gc.unfreeze()
