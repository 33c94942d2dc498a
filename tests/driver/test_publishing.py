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

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_digits

from ablate.cli import app as cli
from ablate.core.trial import TrialState
from ablate.ledger import Ledger
from support.commands import checked, run
from support.mlflow_server import MlflowServer, mlflow_server
from support.paths import REPOSITORY
from support.ports import free_port
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
def test_networks_whose_checkpoints_lie_in_a_store_load_from_the_server(shown: Shown, tmp_path: Path) -> None:
    confirmed = shown.confirmed()
    assert confirmed
    for trial in confirmed:
        shape, code = loaded(shown.server.url, f"runs:/{trial.mlflow_run_id}/model", tmp_path)
        assert shape == [2, 10]
        assert Path(code).parent.parent.name == "ablate.zip"


@pytest.mark.timeout(2 * SECONDS)
def test_a_network_is_sent_in_a_few_files_its_code_in_one(shown: Shown) -> None:
    client = mlflow.MlflowClient(tracking_uri=shown.server.url)
    experiment = client.get_experiment_by_name("shop").experiment_id
    models = client.search_logged_models([experiment])
    requests = shown.server.log.read_text()
    for model in models:
        sent = re.findall(rf'"PUT \S+/artifacts/\S*{model.model_id}/artifacts/(\S+) HTTP', requests)
        assert [name for name in sent if name.startswith("code/")] == ["code/ablate.zip", "code/ablate_model.py"]
        assert len(sent) <= 10
    assert len(models) == len(shown.confirmed()) > 0


@pytest.mark.services
@pytest.mark.timeout(2 * SECONDS)
def test_a_picked_network_is_one_version_of_a_registered_model_with_its_numbers(
    shown: Shown, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["pick", "shop", "--max", "params=1e9", "--min", "params=1", "--runs-dir", f"{shown.folder}/runs", "--json"]
    client = mlflow.MlflowClient(tracking_uri=shown.server.url)
    for name, times in (("reader", 2), ("other", 1)):
        for _ in range(times):
            code, out, err = run(capfd, *words, "--register", name)
            assert code == 0, err
            [found] = checked("pick", out)
            assert found["registered"] == f"models:/{name}/1"
        [version] = client.search_model_versions(f"name = '{name}'")
        [trial] = [each for each in shown.confirmed() if each.key.number == found["trial"]]
        assert version.run_id == trial.mlflow_run_id
        tags = client.get_model_version(name, version.version).tags
        assert (tags["ablate.study"], tags["ablate.dataset"]) == ("shop", "digits")
        assert tags["ablate.trial"] == str(trial.key.number)
        assert tags["ablate.test_accuracy"] == f"{100 * found['metrics']['test_accuracy']['mean']:.2f}%"
        assert tags["ablate.params"] == f"{trial.params:,}"
        assert tags["ablate.keeps.params"] == "params >= 1; params <= 1e+09"
        assert tags["ablate.picked_among"] == f"{found['among']} confirmed networks"
        assert "ablate.verdict" in tags
        assert f"trial {trial.key.number}, which confirms search trial" in version.description
    shape, _ = loaded(shown.server.url, found["registered"], tmp_path)
    assert shape == [2, 10]


@pytest.mark.services
def test_a_network_is_registered_in_the_study_s_own_database_and_nothing_is_made_elsewhere(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        words = ["pick", "shop", "--max", "params=1e9", "--runs-dir", f"{finished}/runs", "--register", "reader"]
        code, out, err = run(capfd, *words)
        assert (code, out.splitlines()[-1]) == (0, "# Registered in MLflow as models:/reader/1"), err
    assert not [*tmp_path.iterdir()]
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{finished}/runs/mlflow.db")
    [version] = client.search_model_versions("name = 'reader'")
    client.delete_run(version.run_id)
    code, _, err = run(capfd, *words)
    client.restore_run(version.run_id)
    assert (code, "has no run in MLflow" in err) == (2, True)
    assert loaded(f"sqlite:///{finished}/runs/mlflow.db", "models:/reader/1", tmp_path)[0] == [2, 10]


@pytest.mark.services
@pytest.mark.timeout(2 * SECONDS)
def test_what_cannot_be_registered_is_said_in_one_line(
    shown: Shown, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["pick", "shop", "--max", "params=1e9", "--runs-dir", f"{shown.folder}/runs", "--register"]
    for exit_code, more, said in (
        (1, ["a/b"], "Invalid model name 'a/b'"),
        (2, ["n", "--tracking-uri", f"sqlite:///{tmp_path}/none.db"], "has no run in MLflow"),
        (2, ["n", "--tracking-uri", f"http://127.0.0.1:{free_port()}"], "Connection refused"),
    ):
        code, _, err = run(capfd, *words, *more)
        assert (code, len(err.strip().splitlines())) == (exit_code, 1), err
        assert said in err
    assert not (tmp_path / "none.db").exists()
    code, _, _ = run(capfd, *words[:2], "--max", "params=1", *words[4:], "none")
    assert code == 1
    client = mlflow.MlflowClient(tracking_uri=shown.server.url)
    assert {each.name for each in client.search_registered_models()} <= {"reader", "other"}


LOAD = """\
import json, sys
import mlflow, numpy
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
inputs = numpy.load(sys.argv[3])
print(json.dumps([model.predict(inputs).shape, sys.modules["ablate"].__file__]))
"""


def loaded(uri: str, model: str, folder: Path) -> tuple[list[int], str]:
    """Load a model in another process, as a user does; return the shape of its answer and where its code lies."""
    np.save(folder / "inputs.npy", load_digits().images[:2].astype(np.uint8))
    arguments = [sys.executable, "-c", LOAD, uri, model, "inputs.npy"]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    shape, code = json.loads(done.stdout.splitlines()[-1])
    return shape, code


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
def test_the_tutorial_s_lines_use_the_winner(finished: Path) -> None:
    section = (REPOSITORY / "docs" / "tutorial.md").read_text().partition("Use the winner")[2]
    lines = section.partition("```python\n")[2].partition("```")[0].replace('"digits"', '"shop"')
    check = "assert predicted.shape == (1797,) and set(predicted) <= set(range(10))\n"
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
def test_networks_that_could_not_be_logged_are_counted_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.yaml").write_text(STUDY)
    command = ["search", f"{tmp_path}/shop.yaml", "--runs-dir", f"{tmp_path}/runs", "--executor", "local"]
    assert "not logged" not in assert_ran(capfd, *command, "--tracker", "none")
    shutil.rmtree(tmp_path / "runs" / "shop" / "checkpoints")
    said = assert_ran(capfd, *command)
    assert re.search(r"the models of (\d) of \1 networks are not logged: shop/digits/\d: no whole checkpoint of", said)


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
        assert re.search(r"networks are not logged: shop/digits/\d: ", assert_ran(capfd, *command))
        run_ids = pl.read_parquet(table)["mlflow_run_id"]
        assert run_ids.null_count() == len(run_ids) > 0
        server.start()
        assert "not logged" not in assert_ran(capfd, *command)
        assert pl.read_parquet(table)["mlflow_run_id"].null_count() == 0


def assert_ran(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run `ablate ARGUMENTS` in this process, which must end well, and return what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ablate", *arguments])
        with pytest.raises(SystemExit) as end:  # Typer ends every command with one
            cli.main()
    out, err = capfd.readouterr()
    assert not end.value.code, err
    return out
