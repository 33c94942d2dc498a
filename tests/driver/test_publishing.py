"""`ablate search` with an object store and a real MLflow server: what a user finds in MLflow afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from ablate import load_study
from ablate.cli import app as cli
from ablate.core.trial import TrialState
from ablate.ledger import Ledger
from support.commands import run
from support.mlflow_server import MlflowServer, mlflow_server
from support.paths import REPOSITORY
from support.s3 import S3Server

mlflow = pytest.importorskip("mlflow")

STUDY = """\
study: shop
datasets: {digits: {patch: 4, train_limit: 128}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8]}}
training: {epochs: 2, batch_size: 32, learning_rate: {float: [1e-3, 1e-2], log: true}}
scheduler: {name: none}
budget: {trials: 3}
confirm: {replicates: 1}
"""
SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A finished study, the store of its checkpoints, and the server that shows it."""

    folder: Path
    store: str
    server: MlflowServer

    @property
    def home(self) -> Path:
        """The study's own folder."""
        return self.folder / "runs" / "shop"

    def confirmed(self) -> list[Any]:
        """Return the ledger's confirmed trials."""
        with Ledger.open(f"sqlite:///{self.home}/ledger.sqlite", create=False) as ledger:
            trials = ledger.trials("shop")
        return [t for t in trials if t.config.stage == "confirm" and t.state is TrialState.COMPLETE]

    def search(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return search(self.folder, "--store", self.store, "--tracking-uri", self.server.url, *more)


def search(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run `ablate search` on the study in `folder`, one trial at a time."""
    (folder / "shop.yaml").write_text(STUDY)
    places = ["shop.yaml", "--runs-dir", "runs", "--executor", "local"]
    return subprocess.run(
        [sys.executable, "-m", "ablate", "search", *places, *more],
        cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("publishing")
    with mlflow_server(folder) as server:
        server.start()
        shown = Shown(folder=folder, store=s3_server.url("publishing"), server=server)
        done = shown.search()
        assert done.returncode == 0, done.stderr
        yield shown


@pytest.mark.services
@pytest.mark.timeout(2 * SECONDS)
def test_confirmed_networks_have_their_weights_and_settings_on_the_server_once(shown: Shown, tmp_path: Path) -> None:
    client = mlflow.MlflowClient(tracking_uri=shown.server.url)
    confirmed = shown.confirmed()
    assert confirmed
    for trial in confirmed:
        folder = Path(client.download_artifacts(trial.mlflow_run_id, "model", str(tmp_path)))
        assert sorted(p.name for p in folder.iterdir()) == ["config.json", "settings.json", "weights.safetensors"]
        kept = load_study("shop", runs_dir=shown.folder / "runs", store=shown.store).load(trial.key.number)
        weights = load_file(folder / "weights.safetensors")
        assert set(weights) == set(kept.weights)
        assert all(torch.equal(weights[name], kept.weights[name]) for name in weights)
        assert json.loads((folder / "settings.json").read_text()) == trial.config.settings.handed()
    sent = shown.server.log.read_text().count("/model/weights.safetensors HTTP")
    assert shown.search().returncode == 0
    assert shown.server.log.read_text().count("/model/weights.safetensors HTTP") == sent


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `runs` hold a finished study, which ended before its runs were shown for the first time."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ablate.tracking.tracker.SYNC_SECONDS", 3600.0)
        (folder / "shop.yaml").write_text(STUDY)
        patch.setattr(sys, "argv", ["ablate", "search", f"{folder}/shop.yaml", "--executor", "local"])
        patch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
    return folder


@pytest.mark.services
@pytest.mark.timeout(2 * SECONDS)
def test_the_tutorial_s_lines_use_the_winner(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    section = (REPOSITORY / "docs" / "tutorial.md").read_text().partition("Use the winner")[2]
    lines = section.partition("```python\n")[2].partition("```")[0]
    words = section.partition("$ ablate ")[2].partition("\n")[0].replace("digits best", f"shop {finished}/best").split()
    code, _, err = run(capfd, *words[:-1], "3", "--runs-dir", f"{finished}/runs")
    assert code == 0, err
    check = "assert (predicted == data.test_targets).float().mean() == about['metrics']['test_accuracy']['values'][0]\n"
    done = subprocess.run(
        [sys.executable, "-c", lines + check],
        cwd=finished,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert lines
    assert done.returncode == 0, done.stderr


@pytest.mark.services
def test_the_tables_name_the_run_of_every_trial(finished: Path, tmp_path: Path) -> None:
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{finished}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("shop")
    runs = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    [parent] = [run_id for run_id, run in runs.items() if run.data.tags["ablate.kind"] == "study"]
    shown = {run_id: run.data.tags["ablate.trial"] for run_id, run in runs.items() if run_id != parent}
    copy = client.download_artifacts(parent, "trials.parquet", str(tmp_path))
    for file in (finished / "runs" / "shop" / "trials.parquet", Path(copy)):
        rows = pl.read_parquet(file).select("mlflow_run_id", pl.col("trial").cast(pl.String)).rows()
        assert dict(rows) == shown


@pytest.mark.services
def test_networks_whose_weights_are_lost_are_counted_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.yaml").write_text(STUDY)
    command = ["search", f"{tmp_path}/shop.yaml", "--runs-dir", f"{tmp_path}/runs", "--executor", "local"]
    assert "not sent" not in assert_ran(capfd, *command, "--tracker", "none")
    shutil.rmtree(tmp_path / "runs" / "shop" / "checkpoints")
    said = assert_ran(capfd, *command)
    assert re.search(r"the weights of (\d) of \1 networks are not sent: shop/digits/\d: no whole checkpoint of", said)


@pytest.mark.services
@pytest.mark.timeout(2 * SECONDS)
def test_tables_without_a_server_are_completed_by_the_same_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.yaml").write_text(STUDY)
    table = tmp_path / "runs" / "shop" / "trials.parquet"
    with mlflow_server(tmp_path) as server:
        command = ["search", f"{tmp_path}/shop.yaml", "--runs-dir", f"{tmp_path}/runs", "--executor", "local"]
        command += ["--tracking-uri", server.url]
        assert_ran(capfd, *command)
        run_ids = pl.read_parquet(table)["mlflow_run_id"]
        assert run_ids.null_count() == len(run_ids) > 0
        server.start()
        assert_ran(capfd, *command)
        assert pl.read_parquet(table)["mlflow_run_id"].null_count() == 0


@pytest.mark.parametrize("kind", ["no folder", "not writable", "files", "artifacts"])
def test_a_store_of_another_machine_is_said_once_and_ends_no_search(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "shop.yaml").write_text(STUDY)
    uri, said = {
        "no folder": (f"sqlite:///{tmp_path}/other/mlflow.db", f"this machine has no folder {tmp_path}/other"),
        "not writable": ("sqlite:////proc/mlflow.db", "/proc/mlflow.db: "),
        "files": (f"file://{tmp_path}/other/mlruns", "cannot be written safely after an interruption"),
        "artifacts": (f"sqlite:///{tmp_path}/mlflow.db", "this machine lacks their folder or may not write there"),
    }[kind]
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    if kind == "artifacts":  # as of a machine with another folder of runs
        client.create_experiment("shop", artifact_location="file:///proc/nope/runs/mlartifacts/shop")
    for _ in range(2):
        command = ["search", f"{tmp_path}/shop.yaml", "--runs-dir", f"{tmp_path}/runs", "--executor", "local"]
        assert_ran(capfd, *command, "--tracking-uri", uri)
        assert [said in record.getMessage() for record in caplog.records if "MLflow" in record.getMessage()] == [True]
        caplog.clear()
    assert not (tmp_path / "other").exists()
    assert pl.read_parquet(tmp_path / "runs" / "shop" / "trials.parquet")["state"].to_list() == ["COMPLETE"] * 5
    if kind == "artifacts":
        experiment = client.get_experiment_by_name("shop").experiment_id
        assert {each.info.status for each in client.search_runs([experiment])} == {"FINISHED"}


def assert_ran(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run `ablate ARGUMENTS` in this process, which must end well, and return what it printed."""
    code, out, err = run(capfd, *arguments)
    assert code == 0, err
    return out
