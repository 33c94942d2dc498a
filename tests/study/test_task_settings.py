"""Each task has its own settings: those of another task are refused, and records made before are read."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.config import TaskConfig
from ablate.models import fused
from ablate.registry import TASKS, read_task, task_settings
from ablate.trial import read_stored_task
from support.commands import run
from support.entries import is_not_had, refusal
from support.paths import TESTS

BEFORE = TESTS / "study" / "begun_before"
COMMON = {"task", "validation", "train_limit", "share"}
OWN = {
    "patch": {"digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet", "imagenet", "image_folder"},
    "image_size": {"tiny_imagenet", "imagenet", "image_folder", "set_anomaly"},
    "path": {"image_folder", "set_anomaly"},
    "length": {"reverse", "sort", "sub", "swap", "copy", "numbers", "tiny_shakespeare"},
    "options": {"tiny_imagenet", "imagenet"},
}
VALUES = {"patch": 2, "image_size": 8, "path": "x", "length": 4, "options": {}}
WITHOUT_TORCH = """
import sys
from ablate.registry import TASKS
from ablate.study import parse_study
parse_study("study: s\\ndatasets: [" + ", ".join(TASKS.names()) + "]\\n")
print(sorted({"torch", "ray", "optuna", "mlflow", "polars"} & set(sys.modules)))
"""


@pytest.mark.parametrize("task", TASKS.names())
def test_a_task_takes_the_settings_that_it_has_and_no_others(task: str) -> None:
    for setting, tasks in OWN.items():
        if task in tasks:
            assert read_task({"task": task, setting: VALUES[setting]}).model_fields_set == {"task", setting}
        else:
            said = refusal(task=task, **{setting: VALUES[setting]})
            known = sorted(COMMON | {name for name, owners in OWN.items() if task in owners})
            assert is_not_had(said, task, setting)
            assert said.endswith(f"Known: {', '.join(known)}.")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("mnist: {length: 5}", ":3: datasets.mnist.length = 5: task mnist does not have this setting. Known: patch, "),
        ("a: {task: set_anomaly, patch: 7}", ":3: datasets.a.patch = 7: task set_anomaly does not have this setting."),
        (
            "imagenet: {options: {worker: 2}}",
            "options.worker: this key is not known. Did you mean 'workers'",
        ),
        ("imagenet: {options: {workers: -1}}", "options.workers = -1: Input should be greater than or equal to 0"),
        ("imagenet: {options: {augment: 'no'}}", "options.augment = 'no': Input should be a valid boolean"),
        (
            "a: {task: 'mine:build', patc: 7}",
            "datasets.a.patc: this key is not known. Did you mean 'patch'",
        ),
        (
            "a: {task: minst, length: 7}",
            ":3: datasets.a.task = 'minst': task 'minst' is not known. Did you mean 'mnist",
        ),
    ],
)
def test_plan_names_place_value_rule_and_what_is_known(
    entry: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(f"study: s\ndatasets:\n  {entry}\n")
    code, _, err = run(capfd, "plan", str(file))
    assert code == 2
    assert said in " ".join(err.split())


def test_a_task_of_ones_own_takes_what_every_task_took() -> None:
    entry = {"task": "mine:build", "options": {"bits": 6}, **{k: v for k, v in VALUES.items() if k != "options"}}
    read = read_task(entry)
    assert read.model_dump(exclude_unset=True) == {**entry, "patch": (2, 2), "image_size": (8, 8)}


def test_the_settings_of_every_task_are_read_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_entry_recorded_with_the_settings_of_all_tasks_loses_those_of_others() -> None:
    stored = {"task": "copy", "patch": [4, 4], "image_size": None, "length": 8, "path": None, "options": {}}
    assert read_stored_task(stored) == read_task({"task": "copy", "length": 8})
    assert read_stored_task({**stored, "task": "multi30k_de_en"}) == TaskConfig(task="multi30k_de_en")
    assert read_stored_task({**stored, "task": "imagenet"}) == task_settings("imagenet")(task="imagenet")
    with pytest.raises(ValueError, match="extra_forbidden"):
        read_stored_task({**stored, "other": 1})


def test_a_study_begun_before_is_continued_from_its_checkpoint_with_the_same_numbers_to_rounding(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is that of a finished study; its last trial is put back to the checkpoint of its first epoch."""
    monkeypatch.setattr(fused, "checked_kernels", lambda: None)  # at that time torch computed everything
    home = tmp_path / "runs" / "before"
    folder = home / "checkpoints" / "copy" / "000001"
    folder.mkdir(parents=True)
    name = "epoch-000001-attempt-001.safetensors"
    shutil.copy(BEFORE / name, folder)
    last = "trial_id = (SELECT id FROM ablate_trial WHERE dataset = 'copy' AND number = 1) AND epoch = 2"
    with sqlite3.connect(home / "ledger.sqlite") as ledger:
        ledger.executescript((BEFORE / "ledger.sql").read_text())
        ((expected,),) = ledger.execute(f"SELECT metrics FROM ablate_report WHERE {last}").fetchall()
        ledger.execute(f"DELETE FROM ablate_report WHERE {last}")
        ledger.execute(
            "UPDATE ablate_trial SET state = 'WAITING', epochs_done = 1, checkpoint = ?, finished_at = NULL"
            " WHERE dataset = 'copy' AND number = 1",
            (name,),
        )
    options = ("--executor", "local", "--device", "cpu", "--tracker", "none", "--runs-dir", str(tmp_path / "runs"))
    code, _, err = run(capfd, "search", str(BEFORE / "study.yaml"), *options)
    assert code == 0, err
    with sqlite3.connect(home / "ledger.sqlite") as ledger:
        ((found,),) = ledger.execute(f"SELECT metrics FROM ablate_report WHERE {last}").fetchall()
        assert json.loads(found) == pytest.approx(json.loads(expected), rel=1e-7), "another processor rounds otherwise"
        assert ledger.execute("SELECT count(*) FROM ablate_trial WHERE state IN ('COMPLETE', 'PRUNED')").fetchone() == (
            4,
        )
