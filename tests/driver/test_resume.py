"""The whole command, killed by kill -9 midway and run again: nothing lost or doubled, one MLflow run per trial."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from ablate.base.errors import NoLedgerError
from ablate.core.trial import TrialState
from ablate.ledger import Ledger

STUDY = """\
study: killed
seed: 3
datasets: {digits: {patch: 4}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8, 16]}}
training: {epochs: 9, learning_rate: {float: [1e-3, 1e-2], log: true}}
scheduler: {name: asha, reduction: 3, min_epochs: 3}
budget: {trials: 8}
confirm: {replicates: 2, top: 2}
"""
SEARCH_TRIALS, EPOCHS, KILLED_AFTER_REPORTS = 8, 9, 20


def start(file: Path, runs: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ablate", "search", str(file), "--runs-dir", str(runs), "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def reports_committed(ledger_file: Path) -> int:
    try:
        with Ledger.open(f"sqlite:///{ledger_file}", create=False) as ledger:
            return len(ledger.reports("killed"))
    except NoLedgerError:  # the file is there a moment before its tables are
        return 0


@pytest.mark.slow
def test_a_killed_search_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    file, runs = tmp_path / "killed.yaml", tmp_path / "runs"
    file.write_text(STUDY)
    place = runs / "killed" / "ledger.sqlite"
    driver = start(file, runs)
    while reports_committed(place) < KILLED_AFTER_REPORTS:
        assert driver.poll() is None, driver.communicate()[0]
        time.sleep(0.05)
    driver.kill()
    driver.communicate(timeout=60)
    last = start(file, runs)
    output, _ = last.communicate(timeout=240)
    assert last.returncode == 0, output
    assert "continues" in output

    with Ledger.open(f"sqlite:///{place}", create=False) as ledger:
        trials, reports_found = ledger.trials("killed"), ledger.reports("killed")
    assert [trial.key.number for trial in trials] == list(range(len(trials)))
    assert sum(trial.config.stage == "search" for trial in trials) == SEARCH_TRIALS
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    once = Counter((report.key.number, report.replicate, report.epoch) for report in reports_found)
    assert set(once.values()) == {1}
    for trial in trials:
        epochs = [report.epoch for report in reports_found if report.key == trial.key and report.replicate == 0]
        assert epochs == list(range(1, trial.epochs_done + 1))
        assert trial.epochs_done == EPOCHS or trial.state is TrialState.PRUNED

    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("killed")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    children = [run for run in found if "mlflow.parentRunId" in run.data.tags]
    assert Counter(run.data.tags["ablate.trial"] for run in children) == Counter(str(t.key.number) for t in trials)
    assert {run.info.status for run in found} <= {"FINISHED", "KILLED"}
    for run in children:
        steps = [point.step for point in client.get_metric_history(run.info.run_id, "val_accuracy")]
        assert len(steps) == len(set(steps))
