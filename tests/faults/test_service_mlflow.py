"""A real MLflow server that is down in mid-study, at its beginning and at its end; its files in an object store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.faults.lossless import check_mlflow, check_whole, repeated_steps, study
from support.faults.study_runs import Command, StudyRun
from support.mlflow_server import mlflow_server
from support.postgres import PostgresServer
from support.s3 import S3Server
from support.stored_objects import objects

DOWN_SECONDS, SLICES = 60, 6
OPTIONS = ("--executor", "local", "--device", "cpu")


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_server_that_is_down_for_a_minute_delays_no_trial_and_misses_nothing(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    trials, epochs = 24, 12
    with mlflow_server(tmp_path) as server:
        server.start()
        run = StudyRun(
            folder=tmp_path,
            text=study("watched", trials=trials, epochs=epochs),
            options=(*OPTIONS, "--tracking-uri", server.url),
            pace=0.3,
        )
        command = run.search()
        command.until(lambda: len(run.steps()) > 2 * epochs)
        server.kill()
        epochs_while_down = []
        for _ in range(SLICES):
            before, until = run.committed(), time.monotonic() + DOWN_SECONDS / SLICES
            command.until(lambda until=until: time.monotonic() > until)
            epochs_while_down.append(run.committed() - before)
        assert min(epochs_while_down) > 0
        server.start()
        assert command.wait(300) == 0, command.output
        assert said(command).count("cannot be kept up to date") == 1
        assert said(command).count("has caught up with the ledger again") == 1
        check_whole(run, trials=trials, epochs=epochs)
        assert repeated_steps(run) == {}
        check_mlflow(run, server.url)
    measured(f"MLflow server down for {DOWN_SECONDS} s: {sum(epochs_while_down)} epochs committed meanwhile, "
             f"runs = trials, no point twice, none RUNNING")  # fmt: skip


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_server_that_is_down_at_both_ends_is_caught_up_by_the_same_command_with_its_files_in_an_object_store(
    tmp_path: Path, postgres_server: PostgresServer, s3_server: S3Server, s3_store: str, measured: Callable[[str], None]
) -> None:
    trials, epochs = 6, 12
    place = s3_store.partition("?")[0]
    access = s3_server.environment() | {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{s3_server.port}"}
    with mlflow_server(tmp_path, backend=postgres_server.empty(), artifacts=place, **access) as server:
        run = StudyRun(
            folder=tmp_path,
            text=study("late", trials=trials, epochs=epochs),
            options=(*OPTIONS, "--tracking-uri", server.url),
            pace=0.3,
        )
        first = run.search()
        first.until(lambda: len(run.steps()) > epochs)
        server.start()
        first.until(lambda: "has caught up with" in said(first))
        server.kill()
        assert first.wait() == 0, first.output
        assert "is behind the ledger; the same command, run again, catches up" in said(first)
        check_whole(run, trials=trials, epochs=epochs)
        server.start()
        run.finish()
        check_whole(run, trials=trials, epochs=epochs, drivers=2)
        assert repeated_steps(run) == {}
        check_mlflow(run, server.url)
    there = {name.rpartition("/artifacts/")[2]: content for name, content in objects(s3_store).items()}
    for name in ("trials.parquet", "reports.parquet", "study.yaml", "report/index.html"):
        assert there[name] == (run.home / name).read_bytes(), name
    assert {"model/weights.safetensors", "model/settings.json"} <= set(there)
    measured("MLflow server down at the beginning and the end: caught up by the same command, files in S3")


def said(command: Command) -> str:
    """Return a command's output with its lines joined: warnings are broken to fit the terminal."""
    return " ".join(command.output.split())
