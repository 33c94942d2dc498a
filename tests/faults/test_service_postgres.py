"""PostgreSQL as the ledger and behind MLflow: restarted, down for longer than the driver waits, the driver killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.ledger.ledger import RETRY_SECONDS
from support.faults.lossless import check_mlflow, check_whole, repeated_steps, study
from support.faults.study_runs import LOCAL, StudyRun
from support.postgres import PostgresServer

TRIALS, EPOCHS = 6, 12
RAY = ("--gpus", "0", "--device", "cpu")


@pytest.mark.parametrize(
    ("mode", "tracked"),
    [
        ("immediate", False),
        pytest.param("immediate", True, marks=pytest.mark.faults),
        pytest.param("fast", True, marks=pytest.mark.faults),
    ],
)
def test_a_restart_in_mid_study_loses_no_commit_and_the_driver_goes_on(
    mode: str, tracked: bool, tmp_path: Path, postgres_server: PostgresServer, measured: Callable[[str], None]
) -> None:
    tracking = postgres_server.empty() if tracked else ""
    run = StudyRun(
        folder=tmp_path,
        text=study("restarted", trials=TRIALS, epochs=EPOCHS),
        options=(*LOCAL[:-2], "--tracking-uri", tracking) if tracked else LOCAL,
        storage=postgres_server.empty(),
        pace=0.3 if tracked else 0.03,
    )
    command = run.search()
    for restart in (1, 2):
        command.until(lambda: len(run.steps()) >= restart * TRIALS * EPOCHS // 3)  # noqa: B023
        before = committed_rows(run)
        postgres_server.stop(mode)
        time.sleep(0.5)
        postgres_server.start()
        assert before <= committed_rows(run)
    assert command.wait() == 0, command.output
    check_whole(run, trials=TRIALS, epochs=EPOCHS)
    assert repeated_steps(run) == {}
    if tracked:
        check_mlflow(run, tracking)
    under = "the ledger and MLflow" if tracked else "the ledger"
    measured(f"PostgreSQL restarted twice under {under} ({mode}): the driver went on, 0 commits lost, 0 steps repeated")


def test_a_server_that_is_not_there_is_one_line_and_the_same_command_goes_on_later(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    text = study("absent", trials=2, epochs=3)
    run = StudyRun(folder=tmp_path, text=text, options=LOCAL, storage=postgres_server.empty())
    postgres_server.stop("fast")
    try:
        refused = run.search()
        assert refused.wait() == 75, refused.output
    finally:
        postgres_server.start()
    assert_one_clear_line(refused.output)
    run.finish()
    check_whole(run, trials=2, epochs=3)


@pytest.mark.faults
def test_a_server_that_stays_down_ends_the_driver_and_the_same_command_loses_nothing(
    tmp_path: Path, postgres_server: PostgresServer, measured: Callable[[str], None]
) -> None:
    run = StudyRun(
        folder=tmp_path,
        text=study("down", trials=TRIALS, epochs=EPOCHS),
        options=(*RAY, "--tracker", "none"),
        storage=postgres_server.empty(),
        pace=0.2,
        cpus=2,
    )
    command = run.search()
    command.until(lambda: len(run.steps()) >= TRIALS * EPOCHS // 3)
    before = committed_rows(run)
    stopped_at = time.monotonic()
    postgres_server.stop("immediate")
    try:
        assert command.wait(3 * RETRY_SECONDS) == 75, command.output
        waited = time.monotonic() - stopped_at
    finally:
        postgres_server.start()
    assert waited > RETRY_SECONDS / 2, "it did not wait"
    assert_one_clear_line(command.output)
    assert before <= committed_rows(run)
    run.finish()
    check_whole(run, trials=TRIALS, epochs=EPOCHS, drivers=2)
    repeated = repeated_steps(run)
    assert max(repeated.values(), default=0) <= 1
    assert sum(repeated.values()) <= 2
    measured(
        f"PostgreSQL down for longer than {RETRY_SECONDS:g} s: exit code 75 after {waited:.0f} s, the same command "
        f"repeated {sum(repeated.values())} steps on 2 slots"
    )


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_driver_killed_with_its_ledger_and_mlflow_in_postgresql_is_resumed_without_a_double(
    tmp_path: Path, postgres_server: PostgresServer, measured: Callable[[str], None]
) -> None:
    tracking = postgres_server.empty()
    run = StudyRun(
        folder=tmp_path,
        text=study("killed", trials=TRIALS, epochs=EPOCHS),
        options=(*RAY, "--tracking-uri", tracking),
        storage=postgres_server.empty(),
        pace=0.3,
        cpus=2,
    )
    kills = 3
    for kill in range(kills):
        command = run.search()
        command.until(lambda: len(run.steps()) >= (kill + 1) * TRIALS * EPOCHS // (kills + 1), 240)  # noqa: B023
        command.kill()
    run.finish(seconds=240)
    check_whole(run, trials=TRIALS, epochs=EPOCHS, drivers=kills + 1)
    repeated = sum(repeated_steps(run).values())
    assert repeated <= 2 * kills
    check_mlflow(run, tracking)
    measured(f"driver killed {kills} times on PostgreSQL, 2 slots: {repeated} steps repeated, MLflow's runs = trials")


def committed_rows(run: StudyRun) -> set[tuple[int, int, int, str]]:
    """Return every report's place and what it says."""
    with run.ledger() as ledger:
        found = ledger.reports_since(run.name, 0)
    return {(r.key.number, r.epoch, r.replicate, str(r.metrics)) for r in found}


def assert_one_clear_line(output: str) -> None:
    """Require that the last line names the ledger and hides its password, and that there is no traceback."""
    said = [line for line in output.splitlines() if line.startswith("ablate: ")]
    assert len(said) == 1, output
    assert said[0].startswith("ablate: ledger postgresql+psycopg://***@127.0.0.1:")
    assert "Traceback" not in output
