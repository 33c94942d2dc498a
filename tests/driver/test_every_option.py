"""All options at once: PostgreSQL, an object store and an MLflow server; killed, continued, and read by every door."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from ablate.core.trial import TrialState
from support.faults.lossless import check_mlflow, check_whole, reports
from support.faults.study_runs import StudyRun
from support.mlflow_server import mlflow_server
from support.postgres import PASSWORD, PostgresServer
from support.s3 import S3Server
from support.stored_objects import objects

STUDY = """\
study: everywhere
seed: 3
datasets: {digits: {patch: 4}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8, 16]}}
training: {epochs: 6, learning_rate: {float: [1e-3, 1e-2], log: true}}
scheduler: {name: asha, reduction: 3, min_epochs: 2}
budget: {trials: 5}
confirm: {replicates: 2, top: 2}
"""
SEARCHED, KILLED_AFTER = 5, 8  # trials, reports
SECONDS = 280.0


def ablate(run: StudyRun, *words: str) -> subprocess.Popen[str]:
    """Start a command in a new process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "ablate", *words, "--runs-dir", str(run.runs), "--storage", run.url],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=run.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def said(run: StudyRun, *words: str) -> str:
    """Return what a command prints, which must end well and show no password."""
    process = ablate(run, *words)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert PASSWORD not in output
    return output


@pytest.mark.services
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_killed_study_is_continued_and_every_door_shows_the_same(
    executor: str, tmp_path: Path, postgres_server: PostgresServer, s3_server: S3Server, s3_store: str
) -> None:
    run = StudyRun(folder=tmp_path, text=STUDY, storage=postgres_server.empty())
    with mlflow_server(tmp_path) as server:
        server.start()
        places = ["--store", s3_store, "--tracking-uri", server.url]
        search = ["search", str(run.file), *places, "--executor", executor, "--device", "cpu"]
        driver = ablate(run, *search)
        while not run.began() or len(reports(run)) < KILLED_AFTER:
            assert driver.poll() is None, driver.communicate()[0]
            time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate(timeout=60)
        said(run, *search)

        trials = run.trials()
        front = [trial for trial in trials if trial.config.stage == "confirm"]
        assert len(front) >= 1
        check_whole(run, trials=SEARCHED + len(front), drivers=2)
        check_mlflow(run, server.url)

        doctor = said(run, "doctor", str(run.file), *places)
        assert s3_store.partition("?")[0] in doctor

    ended = {state: sum(trial.state is state for trial in trials) for state in TrialState}
    (listed,) = json.loads(said(run, "list", "--json"))
    status = json.loads(said(run, "status", run.name, "--json"))
    for found in (listed, status):
        assert found["state"] == "finished"
        assert found["trials"]["digits"] == {str(state): count for state, count in ended.items()}
    stored = objects(s3_store)
    for trial in (front[0], trials[0]):
        told = json.loads(said(run, "trial", run.name, str(trial.key.number), "--store", s3_store, "--json"))
        assert (told["state"], told["epochs"]) == (str(trial.state), trial.epochs_done)
        assert sum(told["checkpoint"].endswith(name) for name in stored) == 1
    assert not list(run.runs.rglob("*.safetensors")), "checkpoints are in the store alone"

    table = run.home / "trials.parquet"
    before = pl.read_parquet(table)
    table.unlink()
    said(run, "report", run.name)
    assert pl.read_parquet(table).equals(before)
    assert dict(before.select("trial", "state").iter_rows()) == {t.key.number: str(t.state) for t in trials}
    assert {"COMPLETE"} == set(before.filter(stage="confirm")["state"])
